"""The networks: sizes, seeds, options, and one's own."""

import pytest
import torch
from torch import nn

from fedbasis.networks.models import Network, classifier_of
from pflbed.errors import InputError


def test_resnet10_matches_its_published_size() -> None:
    assert sum(t.numel() for t in Network("resnet10", 7, 32).build().parameters()) == 308_439


def test_seeded_and_leaves_the_global_generator(tiny: Network) -> None:
    before = torch.random.get_rng_state()
    one, same, other = tiny.initial(1), tiny.initial(1), tiny.initial(2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(one[n], same[n]) for n in one)
    assert any(not torch.equal(one[n], other[n]) for n in one)


def test_own_factory() -> None:
    module = Network("torch.nn:Linear", 3, 12, {"in_features": 2, "out_features": 3})
    with pytest.raises(InputError, match="does not take these options"):
        module.build()
    with pytest.raises(InputError, match="cannot be imported"):
        Network("no.such:thing", 3, 12).build()
    with pytest.raises(InputError, match="must be one of"):
        Network("resnet", 3, 12).build()
    with pytest.raises(InputError, match="'norm' must be"):
        Network("cnn-small", 3, 12, {"norm": "layer"}).build()


def test_classifier_is_the_last_linear_layer() -> None:
    assert classifier_of(Network("cnn", 3, 12).build()) == "fc"
    with pytest.raises(InputError, match="no linear layer"):
        classifier_of(nn.Conv2d(3, 3, 1))


@pytest.mark.parametrize("name", ["resnet18", "resnet10", "cnn", "cnn-small"])
def test_all_networks_run(name: str) -> None:
    network = Network(name, 5, 32)
    assert network.build().eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 5)
