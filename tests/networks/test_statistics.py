"""Normalization statistics of a new client, against plain formulas."""

import pytest
import torch
from torch import nn

from fedbasis.networks import statistics
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.networks.statistics import has_statistics, statistics_of, with_statistics
from fedbasis.tensors.flat import FlatModel
from shapes import shapes_examples

PIXELS = Preprocessing(12)


def model(norm: str = "batch") -> FlatModel:
    network = Network("cnn-small", 3, 12, {"norm": norm})
    workspace = network.workspace()
    workspace.load(network.initial(3))
    return workspace


def by_hand(module: nn.Module, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Run a network layer by layer in float64, and normalize every BatchNorm's input by its own moments."""
    found, x = {}, inputs.double()
    leaves = {name: layer for name, layer in module.named_modules() if not list(layer.children())}
    for name, layer in leaves.items():
        if isinstance(layer, nn.BatchNorm2d):
            found[f"{name}.running_mean"] = x.mean((0, 2, 3))
            found[f"{name}.running_var"] = x.var((0, 2, 3), correction=1)
            variance = x.var((0, 2, 3), correction=0)
            x = (x - x.mean((0, 2, 3))[:, None, None]) / (variance + layer.eps).sqrt()[:, None, None]
            x = x * layer.weight.double()[:, None, None] + layer.bias.double()[:, None, None]
        else:
            x = layer.double()(x)
    return found


def test_they_are_the_moments_of_every_layers_inputs() -> None:
    working, data = model(), shapes_examples(14)
    before = working.tensors()
    found = statistics_of(working, data, PIXELS)
    assert all(torch.equal(before[name], tensor) for name, tensor in working.tensors().items())
    with torch.no_grad():
        expected = by_hand(model().module, PIXELS(data.pixels))
    assert found.keys() == expected.keys()
    assert found
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name].double(), tensor, rtol=1e-4, atol=1e-5)


def test_many_images_are_a_mean_over_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = shapes_examples(12)
    monkeypatch.setattr(statistics, "PASS", 6)
    found = statistics_of(model(), data, PIXELS)
    with torch.no_grad():
        parts = [by_hand(model().module, PIXELS(data.pixels[rows])) for rows in (slice(0, 6), slice(6, 12))]
    for name, tensor in found.items():
        expected = (parts[0][name] + parts[1][name]) / 2
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_single_image_and_other_normalizations_change_nothing() -> None:
    working = model()
    for name, tensor in statistics_of(working, shapes_examples(1), PIXELS).items():
        assert torch.equal(tensor, working.tensors()[name])
    assert has_statistics(working.module)
    for norm in ("group", "none"):
        other = model(norm)
        assert not has_statistics(other.module)
        assert statistics_of(other, shapes_examples(8), PIXELS) == {}


def test_a_state_is_moved_by_the_weight_in_all_of_its_models() -> None:
    own = {"bn.running_mean": torch.tensor([4.0, 8.0])}
    server = {
        "basis_0": {"bn.running_mean": torch.tensor([0.0, 0.0]), "fc.weight": torch.tensor([1.0])},
        "basis_1": {"bn.running_mean": torch.tensor([2.0, 2.0]), "fc.weight": torch.tensor([3.0])},
    }
    moved = with_statistics(server, own, 0.25)
    torch.testing.assert_close(moved["basis_0"]["bn.running_mean"], torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(moved["basis_1"]["bn.running_mean"], torch.tensor([2.5, 3.5]))
    assert all(moved[group]["fc.weight"] is server[group]["fc.weight"] for group in server)
    replaced = with_statistics(server, own, 1.0)
    assert all(torch.equal(replaced[group]["bn.running_mean"], own["bn.running_mean"]) for group in server)
