"""A flat model is the module."""

import torch

from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.tensors.blocks import layout_of
from fedbasis.tensors.flat import FlatModel
from shapes import shapes_examples


def test_flat_model_is_the_module(tiny: Network) -> None:
    module = tiny.build(3)
    flat = FlatModel(module, layout_of(module))
    inputs = Preprocessing(12)(shapes_examples(6).pixels)
    flat.zero_gradients()
    torch.testing.assert_close(flat.module(inputs), module(inputs))
    loss = flat.module(inputs).square().mean()
    loss.backward()
    module(inputs).square().mean().backward()
    grads = torch.cat(flat.gradients)
    wanted = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
    assert grads.shape == wanted.shape
    assert grads.norm() > 0
    state = flat.tensors()
    flat.weights[0].zero_()
    assert any(bool((p == 0).all()) for p in flat.module.parameters())
    flat.load(state)
    torch.testing.assert_close(
        dict(flat.module.named_parameters()), {n: state[n] for n, _ in module.named_parameters()}
    )
