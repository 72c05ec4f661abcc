"""Stored activations: the upper part continues exactly where the frozen blocks end."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from fedbasis.cli import app
from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import parse
from fedbasis.networks.activations import REACH, LowerBlocks, require_network, stored
from fedbasis.networks.efficientnet import EfficientNetLite0
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.tensors.files import load_weights, write_tensors
from pflbed.dataset import find
from pflbed.errors import InputError

FROZEN = 11


def lively(seed: int = 0, classes: int = 4) -> EfficientNetLite0:
    """A network whose normalization statistics fit random images, as those of a trained network fit photographs."""
    torch.manual_seed(seed)
    module = EfficientNetLite0(classes)
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None  # the plain mean over batches
            torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
            torch.nn.init.normal_(layer.bias, 0, 0.5)
    with torch.no_grad():
        for number in range(8):
            module(normalized(pixels(16, seed=100 + number)))
    return module.eval()


def pixels(count: int, side: int = 48, seed: int = 0) -> NDArray[np.uint8]:
    """Smooth random images."""
    small = np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return np.stack(
        [np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR)) for image in small]
    )


def normalized(images: NDArray[np.uint8]) -> Tensor:
    return Preprocessing.of(images.shape[1], 3)(torch.from_numpy(images.copy()))


@pytest.fixture(scope="module")
def whole() -> EfficientNetLite0:
    return lively()


@pytest.fixture(scope="module")
def weights(whole: EfficientNetLite0, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that 'fedbasis weights import' would write: all but the classifier and counters."""
    path = tmp_path_factory.mktemp("weights") / "net.safetensors"
    body = {name: t for name, t in whole.state_dict().items() if "_fc" not in name and "num_batches" not in name}
    write_tensors(path, {"": body})
    return path


def upper_part(whole: EfficientNetLite0, first: int, channels: int) -> EfficientNetLite0:
    part = EfficientNetLite0(4, channels, first_block=first).eval()
    part.load_state_dict({name: t for name, t in whole.state_dict().items() if name in part.state_dict()})
    return part


@pytest.mark.parametrize(("first", "channels"), [(1, 16), (5, 40), (8, 80), (11, 112), (15, 192)])
def test_the_upper_part_of_the_lower_part_is_the_whole_network(
    whole: EfficientNetLite0, first: int, channels: int
) -> None:
    part, inputs = upper_part(whole, first, channels).double(), normalized(pixels(3)).double()
    doubled = EfficientNetLite0(4).double().eval()
    doubled.load_state_dict(whole.state_dict())
    seen: list[Tensor] = []
    hook = doubled._blocks[str(first)].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        expected = doubled(inputs)
        hook.remove()
        activations = doubled.activations(inputs, first)
        torch.testing.assert_close(activations, seen[0], rtol=0, atol=0)
        torch.testing.assert_close(part(activations), expected, rtol=1e-12, atol=1e-12)


def test_bytes_are_activations_up_to_rounding_and_logits_stay(whole: EfficientNetLite0, weights: Path) -> None:
    lower = LowerBlocks.load("efficientnet-lite0", str(weights), FROZEN, 48)
    images = pixels(64, seed=5)
    bytes_, cut = stored(lower, images)
    assert bytes_.shape == (64, 3, 3, 112)
    assert cut < 1e-3
    by = lower.normalization
    with torch.no_grad():
        exact = whole.activations(normalized(images), FROZEN)
        again = Preprocessing(3, by.mean, by.std)(torch.from_numpy(bytes_))
        mean, deviation = whole.expected(FROZEN)
        inside = (exact - mean[:, None, None]).abs() < REACH * deviation[:, None, None]
        half_a_step = (REACH * deviation / 255)[:, None, None].expand_as(exact)
        assert ((again - exact).abs()[inside] <= 1.001 * half_a_step[inside]).all()
        logits, expected = upper_part(whole, FROZEN, 112)(again), whole(normalized(images))
    error = (logits - expected).pow(2).mean().sqrt() / expected.std()
    assert error < 0.05
    assert (logits.argmax(1) == expected.argmax(1)).float().mean() > 0.95


def test_the_range_follows_from_the_weights(whole: EfficientNetLite0) -> None:
    """Mean and deviation that the normalization layers announce are about those of the activations themselves."""
    with torch.no_grad():
        found = whole.activations(normalized(pixels(128, seed=9)), FROZEN)
        mean, deviation = whole.expected(FROZEN)
        _, alone = whole.expected(9)  # after a block without a shortcut it is that block's own
    assert ((found.mean((0, 2, 3)) - mean).abs() < 0.5 * deviation).all()
    assert ((found.std((0, 2, 3)) / deviation - 1).abs() < 0.5).all()
    torch.testing.assert_close(alone, whole.state_dict()["_blocks.8._bn2.weight"].abs())


