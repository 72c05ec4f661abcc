"""Bases that are read where they were received combine and differentiate as stacked ones do, wherever they are."""

import pytest
import torch
from torch import Tensor, nn

from fedbasis.methods.fedbasis import coefficients
from fedbasis.methods.fedbasis.received import CHUNK, ReceivedBases
from fedbasis.tensors.blocks import Layout, layout_of
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import Tensors
from fedbasis.tensors.seeding import torch_generator
from pflbed.errors import InputError


def network() -> nn.Module:
    """Tensors of one chunk and a little, of several chunks, of exactly one, and small ones between them."""
    return nn.Sequential(
        nn.Sequential(nn.Linear(7, 9), nn.Linear(3, CHUNK // 3 + 1), nn.BatchNorm1d(5), nn.Linear(2**9 + 1, 2**9)),
        nn.Linear(4, 5),
        nn.Linear(2**8, 2**8, bias=False),
    )


def drawn(layout: Layout, rows: int, dtype: torch.dtype = torch.float32) -> list[Tensors]:
    """Bases that are nearly parallel, as trained ones are."""
    generator = torch_generator("bases", rows)

    def numbers(shape: torch.Size) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    common = {name: numbers(shape) for name, shape in layout.shapes.items()}
    return [{name: (t + 0.1 * numbers(t.shape)).to(dtype) for name, t in common.items()} for _ in range(rows)]


def moved(model: Tensors, offset: int) -> Tensors:
    """Copy tensors to other places in memory, not aligned as torch aligns them."""
    copies = {}
    for name, tensor in model.items():
        place = tensor.new_empty(tensor.numel() + offset)[offset:].view(tensor.shape)
        copies[name] = place.copy_(tensor)
    return copies


def convex(layout: Layout, rows: int, major: bool) -> Tensor:
    psi = torch.randn(len(layout.blocks), rows - major, generator=torch_generator("psi"))
    return coefficients.combination(coefficients.alpha(psi), major)


@pytest.mark.parametrize("major", [True, False])
@pytest.mark.parametrize("rows", [2, 5])
def test_they_combine_and_differentiate_as_naive_sums_in_float64_do(rows: int, major: bool) -> None:
    layout = layout_of(network())
    models, c, model = drawn(layout, rows), convex(layout, rows, major), FlatModel(network(), layout)
    bases = ReceivedBases(layout, models, major)
    bases.combine_into(c, model)
    generator = torch_generator("gradient")
    for gradient in model.gradients:
        gradient.copy_(torch.randn(gradient.shape, generator=generator))
    exact, got = c.double(), model.tensors()
    found = bases.pull_back(model.gradients).double()
    wanted, sizes = torch.zeros_like(found), torch.zeros_like(found)
    slopes = layout.unflatten(model.gradients, model.statistics)
    for entry in layout.entries:
        values = [one[entry.name].double() for one in models]
        naive = sum(exact[entry.block, i] * value for i, value in enumerate(values))
        torch.testing.assert_close(got[entry.name].double(), naive, rtol=1e-6, atol=1e-6)
        if entry.trained:
            products = [value * slopes[entry.name].double() for value in values]
            wanted[entry.block] += torch.stack([product.sum() for product in products])
            sizes[entry.block] += torch.stack([product.abs().sum() for product in products])
    wanted[:, : int(major)] = 0  # the coefficient of the major basis is not learned
    # The terms cancel, and how a processor orders a sum decides its rounding: measure errors by the terms' sizes.
    assert ((found - wanted).abs() <= 2e-7 * sizes).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_bit_depends_on_where_they_are(dtype: torch.dtype) -> None:
    layout = layout_of(network())
    models, c = drawn(layout, 5, dtype), convex(layout, 5, True).to(dtype)
    gradients = [torch.randn(layout.size(b, True), dtype=dtype) for b in range(len(layout.blocks))]
    results = []
    for offset in (0, 1, 3, 8):
        bases = ReceivedBases(layout, [moved(model, offset) for model in models], True)
        results.append([*bases.combined(c), bases.pull_back(gradients)])
    stacked = ReceivedBases(layout, ReceivedBases(layout, models, True).stacked().views(), True)
    results.append([*stacked.combined(c), stacked.pull_back(gradients)])
    for other in results[1:]:
        assert all(torch.equal(one, same) for one, same in zip(results[0], other, strict=True))


def test_small_tensors_give_the_bits_of_stacked_bases() -> None:
    module = nn.Sequential(nn.Linear(30, 20), nn.BatchNorm1d(20), nn.Linear(20, 3))
    layout = layout_of(module)
    bases, c = ReceivedBases(layout, drawn(layout, 5), True), convex(layout, 5, True)
    gradients = [torch.randn(layout.size(b, True)) for b in range(len(layout.blocks))]
    one, other = FlatModel(module, layout), FlatModel(module, layout)
    bases.combine_into(c, one)
    bases.stacked().combine_into(c, other)
    assert all(torch.equal(t, other.tensors()[name]) for name, t in one.tensors().items())
    assert torch.equal(bases.pull_back(gradients)[:, 1:], bases.stacked().pull_back(gradients)[:, 1:])


def test_large_tensors_are_not_copied() -> None:
    layout = layout_of(network())
    models = drawn(layout, 3)
    bases = ReceivedBases(layout, models, True)
    before = bases.combined(convex(layout, 3, True))
    for model in models:
        model["2.weight"] += 1
    after = bases.combined(convex(layout, 3, True))
    assert torch.equal(before[0], after[0])
    torch.testing.assert_close(after[2], before[2] + 1)


def test_a_basis_that_does_not_fit_is_named() -> None:
    layout = layout_of(network())
    models = drawn(layout, 3)
    models[1]["1.bias"] = torch.zeros(6)
    with pytest.raises(InputError, match="Basis 1 does not fit the network"):
        ReceivedBases(layout, models, True)
