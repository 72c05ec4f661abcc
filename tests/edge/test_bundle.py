"""The graphs of a new client: one export, run by onnxruntime against torch in float64 and against ``personalize``."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbasis.edge.bundle import ABOUT, APPLY, COMBINE, MEASURE, SKELETON, STEP, export_edge, state_of
from fedbasis.edge.packages import onnx, session
from fedbasis.edge.skeleton import float_arrays, with_weights
from fedbasis.edge.step import BETAS, NewClientGraphs
from fedbasis.edge.translate import operators
from fedbasis.edge.verify import Case, TorchClient, relative
from fedbasis.methods.fedbasis import FedBasis
from fedbasis.methods.fedbasis.bases import BasisSet
from fedbasis.methods.fedbasis.learning import LocalWork, learn_coefficients
from fedbasis.networks.batches import Recipe, batches
from fedbasis.networks.inputs import Examples
from fedbasis.networks.models import Network
from fedbasis.networks.statistics import statistics_of, with_statistics
from fedbasis.networks.train import forward
from fedbasis.serving import artifact
from fedbasis.serving.bundle import bundle
from fedbasis.serving.new_client import method_of
from fedbasis.tensors.flat import FlatModel
from pflbed.errors import InputError
from pflbed.files import sha256_of
from serving.artifacts import bases_of, card_of

NETWORK = Network("cnn-small", 3, 8, {"norm": "batch", "width": 8})
GRAPHS = (STEP, APPLY, COMBINE, MEASURE, SKELETON)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Published bases with their graphs."""
    made = tmp_path_factory.mktemp("edge") / "bases"
    artifact.save(made, bases_of(NETWORK), card_of(NETWORK))
    exported = export_edge(made)
    assert exported.errors.largest < 1e-5
    assert exported.memory > 0
    assert set(exported.sizes) == {*GRAPHS, ABOUT}
    return made


