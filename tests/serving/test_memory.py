"""Memory is asked for before it is taken: the estimate against a real forward pass, and the refusal."""

import pytest
import torch
from torch import Tensor, nn

from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.networks.train import MAX_PIXELS, forward
from fedbasis.serving import memory
from fedbasis.serving.memory import activations, require_memory
from pflbed.errors import InputError


@pytest.mark.parametrize("network", [Network("cnn-small", 5, 28, {"norm": "group"}), Network("resnet10", 5, (24, 32))])
def test_activations_are_those_of_a_real_pass(network: Network) -> None:
    module, sizes = network.build().eval(), list[int]()
    for layer in module.modules():
        if not list(layer.children()):
            layer.register_forward_hook(lambda layer, given, made: sizes.append(made.numel()))
    module(torch.zeros(1, *network.input_shape))
    assert activations(network) == sum(sizes) > 0


def test_a_large_resolution_is_refused_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: 8 * 10**9)
    require_memory(Network("resnet10", 5, 64), 1000, 16)
    require_memory(Network("resnet10", 5, 1024), 100, 1)
    with pytest.raises(InputError, match=r"needs .* GB of memory or more, but this machine has 8 GB; use a smaller"):
        require_memory(Network("resnet10", 5, 1024), 100, 64)
    with pytest.raises(InputError, match="fewer images"):
        require_memory(Network("resnet10", 5, 1024), 10_000, 1)
    require_memory(Network("my:Net", 5, 1024), 100, 64)  # a user's own code is not asked


def test_large_images_are_predicted_a_few_at_once() -> None:
    seen: list[int] = []

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            seen.append(len(x))
            return x.mean((2, 3)) * self.scale

    side = 1024
    pixels = torch.zeros(6, side, side, 3, dtype=torch.uint8)
    assert forward(Mean(), pixels, Preprocessing(side)).shape == (6, 3)
    assert seen == [MAX_PIXELS // side**2, 2] == [4, 2]
