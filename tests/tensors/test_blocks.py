"""Which parameter belongs to which block."""

import pytest
import torch
from torch import nn

from fedbasis.networks.models import Network
from fedbasis.tensors.blocks import layout_of
from pflbed.errors import InputError


def test_resnet_blocks_and_torchvision_names() -> None:
    network = Network("resnet18", 7, 32)
    layout = network.layout(network.build())
    assert layout.blocks == ("layer1", "layer2", "layer3", "layer4", "fc")
    by_name = {entry.name: layout.blocks[entry.block] for entry in layout.entries}
    assert by_name["conv1.weight"] == by_name["bn1.running_var"] == "layer1"
    assert by_name["layer2.0.downsample.0.weight"] == "layer2"
    assert "bn1.num_batches_tracked" not in by_name
    assert sum(t.numel() for t in network.build().parameters()) == 11_180_103  # torchvision's, with 7 classes


def test_any_module_works() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))
            self.norm = nn.BatchNorm1d(4, affine=False)
            self.body = nn.Linear(3, 4)
            self.act = nn.ReLU()
            self.head = nn.Linear(4, 2)

    layout = layout_of(Odd())
    assert layout.blocks == ("body", "head")
    assert {e.name: layout.blocks[e.block] for e in layout.entries}["scale"] == "body"
    assert layout_of(Odd(), 1).blocks == ("network",)
    mapped = layout_of(Odd(), {"all": ["scale", "body"], "top": ["head"]})
    assert mapped.block_of("head") == 1
    assert layout_of(nn.Linear(2, 2)).blocks == ("network",)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (2, "must be 1"),
        ({"a": ["0"]}, "no block's prefixes cover '2.weight'"),
        ({"a": ["0", "2"], "b": ["9"]}, "'b'"),
    ],
)
def test_wrong_blocks_are_explained(spec: object, words: str) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with pytest.raises(InputError, match=words):
        layout_of(module, spec)  # type: ignore[arg-type]


def test_flatten_and_unflatten_are_inverse(tiny: Network) -> None:
    layout, tensors = tiny.layout(tiny.build()), tiny.initial(1)
    back = layout.unflatten(layout.flatten(tensors, True), layout.flatten(tensors, False))
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