def test_an_upper_part_has_the_same_names_and_blocks_of_its_own() -> None:
    network = Network("efficientnet-lite0", 7, 6, {"first_block": FROZEN}, channels=112)
    layout = network.layout(network.build())
    assert layout.blocks == ("stage4a", "stage4b", "stage4c", "fc")
    assert layout.block_of("_blocks.12") == 0
    assert layout.block_of("_blocks.13") == 1
    assert layout.block_of("_conv_head") == layout.block_of("_blocks.15") == 2
    assert set(layout.shapes) < set(EfficientNetLite0(7).state_dict())
    assert list(EfficientNetLite0(7, 40, first_block=5).blocks) == ["stage3", "stage4a", "stage4b", "stage4c", "fc"]
    network.check()
    with pytest.raises(InputError, match="must have 112 channels, got 3; use activations that were made with --blocks"):
        Network("efficientnet-lite0", 7, 6, {"first_block": FROZEN}).build()
    with pytest.raises(InputError, match="whole number from 0 to 15, got 16"):
        Network("efficientnet-lite0", 7, 6, {"first_block": 16}).build()


def test_only_the_frozen_part_of_the_weights_may_be_unused(weights: Path) -> None:
    network = Network("efficientnet-lite0", 7, 6, {"first_block": FROZEN}, channels=112)
    module = network.build()
    shapes = network.layout(module).shapes
    loaded = load_weights(weights, shapes, module.unused_weights)  # type: ignore[arg-type]
    assert set(shapes) - set(loaded) == {"_fc.weight", "_fc.bias"}
    with pytest.raises(InputError, match="tensors are none of its own"):
        load_weights(weights, shapes)
    other = Network("efficientnet-lite0", 7, 6, {"first_block": 15}, channels=192)
    fewer = other.layout(other.build()).shapes
    with pytest.raises(InputError, match=r"none of its own \('_blocks.11"):
        load_weights(weights, fewer, module.unused_weights)  # type: ignore[arg-type]


def test_the_network_must_continue_where_activations_end(weights: Path) -> None:
    lower = LowerBlocks.load("efficientnet-lite0", str(weights), FROZEN, 48)
    require_network(lower.about, "efficientnet-lite0", {"first_block": FROZEN}, str(weights), "x")
    require_network({}, "resnet10", {}, None, "x")
    with pytest.raises(InputError, match=r"before block 11 of efficientnet-lite0.*they are efficientnet-lite0 and 8"):
        require_network(lower.about, "efficientnet-lite0", {"first_block": 8}, None, "x")
    with pytest.raises(InputError, match="made with other weights than tiny-imagenet"):
        require_network(lower.about, "efficientnet-lite0", {"first_block": FROZEN}, "tiny-imagenet", "x")
    with pytest.raises(InputError, match="'resnet10' has none"):
        LowerBlocks.load("resnet10", str(weights), FROZEN, 48)
    with pytest.raises(InputError, match="from 1 to 15, but they are 16"):
        LowerBlocks.load("efficientnet-lite0", str(weights), 16, 48)


def test_the_command_stores_what_an_experiment_trains_on(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBASIS_CACHE", str(tmp_path / "cache"))
    images = pixels(80)
    for i, image in enumerate(images):
        path = tmp_path / "data" / ("art", "photo")[i % 2] / ("cat", "dog")[i // 2 % 2] / f"{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    out = tmp_path / "features"
    command = ["features", str(tmp_path / "data"), "--weights", str(weights), "--out", str(out), "--resolution", "48"]
    ended = CliRunner().invoke(app, command, catch_exceptions=False)
    assert ended.exit_code == 0
    assert "80 images, 3 x 3 x 112 bytes each" in ended.output
    with pytest.raises(InputError, match="must not exist yet"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    original, features = find(tmp_path / "data").checked()[0], find(out).checked()[0]
    for part in ("tuning", "tables"):
        assert features.part(part).table.paths == original.part(part).table.paths
    raw: dict[str, Any] = {
        "data": {
            "source": str(out), "dataset": "arrays", "resolution": 3, "channels": 112, "clients": 2, "new_clients": 1,
            "split": [50, 25, 10, 15],
        },
        "model": {"name": "efficientnet-lite0", "options": {"first_block": FROZEN}, "weights": str(weights)},
        "train": {"rounds": 1, "epochs": 1, "augment": "flip"},
        "personalize": {"ways": ["none", "lp"], "epochs": 1, "rates": [0.01]},
        "machine": {"engine": "serial"},
        "method": {"name": "fedavg"},
    }  # fmt: skip
    prepared = prepare(parse(raw))
    lower = LowerBlocks.load("efficientnet-lite0", str(weights), FROZEN, 48)
    assert prepared.method.task.recipe.preprocessing.mean == lower.normalization.mean
    run = execute(prepared, tmp_path / "runs")
    assert run.done
    wrong = {**raw, "model": {**raw["model"], "options": {}}}
    with pytest.raises(InputError, match="first_block must be these"):
        prepare(parse(wrong))
    with pytest.raises(InputError, match="use them as they are: resolution 3, channels 112"):
        prepare(parse({**raw, "data": {**raw["data"], "channels": 3}}))
