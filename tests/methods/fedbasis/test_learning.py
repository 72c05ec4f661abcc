"""The factored basis step equals autograd through all K + 1 bases, and so do joint steps and those on coefficients."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedbasis.methods.fedbasis import coefficients
from fedbasis.methods.fedbasis.aggregation import BasisMean
from fedbasis.methods.fedbasis.bases import BasisSet, FactoredRates, rebuild
from fedbasis.methods.fedbasis.learning import (
    CoefficientSettings,
    CoefficientStatistics,
    LocalWork,
    learn_coefficients,
    train_bases,
    train_factored,
)
from fedbasis.methods.fedbasis.upload import Upload
from fedbasis.networks.batches import Recipe, batches
from fedbasis.networks.inputs import Examples, Preprocessing
from fedbasis.networks.models import Network
from fedbasis.tensors.blocks import layout_of
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import Tensors
from fedbasis.tensors.seeding import torch_generator
from methods.helpers.bases import make_bases, relative
from shapes import shapes_examples

STEPS = 50


def by_autograd(
    module: nn.Module, bases: BasisSet, c: Tensor, data: Examples, recipe: Recipe, rates: list[float]
) -> list[list[Tensor]]:
    """The naive reference: leaf tensors for every basis, torch builds the graph through the combination."""
    rows = bases.count + bases.major
    leaves = [[m[k].clone().requires_grad_() for m in bases.weights] for k in range(rows)]
    groups = [{"params": [row[block] for row in leaves], "lr": rate} for block, rate in enumerate(rates)]
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=recipe.momentum, weight_decay=recipe.decay)
    merged = bases.merge(c)
    trained = {entry.name for entry in bases.layout.select(True)}
    buffers = {name: t.clone() for name, t in merged.items() if name not in trained}
    constants = {n: b.clone() for n, b in module.named_buffers() if not b.is_floating_point()}
    generator = torch_generator("order")
    module.train()
    for _ in range(recipe.epochs):
        for chosen in batches(len(data), recipe.batch, generator):
            flats = [sum(c[b, k] * leaves[k][b] for k in range(rows)) for b in range(len(bases.weights))]
            named: Tensors = bases.layout.unflatten(flats, bases.layout.flatten(merged, False))  # type: ignore[arg-type]
            parameters = {name: tensor for name, tensor in named.items() if name in trained}
            inputs = recipe.preprocessing(data.pixels[chosen], c.dtype)
            logits = torch.func.functional_call(module, {**parameters, **buffers, **constants}, (inputs,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, data.labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return [[leaf.detach() for leaf in row] for row in leaves]


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("major", [True, False])
@pytest.mark.parametrize("per_model", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_factored_equals_naive_equals_full(
    norm: str, major: bool, per_model: bool, dtype: torch.dtype, tolerance: float
) -> None:
    data = shapes_examples(40)
    recipe = Recipe(preprocessing=Preprocessing(12), epochs=STEPS // 5, batch=8, rate=0.01, momentum=0.9, decay=1e-2)
    module = Network("cnn-small", 3, 12, {"norm": norm}).build()
    layout = layout_of(module)
    bases = make_bases(module, layout, 3, major, dtype)
    model = FlatModel(module, layout)
    psi = torch.randn(len(layout.blocks), 3, generator=torch_generator("psi"), dtype=torch.float64).to(dtype)
    weights = coefficients.alpha(psi, 0.5)
    c = coefficients.combination(weights, major)
    rates = FactoredRates.of(c, recipe.rate, recipe.momentum, recipe.decay, per_model)

    work = LocalWork(model, data, recipe)
    bases.combine_into(c, model)
    loss, a = train_factored(work, c, torch_generator("order"), per_model)
    assert loss.steps == STEPS
    upload = Upload(model.tensors(), weights, a)
    factored = [
        rebuild(v, row, kept, end) for v, row, kept, end in zip(bases.weights, c, a, model.weights, strict=True)
    ]
    _, k_fold = train_bases(work, bases, psi, 0.5, torch_generator("order"), per_model)
    reference = by_autograd(module, bases, c, data, recipe, rates.basis_rates)
    for block in range(len(layout.blocks)):
        for k in range(bases.count + major):
            assert relative(factored[block][k], reference[k][block]) < tolerance
            assert relative(k_fold.weights[block][k], reference[k][block]) < tolerance
            assert relative(factored[block][k], bases.weights[block][k]) > 1e-4  # it really moved

    for by_usage in (False, True):
        uploads = [upload.factored(), upload.full(bases, by_usage)]
        uploads += [] if by_usage else [upload.full(bases, by_usage, k_fold.weights)]
        results = []
        for state in uploads:
            mean = BasisMean(bases, by_usage)
            mean.add(state, 1.0, "one")
            mean.add(state, 3.0, "two")
            results.append(mean.result())
        for one in results[1:]:
            for got, wanted in zip(one.weights, results[0].weights, strict=True):
                for k in range(bases.count + major):
                    assert relative(got[k], wanted[k]) < tolerance


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    widths=st.lists(st.integers(1, 5), min_size=0, max_size=2),
    count=st.integers(1, 5),
    major=st.booleans(),
    rate=st.floats(1e-4, 0.05),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    decay=st.sampled_from([0.0, 1e-4, 1e-2]),
    spread=st.floats(0, 4),
    per_model=st.booleans(),
    one_block=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_factored_equals_autograd_for_drawn_networks(
    widths: list[int], count: int, major: bool, rate: float, momentum: float, decay: float, spread: float,
    per_model: bool, one_block: bool, seed: int,
) -> None:  # fmt: skip
    data = shapes_examples(12, seed=seed)
    recipe = Recipe(preprocessing=Preprocessing(12), epochs=3, batch=5, rate=rate, momentum=momentum, decay=decay)
    layers: list[nn.Module] = [nn.AvgPool2d(4), nn.Flatten()]
    inputs = 27
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for width in widths:
            layers += [nn.Linear(inputs, width), nn.Tanh()]
            inputs = width
        module = nn.Sequential(*layers, nn.Linear(inputs, 3)).double()
    layout = layout_of(module, 1 if one_block else None)
    bases = make_bases(module, layout, count, major, torch.float64)
    model = FlatModel(module, layout)
    psi = spread * torch.randn(len(layout.blocks), count, generator=torch_generator(seed), dtype=torch.float64)
    weights = coefficients.alpha(psi)
    c = coefficients.combination(weights, major)
    rates = FactoredRates.of(c, rate, momentum, decay, per_model)
    bases.combine_into(c, model)
    _, a = train_factored(LocalWork(model, data, recipe), c, torch_generator("order"), per_model)
    reference = by_autograd(module, bases, c, data, recipe, rates.basis_rates)
    for block, (v, row, kept, end) in enumerate(zip(bases.weights, c, a, model.weights, strict=True)):
        rebuilt = rebuild(v, row, kept, end)
        for k in range(count + major):
            assert relative(rebuilt[k], reference[k][block]) < 1e-10


@pytest.mark.parametrize("major", [True, False])
@pytest.mark.parametrize("classifier", [True, False])
def test_coefficient_gradient_equals_autograd(major: bool, classifier: bool) -> None:
    """One SGD step on psi through the flat vectors against autograd through softmax and combination."""
    module = Network("cnn-small", 3, 12, {"norm": "group"}).build().double()
    layout = layout_of(module)
    bases = make_bases(module, layout, 3, major, torch.float64)
    data, recipe = (
        shapes_examples(8),
        Recipe(preprocessing=Preprocessing(12), epochs=1, batch=8, momentum=0.0, decay=0.0),
    )
    psi = torch.randn(len(layout.blocks), 3, generator=torch_generator("p"), dtype=torch.float64)
    leaf = psi.clone().requires_grad_()
    c = coefficients.combination(torch.softmax(leaf, 1), major)
    flats = [row @ matrix for row, matrix in zip(c, bases.weights, strict=True)]
    logits = torch.func.functional_call(
        module, layout.unflatten(flats, []), (recipe.preprocessing(data.pixels, psi.dtype),)
    )
    nn.functional.cross_entropy(logits, data.labels).backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    wanted = psi - 0.1 * leaf.grad
    learner = learn_coefficients(
        LocalWork(FlatModel(module, layout), data, recipe), bases, psi, torch_generator("order"),
        CoefficientSettings("sgd", 0.1), len(layout.blocks) - 1 if classifier else None,
    )  # fmt: skip
    assert [ends for ends, _ in learner] == [True]
    torch.testing.assert_close(psi, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("statistics", ["own", "batch", "frozen"])
def test_a_learner_ends_with_its_own_statistics_or_with_those_of_the_bases(statistics: CoefficientStatistics) -> None:
    """Bases that are all alike combine to the same weights, so a plain module in training mode is the reference."""
    module = Network("cnn-small", 3, 12, {"norm": "batch"}).build()
    layout = layout_of(module)
    start = FlatModel(module, layout).tensors()
    bases = BasisSet.from_models(layout, [start] * 4, True)
    data, recipe = shapes_examples(20), Recipe(preprocessing=Preprocessing(12), epochs=2, batch=8)
    model = FlatModel(module, layout)
    settings = CoefficientSettings("adam", 0.1, statistics)
    psi = torch.zeros(len(layout.blocks), 3)
    for _ in learn_coefficients(LocalWork(model, data, recipe), bases, psi, torch_generator("order"), settings):
        pass
    if statistics == "own":
        generator = torch_generator("order")
        module.train()
        for _ in range(recipe.epochs):
            for rows in batches(len(data), recipe.batch, generator):
                module(recipe.preprocessing(data.pixels[rows]))
    wanted, got = module.state_dict(), model.tensors()
    assert any("running_mean" in name for name in got)
    for name, tensor in got.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-5, atol=1e-6)
    if statistics == "own":
        assert not torch.allclose(got["conv1.1.running_mean"], start["conv1.1.running_mean"])


def test_joint_step_equals_autograd_on_bases_and_psi() -> None:
    """The paper's baseline (equations 5 and 6): one step against autograd through softmax and combination."""
    from torch import nn

    from fedbasis.methods.fedbasis import coefficients
    from fedbasis.methods.fedbasis.bases import BasisSet
    from fedbasis.methods.fedbasis.learning import CoefficientSettings, LocalWork, train_bases
    from fedbasis.networks.inputs import Preprocessing
    from fedbasis.tensors.seeding import torch_generator

    network = Network("cnn-small", 3, 12, {"norm": "none"})
    layout = network.layout(network.build())
    bases = BasisSet.from_models(layout, [network.initial(i) for i in range(3)], True)
    data = shapes_examples(8)
    recipe = Recipe(preprocessing=Preprocessing(12), epochs=1, batch=8, rate=0.1, momentum=0.0, decay=0.0)
    psi = torch.randn(len(layout.blocks), 2, generator=torch_generator("psi"))
    leaves = [matrix.clone().requires_grad_() for matrix in bases.weights]
    free = psi.clone().requires_grad_()
    c = coefficients.combination(torch.softmax(free / 0.5, 1), True)
    flats = [row @ leaf for row, leaf in zip(c, leaves, strict=True)]
    logits = torch.func.functional_call(
        network.build(), layout.unflatten(flats, []), (recipe.preprocessing(data.pixels),)
    )
    nn.functional.cross_entropy(logits, data.labels).backward()  # type: ignore[no-untyped-call]
    _, trained = train_bases(
        LocalWork(network.workspace(), data, recipe),
        bases, psi, 0.5, torch_generator("o"), False, "sgd",
        CoefficientSettings("sgd", 0.2),
    )  # fmt: skip
    assert free.grad is not None
    torch.testing.assert_close(psi, (free - 0.2 * free.grad).detach(), rtol=1e-4, atol=1e-6)
    for got, leaf in zip(trained.weights, leaves, strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(got, (leaf - 0.1 * leaf.grad).detach(), rtol=1e-4, atol=1e-6)
