"""Add the graphs of a new client to published bases: ``fedbasis export BASES --to edge``.

    step.onnx         state, pixels, labels, rates -> loss, state: one training step
    apply.onnx        state, pixels -> logits
    combine.onnx      state -> the weights of the current model
    statistics.onnx   pixels -> their normalization statistics, from which training starts; if the network has any
    skeleton.onnx     images -> logits, without weights: what a client completes to its own model
    edge.json         what these need, and the digests of all files

The graphs are compared with torch in float64 before they are written (``verify``).
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from fedbasis import __version__
from fedbasis.edge.capture import BATCH, capture
from fedbasis.edge.external import point_into
from fedbasis.edge.memory import peak_bytes
from fedbasis.edge.packages import onnx
from fedbasis.edge.skeleton import describe, model_metadata, skeleton
from fedbasis.edge.step import MOMENTUM, NewClientGraphs
from fedbasis.edge.translate import translate
from fedbasis.edge.verify import Errors, verify
from fedbasis.methods.base import Adaptation, Method
from fedbasis.methods.fedbasis import FedBasis
from fedbasis.methods.fedbasis.bases import groups_of
from fedbasis.networks.models import NetworkSource, sides
from fedbasis.networks.statistics import Statistics
from fedbasis.serving import artifact
from fedbasis.serving.new_client import bases_at, method_of, require_fit
from fedbasis.serving.personalize import PSEUDO_COUNT, default_statistics
from fedbasis.tensors.params import State
from pflbed.errors import InputError
from pflbed.files import replacing, sha256_of, write_json

FORMAT = 1
STEP, APPLY, COMBINE = "step.onnx", "apply.onnx", "combine.onnx"
MEASURE, SKELETON, ABOUT = "statistics.onnx", "skeleton.onnx", "edge.json"
FILES = (ABOUT, STEP, APPLY, COMBINE, MEASURE, SKELETON)
WAY = "coefficients+classifier"
RATE = 0.005
"""The default of ``fedbasis personalize``."""


@dataclass(frozen=True, kw_only=True)
class EdgeBundle:
    """What was written.

    Args:
        folder: The published folder.
        sizes: Bytes of every file.
        errors: The largest relative differences from torch in float64.
        memory: Bytes that a training step needs, without the runtime.
        batch: Images of that step.
    """

    folder: Path
    sizes: dict[str, int]
    errors: Errors
    memory: int
    batch: int


def export_edge(
    bases: Path,
    *,
    statistics: Statistics | None = None,
    overwrite: bool = False,
    trust: bool = False,
    network: NetworkSource | None = None,
) -> EdgeBundle:
    """Write the graphs of a new client beside published bases.

    Args:
        bases: The artifact, or a run folder that holds one.
        statistics: The new client's normalization statistics; None: as ``fedbasis personalize`` has them.
        overwrite: Whether graphs that are there already are replaced.
        trust: Whether code that the folder names may be run.
        network: Your own network, in place of the one that the card names.
    """
    folder = bases_at(bases)
    onnx()  # before anything takes time
    card, state = artifact.load(folder, "bases", trust, network)
    method = method_of(card, network)
    require_fit(method, state, str(folder))
    require_coefficients(method, state)
    assert isinstance(method, FedBasis)
    there = [name for name in FILES if (folder / name).exists()]
    if there and not overwrite:
        raise InputError(
            f"The output {folder / there[0]} must not exist yet, but it does; replace it with --overwrite."
        )
    graphs = NewClientGraphs(method, statistics or default_statistics(method, WAY))
    captured = _captured(graphs)
    models = {name: one.translated(graphs, folder, groups_of(state)) for name, one in captured.items()}
    models[SKELETON] = skeleton(method.task.network)
    describe(models[SKELETON], model_metadata(card))
    files = {name: model.SerializeToString(deterministic=True) for name, model in models.items()}
    errors = verify(graphs, state, files, folder)
    batch = Adaptation().batch
    memory = peak_bytes(captured[STEP].graph, batch) + 2 * _bytes_of(graphs)
    about = _about(graphs, card, state, memory)
    if overwrite:
        for name in there:  # edge.json first: while it is missing there is no bundle
            (folder / name).unlink(missing_ok=True)
    for name, data in files.items():
        with replacing(folder / name) as temporary:
            temporary.write_bytes(data)
    names = (artifact.CARD, artifact.TENSORS, *sorted(files))
    about["files"] = {name: sha256_of(folder / name) for name in names}
    write_json(folder / ABOUT, about)
    sizes = {name: (folder / name).stat().st_size for name in (*sorted(files), ABOUT)}
    return EdgeBundle(folder=folder, sizes=sizes, errors=errors, memory=memory, batch=batch)


def require_coefficients(method: Method, state: State) -> None:
    """Raise an ``InputError`` unless a new client of a method learns coefficients of published bases."""
    if not isinstance(method, FedBasis):
        raise InputError(
            "The edge export is for methods whose new client learns coefficients of bases, but "
            f"{method.about.title} has none; export a personal model with --to onnx instead."
        )
    if not method.insight.ready(state):
        raise InputError("The edge export needs bases, but the training stopped within the warm start; train on.")


def state_of(graphs: NewClientGraphs) -> dict[str, Tensor]:
    """Return the initial state of a new client; statistics are zeros, which it measures itself."""
    layout = graphs.method.task.layout
    psi = torch.zeros(len(graphs.blocks), graphs.method.config.bases)
    offset = torch.zeros(layout.size(graphs.classifier, True))
    state = {"psi": psi, "first": psi.clone()}
    if graphs.optimizer == "adam":
        state |= {"second": psi.clone(), "steps": torch.zeros(())}
    state |= {"offset": offset, "velocity": offset.clone()}
    if graphs.has_statistics and graphs.statistics != "frozen":
        state["statistics"] = torch.zeros(sum(graphs.statistics_sizes))
    return state


@dataclass(frozen=True)
class CapturedGraph:
    """A captured function with the names of its inputs and outputs."""

    graph: fx.GraphModule
    inputs: Sequence[str]
    outputs: Sequence[str]
    name: str

    def translated(self, graphs: NewClientGraphs, folder: Path, groups: Sequence[str]) -> Any:
        """Return the ONNX model, whose bases are in the published file."""
        matrices = _matrices(graphs)
        names = [*(name for name, _ in matrices), *self.inputs]
        model = translate(self.graph, names, self.outputs, self.name, [name in ("pixels", "labels") for name in names])
        point_into(model, folder, matrices, groups)
        return model


def _captured(graphs: NewClientGraphs) -> dict[str, CapturedGraph]:
    state = state_of(graphs)
    task, how = graphs.method.task, graphs.method.task.recipe.preprocessing
    pixels = torch.zeros(BATCH, *sides(how.resolution), task.network.channels, dtype=torch.uint8)
    labels, rates = torch.zeros(BATCH, dtype=torch.int64), torch.zeros(3)
    weight = {"weight": torch.zeros(())} if graphs.has_statistics and graphs.statistics == "shrunk" else {}
    model = {name: value for name, value in state.items() if name in ("psi", "offset", "statistics")}
    made = {
        STEP: _capture(graphs, graphs.step, {**state, **weight, "pixels": pixels, "labels": labels, "rates": rates}),
        APPLY: _capture(graphs, graphs.apply, {**model, **weight, "pixels": pixels}),
        COMBINE: _capture(graphs, graphs.combine, {**_used(graphs, model), **weight}),
    }
    if "statistics" in state:
        made[MEASURE] = _capture(graphs, graphs.measure, {"pixels": pixels})
    return made


def _used(graphs: NewClientGraphs, model: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what the weights of a model depend on; a client's own statistics are part of the model as they are."""
    return {name: value for name, value in model.items() if name != "statistics" or graphs.combines_statistics}


