"""The server's closed forms."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedbasis.methods.fedbasis import coefficients
from fedbasis.methods.fedbasis.aggregation import BasisMean
from fedbasis.methods.fedbasis.learning import (
    LocalWork,
    train_factored,
)
from fedbasis.methods.fedbasis.upload import Upload
from fedbasis.networks.batches import Recipe
from fedbasis.networks.models import Network
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.seeding import torch_generator
from methods.helpers.bases import make_bases
from shapes import shapes_examples


@pytest.mark.parametrize("by_usage", [False, True])
@pytest.mark.parametrize("major", [False, True])
@pytest.mark.parametrize("factored", [False, True])
def test_the_mean_is_that_of_the_rebuilt_bases(tiny: Network, by_usage: bool, major: bool, factored: bool) -> None:
    """Against the formula, one basis of one client after the other, in float64."""
    module = tiny.build()
    layout = tiny.layout(module)
    bases = make_bases(module, layout, 3, major, torch.float32)
    clients, weights = range(4), [3.0, 1.0, 2.0, 5.0]
    generator = torch_generator("clients")
    mean, parts = BasisMean(bases, by_usage), []
    for client in clients:
        alpha = torch.softmax(3 * torch.randn(len(layout.blocks), 3, generator=generator), dim=1)
        a = torch.rand(len(layout.blocks), generator=generator, dtype=torch.float64)
        model = bases.merge(coefficients.combination(alpha, major))
        model = {name: t + 0.1 * torch.randn(t.shape, generator=generator) for name, t in model.items()}
        upload = Upload(model, alpha, a)
        mean.add(upload.factored() if factored else upload.full(bases, by_usage), weights[client], "c")
        parts.append((alpha.double(), a, layout.flatten(model)))
    after = mean.result()
    for block, old in enumerate(bases.weights):
        v = old.double()
        sums, shares = torch.zeros_like(v), torch.zeros(len(v), dtype=torch.float64)
        for weight, (alpha, a, ends) in zip(weights, parts, strict=True):
            c = coefficients.combination(alpha, major)[block]
            u = (ends[block].double() - a[block] * sum(c[k] * v[k] for k in range(len(v)))) / c.square().sum()
            for k in range(len(v)):
                chosen = 1.0 if major and k == 0 else float(alpha[block][k - major])
                share = chosen if by_usage else 1.0
                sums[k] += weight * (share * a[block] * v[k] + c[k] * u)
                shares[k] += weight * share
        torch.testing.assert_close(after.weights[block].double(), sums / shares.unsqueeze(1), rtol=2e-6, atol=2e-6)


def test_unused_basis_keeps_its_weights_and_statistics(tiny: Network, recipe: Recipe) -> None:
    module = tiny.build()
    layout = tiny.layout(module)
    bases = make_bases(module, layout, 2, True, torch.float32)
    model = FlatModel(module, layout)
    weights = torch.tensor([[1.0, 0.0]] * len(layout.blocks))
    c = coefficients.combination(weights, True)
    bases.combine_into(c, model)
    _, a = train_factored(
        LocalWork(model, shapes_examples(16), replace(recipe, decay=0.0)), c, torch_generator("o"), False
    )
    mean = BasisMean(bases, by_usage=True)
    mean.add(Upload(model.tensors(), weights, a).factored(), 1.0, "only")
    after = mean.result()
    for block in range(len(layout.blocks)):
        assert torch.equal(after.weights[block][2], bases.weights[block][2])
        assert torch.equal(after.statistics[block][2], bases.statistics[block][2])
        assert torch.allclose(after.statistics[block][1], model.statistics[block])
        # a one-hot client with a major basis and no decay: both rows move exactly as the client's model did
        theta = torch.mv(bases.weights[block].t(), torch.tensor([0.5, 0.5, 0.0]))
        for row in (0, 1):
            moved = after.weights[block][row] - bases.weights[block][row]
            torch.testing.assert_close(moved, model.weights[block] - theta, rtol=1e-4, atol=1e-5)


def test_usage_aggregation_moves_a_basis_by_the_mean_of_its_own_clients(tiny: Network, recipe: Recipe) -> None:
    """Two clients choose basis 0, one chooses basis 1: the closed form is clustered averaging."""
    module = tiny.build()
    layout = tiny.layout(module)
    bases = make_bases(module, layout, 2, False, torch.float32)
    model = FlatModel(module, layout)
    plain = replace(recipe, decay=0.0)
    mean = BasisMean(bases, by_usage=True)
    ends: dict[int, list[list[Tensor]]] = {0: [], 1: []}
    for client, chosen in enumerate((0, 0, 1)):
        weights = torch.eye(2)[[chosen] * len(layout.blocks)]
        data = shapes_examples(16, seed=client)
        bases.combine_into(weights, model)
        _, a = train_factored(LocalWork(model, data, plain), weights, torch_generator(client), False)
        mean.add(Upload(model.tensors(), weights, a).factored(), 1.0, "c")
        ends[chosen].append([flat.clone() for flat in model.weights])
    after = mean.result()
    for block in range(len(layout.blocks)):
        for k in (0, 1):
            wanted = torch.stack([end[block] for end in ends[k]]).mean(0)
            torch.testing.assert_close(after.weights[block][k], wanted, rtol=1e-5, atol=1e-6)
