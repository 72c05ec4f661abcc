"""Trimmed means and medians of bases."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

from battery import clients, make, run_rounds
from fedbasis.methods.fedbasis.bases import BasisSet
from fedbasis.methods.fedbasis.robust import OrderedBases
from fedbasis.networks.batches import Recipe
from fedbasis.tensors.averaging import Averaging
from methods.helpers.robust import KINDS, a_round, garbage, with_averaging


def test_trimming_is_done_among_those_who_use_a_basis(recipe: Recipe) -> None:
    """One-hot coefficients: every basis moves by the trimmed mean of its own clients, as computed by hand."""
    method = make("fedbasis-random", recipe)
    server = method.init(7)
    bases = BasisSet.from_state(method.task.layout, server)
    mean = OrderedBases(bases, True, Averaging(kind="trimmed", trim=0.25))
    rng, rows, theirs = np.random.default_rng(0), len(method.task.layout.blocks), []
    for i in range(12):
        group = int(i >= 8)
        alpha = torch.eye(2)[group].expand(rows, 2)
        own = {n: t + torch.from_numpy(rng.normal(size=t.shape)).float() for n, t in bases.row(group).items()}
        theirs.append(own)
        mean.add({"model": own, "coefficients": {"alpha": alpha, "a": torch.ones(rows).double()}}, 1.0, "")
    state = mean.result().to_state()
    for name in theirs[0]:
        trained = name in method.task.parameters
        starts = [bases.row(int(i >= 8))[name].numpy() if trained else 0 for i in range(12)]
        moved = np.stack([own[name].numpy() - start for own, start in zip(theirs, starts, strict=True)])
        low, high = np.sort(moved, axis=0)[[3, -4]]  # a quarter of all clients is out of range at either end
        moved = np.clip(moved, low - (high - low), high + (high - low))
        for basis, mine in (("basis_0", slice(0, 8)), ("basis_1", slice(8, 12))):
            expected = starts[mine][0] + trim_mean(moved[mine], 0.25, axis=0)
            np.testing.assert_allclose(state[basis][name], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_none_are_made_convex(recipe: Recipe, kind: str) -> None:
    server, updates = a_round("fedbasis", recipe)
    (bad, sent), *good = updates
    coefficients = {"alpha": torch.full_like(sent.tensors["coefficients"]["alpha"], -1e9),
                    "a": sent.tensors["coefficients"]["a"] * 1e9}  # fmt: skip
    lie = bad, replace(sent, tensors={**sent.tensors, "coefficients": coefficients})
    method = with_averaging(KINDS[kind], "fedbasis", recipe)
    told, true = (method.aggregate(server, iter([*good, last]), 7) for last in (lie, (bad, sent)))
    for group, tensors in told.items():
        for name, tensor in tensors.items():
            assert float((tensor - true[group][name]).abs().max()) < 1


def test_the_warm_start_makes_no_basis_of_garbage(recipe: Recipe) -> None:
    method = with_averaging(KINDS["trimmed"], "fedbasis", recipe)
    server = method.init(7)
    data = clients(8)
    engine = run_rounds(method, data, rounds=range(0))[1]
    updates = list(engine.map(server, list(data), 0))
    attacked = [(c, garbage(s) if i in (2, 5) else s) for i, (c, s) in enumerate(updates)]
    bases = method.aggregate(server, iter(attacked), 7)
    assert "basis_0" in bases
    low, high = ({n: torch.stack([s.tensors["model"][n] for _, s in updates]).aminmax(dim=0)[end]
                  for n in server["model"]} for end in (0, 1))  # fmt: skip
    for tensors in bases.values():
        for name, tensor in tensors.items():
            assert ((tensor >= low[name] - 1e-6) & (tensor <= high[name] + 1e-6)).all()