@pytest.fixture(scope="module")
def about(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    return read


@pytest.fixture(scope="module")
def graphs(folder: Path) -> NewClientGraphs:
    method = method_of(artifact.read_card(folder))
    assert isinstance(method, FedBasis)
    return NewClientGraphs(method, "own")


def run(graph: Any, feeds: dict[str, Any]) -> dict[str, Any]:
    return dict(zip([one.name for one in graph.get_outputs()], graph.run(None, feeds), strict=True))


def test_what_edge_json_says(folder: Path, about: dict[str, Any], graphs: NewClientGraphs) -> None:
    assert about["format"] == 1
    assert about["files"] == {name: sha256_of(folder / name) for name in ("card.json", "tensors.safetensors", *GRAPHS)}
    assert (about["resolution"], about["channels"], about["classes"]) == ([8, 8], 3, ["circle", "cross", "square"])
    assert about["groups"] == ["major", "basis_0", "basis_1"]
    assert (about["major"], about["statistics"], about["optimizer"]) == (True, "own", "adam")
    layout = graphs.method.task.layout
    assert about["blocks"] == list(layout.blocks)
    assert about["blocks"][about["classifier"]] == "fc"
    assert [(e["name"], tuple(e["shape"])) for e in about["entries"]] == [(e.name, e.shape) for e in layout.entries]
    assert about["constants"]["conv1.1.num_batches_tracked"] == {"dtype": "I64", "shape": [], "value": 0}
    step = session(folder / STEP)
    shapes = {one.name: one.shape for one in step.get_inputs()}
    assert about["state"] == {
        name: shape for name, shape in shapes.items() if name not in ("pixels", "labels", "rates")
    }
    assert {one.name for one in step.get_outputs()} == {"loss", *(f"{name}_out" for name in about["state"])}
    assert about["training"]["rates"] == [0.05, 0.005, 1e-4]
    assert about["training"]["augmentation"] == {"name": "none"}
    assert about["prior"] == {"entry": "fc.bias", "count": 0.3}


def test_the_graphs_hold_no_weights_and_only_standard_operators(folder: Path) -> None:
    for name in GRAPHS:
        model = onnx().load(folder / name, load_external_data=False)
        assert {one.domain for one in model.opset_import} == {""}
        assert not set(operators(model)) & {"If", "Loop", "Scan", "RandomUniform", "BatchNormalizationTraining"}
        for tensor in model.graph.initializer:
            if tensor.data_location == onnx().TensorProto.EXTERNAL:
                assert {one.key: one.value for one in tensor.external_data}["location"] == artifact.TENSORS
            else:
                assert np.prod(tensor.dims) < 100, tensor.name
        if name != SKELETON:
            onnx().checker.check_model(str(folder / name), full_check=True)


@pytest.mark.parametrize("count", [2, 3, 16, 32])
def test_gradients_of_batches_of_any_size(folder: Path, graphs: NewClientGraphs, count: int) -> None:
    _, state = artifact.load(folder, "bases")
    exact, case = TorchClient(graphs, state), Case.of(graphs, count)
    case = replace(case, own=exact.measure(case.pixels))
    assert case.own is not None
    feeds = {name: value.numpy() for name, value in state_of(graphs).items()}
    feeds |= {name: getattr(case, name).numpy() for name in ("psi", "offset", "pixels", "labels")}
    feeds |= {"statistics": case.own.float().numpy(), "rates": np.zeros(3, np.float32)}
    made, right = run(session(folder / STEP), feeds), exact.gradients(case)
    assert relative(made["first_out"] / (1 - BETAS[0]), right.psi) < 1e-5
    assert relative(made["velocity_out"], right.classifier) < 1e-5
    assert relative(made["loss"], right.loss) < 1e-6
    assert relative(made["statistics_out"], right.after["statistics"]) < 1e-6
    assert relative(run(session(folder / MEASURE), {"pixels": feeds["pixels"]})["statistics"], case.own) < 1e-6


def test_a_whole_fit_is_that_of_personalize(folder: Path, about: dict[str, Any], graphs: NewClientGraphs) -> None:
    """In float64 on torch's side, with the same batches: 12 steps of both optimizers and of the statistics."""
    _, state = artifact.load(folder, "bases")
    generator = np.random.default_rng(1)
    data = Examples(
        torch.from_numpy(generator.integers(0, 256, (10, 8, 8, 3), dtype=np.uint8)),
        torch.from_numpy(generator.integers(0, 3, 10)),
    )
    task, plan = graphs.method.task, about["training"]
    recipe = Recipe(preprocessing=task.recipe.preprocessing, epochs=4, batch=4, rate=plan["rates"][1])
    module = NETWORK.build().double()
    model = FlatModel(module, task.layout, copy=False)
    double = {group: {name: t.double() for name, t in named.items()} for group, named in state.items()}
    model.load(graphs.method.model(double))
    own = statistics_of(model, data, recipe.preprocessing)
    bases = BasisSet.from_state(task.layout, with_statistics(double, own, 1.0))
    psi = torch.zeros(len(graphs.blocks), 2, dtype=torch.float64)
    settings = graphs.method.config.at_a_new_client(plan["rates"][1], frozen=False)
    assert settings.rate == plan["rates"][0]
    work, seeded = LocalWork(model, data, recipe), torch.Generator().manual_seed(3)
    expected = [float(loss) for _, loss in learn_coefficients(work, bases, psi, seeded, settings, graphs.classifier)]

    pixels, labels = data.pixels.numpy(), data.labels.numpy()
    client = {name: np.zeros(shape, np.float32) for name, shape in about["state"].items()}
    client["statistics"] = run(session(folder / MEASURE), {"pixels": pixels})["statistics"]
    step, losses, seeded = session(folder / STEP), [], torch.Generator().manual_seed(3)
    for _ in range(recipe.epochs):
        for part in batches(len(data), recipe.batch, seeded):
            rows, rates = part.numpy(), np.array(plan["rates"], np.float32)
            made = run(step, {**client, "pixels": pixels[rows], "labels": labels[rows], "rates": rates})
            client = {name: made[f"{name}_out"] for name in client}
            losses.append(float(made["loss"]))
    assert len(losses) == 12
    assert np.allclose(losses, expected, rtol=1e-4)
    assert relative(client["psi"], psi) < 1e-4
    assert relative(client["statistics"], torch.cat(model.statistics)) < 1e-5
    module.eval()
    with torch.no_grad():
        logits = module(recipe.preprocessing(data.pixels, torch.float64))
    feeds = {name: client[name] for name in ("psi", "offset", "statistics")}
    assert relative(run(session(folder / APPLY), {**feeds, "pixels": pixels})["logits"], logits) < 1e-4
    whole = with_weights((folder / SKELETON).read_bytes(), float_arrays(model.tensors()))
    onnx().checker.check_model(whole, full_check=True)
    inputs = recipe.preprocessing(data.pixels).contiguous().numpy()
    assert relative(run(session(whole), {"images": inputs})["logits"], logits) < 1e-5


def test_the_same_bytes_again_and_no_overwriting(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"edge.json must not exist yet, but it does; replace it with --overwrite"):
        export_edge(folder)
    shutil.copytree(folder, tmp_path / "again")
    (tmp_path / "again" / STEP).write_bytes(b"old")
    export_edge(tmp_path / "again", overwrite=True)
    for name in (*GRAPHS, ABOUT):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes(), name


def test_coded_bases_are_decoded_by_the_graphs(folder: Path, tmp_path: Path) -> None:
    """As torch decodes them: the export compares both."""
    bundle(folder, tmp_path / "coded", bits=4)
    made = export_edge(tmp_path / "coded", statistics="shrunk")
    assert made.errors.largest < 1e-5
    assert made.sizes.keys() == {*GRAPHS, ABOUT}
    about = json.loads((tmp_path / "coded" / ABOUT).read_text(encoding="utf-8"))
    assert (about["statistics"], about["prior_images"]) == ("shrunk", 16)


def test_artifacts_that_cannot_be_exported(folder: Path, tmp_path: Path) -> None:
    def refused(state: Any, match: str, network: Network = NETWORK, **changes: Any) -> None:
        artifact.save(tmp_path / "bases", state, card_of(network, **changes), overwrite=True)
        with pytest.raises(InputError, match=match):
            export_edge(tmp_path / "bases")
        assert sorted(path.name for path in (tmp_path / "bases").iterdir()) == ["card.json", "tensors.safetensors"]

    model = {"model": NETWORK.initial(0)}
    refused(model, "FedAvg has none; export a personal model", method="fedavg", settings={})
    refused(model, "stopped within the warm start")
    dropout = Network("collins-cifar100", 3, 16, {"dropout": 0.5})
    refused(bases_of(dropout), r"needs a network without random layers, .*dropout", dropout)
    whole = {"": artifact.whole_model(NETWORK, NETWORK.initial(0))}
    artifact.save(tmp_path / "model", whole, card_of(NETWORK, kind="model", settings={}))
    with pytest.raises(InputError, match="must hold bases, but it holds a personal model"):
        export_edge(tmp_path / "model")


def test_logits_of_the_server_before_anything_is_learned(folder: Path, graphs: NewClientGraphs) -> None:
    """With frozen statistics they are those of the model that ``personalize`` starts from."""
    _, state = artifact.load(folder, "bases")
    case = Case.of(graphs)
    model = NETWORK.workspace()
    model.load(graphs.method.model(state))
    frozen = TorchClient(NewClientGraphs(graphs.method, "frozen"), state)
    logits = frozen.logits(replace(case, psi=torch.zeros_like(case.psi), offset=torch.zeros_like(case.offset)))
    assert relative(forward(model.module, case.pixels, graphs.method.task.recipe.preprocessing), logits) < 1e-5
