"""EfficientNet-Lite0: names and shapes as in the published file, and arithmetic as in a plain reference."""

import torch
from torch import Tensor
from torch.nn import functional

from fedbasis.networks.efficientnet import DEVIATION, MEAN, EfficientNetLite0
from fedbasis.networks.models import Network

DEPTHWISE = (  # channels, kernel and stride of every block, written down from the published file and the paper's table
    (32, 3, 1), (96, 3, 2), (144, 3, 1), (144, 5, 2), (240, 5, 1), (240, 3, 2), (480, 3, 1), (480, 3, 1), (480, 5, 1),
    (672, 5, 1), (672, 5, 1), (672, 5, 2), (1152, 5, 1), (1152, 5, 1), (1152, 5, 1), (1152, 3, 1),
)  # fmt: skip


def test_it_has_the_tensors_of_the_published_file() -> None:
    module = Network("efficientnet-lite0", 1000, 224).build()
    state = module.state_dict()
    assert len(state) == 296
    assert sum(p.numel() for p in module.parameters()) == 4_652_008
    for number, (channels, kernel, _) in enumerate(DEPTHWISE):
        assert state[f"_blocks.{number}._depthwise_conv.weight"].shape == (channels, 1, kernel, kernel)
    assert "_blocks.0._expand_conv.weight" not in state
    assert state["_blocks.15._project_conv.weight"].shape == (320, 1152, 1, 1)
    assert state["_conv_head.weight"].shape == (1280, 320, 1, 1)


def test_every_parameter_is_in_one_of_five_blocks() -> None:
    network = Network("efficientnet-lite0", 3, 32)
    layout = network.layout(network.build())
    assert list(layout.blocks) == ["stage1", "stage2", "stage3", "stage4", "fc"]
    assert layout.block_of("_blocks.1") == 0
    assert layout.block_of("_blocks.10") == 2
    assert layout.block_of("_blocks.15") == layout.block_of("_conv_head") == 3


def same_padded(x: Tensor, weight: Tensor, stride: int, groups: int = 1) -> Tensor:
    """Convolve an image that is embedded in zeros, as TensorFlow's SAME padding does."""
    kernel = weight.shape[-1]
    sizes = [-(-side // stride) for side in x.shape[2:]]
    total = [max((size - 1) * stride + kernel - side, 0) for size, side in zip(sizes, x.shape[2:], strict=True)]
    canvas = x.new_zeros(*x.shape[:2], x.shape[2] + total[0], x.shape[3] + total[1])
    top, left = total[0] // 2, total[1] // 2
    canvas[:, :, top : top + x.shape[2], left : left + x.shape[3]] = x
    return functional.conv2d(canvas, weight, stride=stride, groups=groups)


def test_the_logits_are_those_of_a_plain_reference_at_even_and_odd_sizes() -> None:
    module = EfficientNetLite0(4).double().eval()
    generator = torch.Generator().manual_seed(0)
    state = module.state_dict()
    for name, tensor in state.items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 1.5, generator=generator)
        elif name.endswith("running_mean"):
            tensor.normal_(0, 0.1, generator=generator)

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var, weight, bias = (
            state[f"{name}.{key}"][:, None, None] for key in ("running_mean", "running_var", "weight", "bias")
        )
        normalized: Tensor = (x - mean) / torch.sqrt(var + 1e-3) * weight + bias
        return normalized

    for height, width in ((40, 40), (33, 47)):
        pixels = torch.randint(0, 256, (2, 3, height, width), generator=generator).double()
        mean, deviation = (torch.tensor(row, dtype=torch.float64)[:, None, None] for row in (MEAN, DEVIATION))
        x = norm(same_padded((pixels - 127) / 128, state["_conv_stem.weight"], 2), "_bn0").clamp(0, 6)
        for number, (channels, _, stride) in enumerate(DEPTHWISE):
            block, before = f"_blocks.{number}", x
            if number:
                x = norm(same_padded(x, state[f"{block}._expand_conv.weight"], 1), f"{block}._bn0").clamp(0, 6)
            x = same_padded(x, state[f"{block}._depthwise_conv.weight"], stride, channels)
            x = same_padded(norm(x, f"{block}._bn1").clamp(0, 6), state[f"{block}._project_conv.weight"], 1)
            x = norm(x, f"{block}._bn2")
            x = x + before if x.shape == before.shape else x
        x = norm(same_padded(x, state["_conv_head.weight"], 1), "_bn1").clamp(0, 6).mean((2, 3))
        expected = functional.linear(x, state["_fc.weight"], state["_fc.bias"])
        with torch.no_grad():
            got = module((pixels / 255 - mean) / deviation)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
