"""Per-FedAvg with Hessian products against exact derivatives; its steps are in test_per_fedavg."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedbasis.methods.per_fedavg import PerFedAvg
from fedbasis.tensors.params import Tensors
from methods.helpers.quadratic import PLAIN, SMOOTH, make
from shapes import shapes_examples


@pytest.mark.parametrize("chain", [True, False])
def test_hf_is_the_exact_derivative_of_the_meta_objective(chain: bool) -> None:
    """For D'' = D autograd through the inner step (``chain``), else the Hessian by double backward.

    Both go through the batch normalization; the difference of gradients is off by the square of delta.
    """
    a, network = 0.3, SMOOTH
    module = network.build()
    buffers = dict(module.named_buffers())
    start = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
    sets = [shapes_examples(6, seed % 2, seed=seed) for seed in range(3)]
    one, two, three = ((PLAIN.preprocessing(d.pixels, torch.float64), d.labels) for d in sets)
    three = one if chain else three

    def loss(w: Tensors, batch: tuple[Tensor, Tensor]) -> Tensor:
        copies = {name: buffer.clone() for name, buffer in buffers.items()}
        return nn.functional.cross_entropy(functional_call(module, {**w, **copies}, (batch[0],)), batch[1])

    def slopes(value: Tensor, at: Tensors) -> tuple[Tensor, ...]:
        return torch.autograd.grad(value, list(at.values()), create_graph=True)

    inner = {n: p - a * g for (n, p), g in zip(start.items(), slopes(loss(start, one), start), strict=True)}
    v = slopes(loss(inner, two), inner)
    if chain:
        wanted = slopes(loss(inner, two), start)
    else:
        dots = [(g * u.detach()).sum() for g, u in zip(slopes(loss(start, three), start), v, strict=True)]
        products = slopes(torch.stack(dots).sum(), start)
        wanted = tuple(u - a * h for u, h in zip(v, products, strict=True))
    exact, first_order = (torch.cat([t.detach().reshape(-1) for t in parts]) for parts in (wanted, v))
    assert float((exact - first_order).norm() / exact.norm()) > 0.05
    for delta, tolerance in ((1e-2, 1e-2), (1e-3, 1e-4), (1e-4, 1e-6)):
        method, model = make("per-fedavg-hf", network, PLAIN, inner_rate=a, delta=delta), network.workspace()
        assert isinstance(method, PerFedAvg)
        method.meta_gradient(model, [one, two, three])
        got = torch.cat([p.grad.reshape(-1) for p in model.module.parameters() if p.grad is not None])
        assert float((got - exact).norm() / exact.norm()) < tolerance