def _capture(
    graphs: NewClientGraphs, function: Callable[..., dict[str, Tensor]], values: dict[str, Tensor]
) -> CapturedGraph:
    rows, names, outputs = graphs.method.config.bases + graphs.method.config.major, list(values), list[str]()
    bases = [torch.zeros(rows, sum(e.stop - e.start for e in entries)) for _, entries in _matrices(graphs)]

    def listed(bases: Sequence[Tensor], *given: Tensor) -> list[Tensor]:
        made = function(bases, dict(zip(names, given, strict=True)))
        outputs[:] = made
        return list(made.values())

    graph = capture(listed, [bases, *values.values()], [False, *(name in ("pixels", "labels") for name in names)])
    return CapturedGraph(graph, names, outputs, function.__name__)


def _matrices(graphs: NewClientGraphs) -> list[tuple[str, list[Any]]]:
    """Return the matrices that the functions take as ``bases``, with the tensors of their rows."""
    made = [(f"bases_{block}", graphs.entries(block, True)) for block in graphs.blocks]
    if graphs.combines_statistics:
        made += [(f"statistics_{b}", graphs.entries(b, False)) for b in graphs.blocks if graphs.statistics_sizes[b]]
    return made


def _bytes_of(graphs: NewClientGraphs) -> int:
    rows = graphs.method.config.bases + graphs.method.config.major
    return 4 * rows * sum(shape.numel() for shape in graphs.method.task.layout.shapes.values())


def _about(graphs: NewClientGraphs, card: artifact.Card, state: State, memory: int) -> dict[str, Any]:
    task, plan = graphs.method.task, Adaptation(rate=RATE)
    module = task.network.build()
    constants = {name: b for name, b in module.named_buffers() if not b.is_floating_point()}
    bias = f"{task.classifier}.bias"
    shrunk = {"prior_images": plan.prior_images} if graphs.statistics == "shrunk" else {}
    rates = [graphs.method.config.new_client_factor * plan.rate, plan.rate, plan.decay]
    metadata = model_metadata(card)
    return {
        "format": FORMAT,
        **{key: metadata[key] for key in ("classes", "resolution", "input", "channels", "mean", "std")},
        "groups": groups_of(state),
        "major": graphs.method.config.major,
        "statistics": graphs.statistics,
        **shrunk,
        "blocks": list(task.layout.blocks),
        "classifier": graphs.classifier,
        "entries": [
            {"name": e.name, "shape": list(e.shape), "block": e.block, "trained": e.trained}
            for e in task.layout.entries
        ],
        "constants": {
            name: {"dtype": "I64", "shape": list(value.shape), "value": value.tolist()}
            for name, value in constants.items()
            if value.dtype == torch.int64
        },
        "state": {name: list(value.shape) for name, value in state_of(graphs).items()},
        "optimizer": graphs.optimizer,
        "way": WAY,
        "prior": {"entry": bias, "count": PSEUDO_COUNT} if bias in task.parameters else None,
        "training": {
            "epochs": plan.epochs,
            "batch": plan.batch,
            "rates": rates,
            "momentum": MOMENTUM,
            "augmentation": {"name": task.recipe.augment},
        },
        "memory": memory,
        "versions": {
            "fedbasis": __version__,
            "torch": torch.__version__,
            "onnx": onnx().__version__,
            "python": ".".join(map(str, sys.version_info[:2])),
        },
    }
