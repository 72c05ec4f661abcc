"""Personal models as ONNX files and as folders of Transformers.js."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbasis.edge.model import export_onnx, export_transformers
from fedbasis.edge.packages import onnx, session
from fedbasis.networks.models import Network
from fedbasis.serving import artifact
from fedbasis.serving.new_client import LEARNED
from pflbed.errors import InputError
from serving.artifacts import CLASSES, card_of


@pytest.fixture
def model(tmp_path: Path, tiny: Network) -> Path:
    state = {"": artifact.whole_model(tiny, tiny.initial(0))}
    artifact.save(tmp_path / "model", state, card_of(tiny, kind="model", settings={}))
    return tmp_path / "model"


def test_an_onnx_file_predicts_as_torch_and_says_what_it_is(model: Path, tmp_path: Path) -> None:
    assert export_onnx(model, tmp_path / "my.onnx") < 1e-5
    read = onnx().load(tmp_path / "my.onnx")
    about = {one.key: json.loads(one.value) for one in read.metadata_props}
    assert about["classes"] == CLASSES
    assert (about["resolution"], about["input"], about["channels"]) == ([12, 12], [12, 12], 3)
    assert len(about["mean"]) == len(about["std"]) == 3
    graph = session(tmp_path / "my.onnx")
    assert [(one.name, one.shape) for one in graph.get_inputs()] == [("images", ["batch", 3, 12, 12])]
    _, module = artifact.load_module(model)
    for count in (1, 2, 7):
        images = np.random.default_rng(count).normal(size=(count, 3, 12, 12)).astype(np.float32)
        with torch.no_grad():
            expected = module(torch.from_numpy(images)).numpy()
        assert np.allclose(graph.run(["logits"], {"images": images})[0], expected, atol=1e-4)
    with pytest.raises(InputError, match="must not exist yet"):
        export_onnx(model, tmp_path / "my.onnx")
    before = (tmp_path / "my.onnx").read_bytes()
    export_onnx(model, tmp_path / "my.onnx", overwrite=True)
    assert (tmp_path / "my.onnx").read_bytes() == before


def test_a_folder_for_transformers(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "web"
    export_transformers(model, out)
    config, pixels = (json.loads((out / f"{name}.json").read_text()) for name in ("config", "preprocessor_config"))
    assert config["id2label"] == {"0": "circle", "1": "cross", "2": "square"}
    assert config["label2id"]["square"] == 2
    assert pixels["crop_size"] == {"height": 12, "width": 12}
    assert pixels["size"] == {"shortest_edge": 12}
    graph = session(out / "onnx" / "model.onnx")
    assert [one.name for one in graph.get_inputs()] == ["pixel_values"]
    with pytest.raises(InputError, match="must not exist yet"):
        export_transformers(model, out)
    (out / "old").touch()
    export_transformers(model, out, overwrite=True)
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "onnx", "preprocessor_config.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "web"]


def test_models_that_cannot_be_exported(model: Path, tmp_path: Path, tiny: Network) -> None:
    def saved(state: Any, network: Network = tiny, **changes: Any) -> Path:
        artifact.save(tmp_path / "other", state, card_of(network, kind="model", **changes), overwrite=True)
        return tmp_path / "other"

    gray = Network("cnn-small", 3, 12, channels=1)
    pixels = {"resolution": 12, "mean": (0.4,), "std": (0.2,)}
    path = saved({"": artifact.whole_model(gray, gray.initial(0))}, gray, settings={}, preprocessing=pixels)
    with pytest.raises(InputError, match="takes 1; use --to onnx"):
        export_transformers(path, tmp_path / "web")
    whole = {"": artifact.whole_model(tiny, tiny.initial(0)), LEARNED: {"keys": torch.zeros(2)}}
    with pytest.raises(InputError, match="needs more than that; use 'fedbasis predict'"):
        export_onnx(saved(whole, method="knn-per", settings={}), tmp_path / "my.onnx")
    assert not (tmp_path / "my.onnx").exists()
    assert not (tmp_path / "web").exists()
