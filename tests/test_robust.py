"""Robust means against scipy and numpy, and every method of the registry with each of them."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

from fedbasis.experiment.config import parse
from fedbasis.methods import METHODS
from fedbasis.methods.base import Method, Sent
from fedbasis.methods.fedbasis.bases import BasisSet
from fedbasis.methods.fedbasis.robust import OrderedBases
from fedbasis.networks.train import Recipe
from fedbasis.tensors.averaging import Averaging, OrderedMean, middle
from fedbasis.tensors.params import State
from fedbasis.training.clipping import clip_updates, clipped, differences
from pflbed.errors import InputError
from test_methods import FIRST, HOLDS, VARIANTS, clients, clone, finite, make, run_rounds, same

TRIED = [v for v in VARIANTS if v in FIRST or v in ("fedbasis-full", "fedbasis-joint", "fedbasis-random")]
FREE = {"fedbasis-joint"}
"""Its clients move every basis in a direction of its own."""
KINDS = {"trimmed": Averaging(kind="trimmed", trim=0.25), "median": Averaging(kind="median")}
ONES = partial(torch.ones, 1, dtype=torch.float64)
ROUND: dict[str, tuple[State, list[tuple[str, Sent]]]] = {}


def a_round(variant: str, recipe: Recipe) -> tuple[State, list[tuple[str, Sent]]]:
    """A server after its first round and what four clients then send, made once."""
    if variant not in ROUND:
        method, data = make(variant, replace(recipe, epochs=1), rounds=3), clients()
        server, engine, _ = run_rounds(method, data, rounds=range(1))
        ROUND[variant] = server, list(engine.map(server, list(data), 1))
    return ROUND[variant]


def with_(averaging: Averaging, variant: str, recipe: Recipe) -> Method:
    return make(variant, recipe, rounds=3, averaging=averaging)


def close(one: State, other: State, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    assert one.keys() == other.keys()
    for group, tensors in one.items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, other[group][name], rtol=rtol, atol=atol, msg=f"{group}/{name}")


def garbage(sent: Sent, size: float = 1e6) -> Sent:
    generator = torch.Generator().manual_seed(5)
    tensors = {
        group: {
            name: size * torch.randn(t.shape, generator=generator).to(t.dtype) if t.is_floating_point() else t
            for name, t in named.items()
        }
        for group, named in sent.tensors.items()
    }
    return replace(sent, tensors=tensors)


class TestMeans:
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(10, 33)))

    @pytest.mark.parametrize("cut", [0.0, 0.1, 0.2, 0.4])
    def test_the_trimmed_mean_is_scipys(self, cut: float) -> None:
        expected = trim_mean(self.values.numpy(), cut, axis=0)
        np.testing.assert_allclose(middle(self.values, ONES(10), cut)[0], expected, rtol=1e-12)

    @pytest.mark.parametrize("count", [1, 2, 7, 10])
    def test_the_median_is_numpys(self, count: int) -> None:
        expected = np.median(self.values[:count].numpy(), axis=0)
        np.testing.assert_allclose(middle(self.values[:count], ONES(count), 0.5)[0], expected, rtol=1e-12)

    @pytest.mark.parametrize("cut", [0.15, 0.3, 0.5])
    def test_a_weight_counts_as_so_many_copies(self, cut: float) -> None:
        weights = torch.tensor([[1.0, 3, 2, 5, 1, 4, 2, 1, 1, 0]]).double()
        copies = self.values.repeat_interleave(weights[0].long(), dim=0)  # 20 of them: the cuts fall between two
        expected = middle(copies, ONES(len(copies)), cut)
        torch.testing.assert_close(middle(self.values, weights, cut), expected, rtol=1e-12, atol=1e-12)

    def test_a_client_on_the_border_counts_in_part(self) -> None:
        column = torch.tensor([[0.0], [1.0], [10.0], [100.0]], dtype=torch.float64)
        cut = middle(column, ONES(4), 0.375)  # of four: one and a half at either end
        torch.testing.assert_close(cut, torch.tensor([[(0.5 * 1 + 0.5 * 10)]], dtype=torch.float64))

    @pytest.mark.parametrize("kind", KINDS)
    def test_garbage_of_any_size_leaves_no_trace(self, kind: str) -> None:
        honest = [{"w": self.values[i].float()} for i in range(8)]
        results = []
        for size in (1e3, 1e38):
            mean = OrderedMean(KINDS[kind])
            for tensors in (*honest, {"w": torch.full((33,), size)}, {"w": torch.full((33,), -size)}):
                mean.add(tensors, 1.0)
            results.append(mean.result()["w"])
        assert torch.equal(results[0], results[1])
        low, high = self.values[:8].float().aminmax(dim=0)
        assert ((results[0] >= low) & (results[0] <= high)).all()

    def test_many_numbers_are_looked_at_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def averaged() -> dict[str, torch.Tensor]:
            mean = OrderedMean(Averaging(kind="median"))
            for i in range(5):
                mean.add({"w": self.values[i].float().view(3, 11), "none": torch.empty(0)}, 1.0)
            return mean.result()

        whole = averaged()
        assert whole["w"].shape == (3, 11)
        assert whole["none"].shape == (0,)
        monkeypatch.setattr("fedbasis.tensors.averaging.CHUNK_NUMBERS", 20)
        assert torch.equal(averaged()["w"], whole["w"])

    def test_nothing_and_misfits_are_refused(self) -> None:
        with pytest.raises(InputError, match="none arrived"):
            OrderedMean(Averaging(kind="median")).result()
        mean = OrderedMean(Averaging(kind="median"))
        mean.add({"w": torch.zeros(2)}, 1.0)
        with pytest.raises(InputError, match="shape"):
            mean.add({"w": torch.zeros(3)}, 1.0, "The update of b")

    def test_single_models_are_brought_into_range(self) -> None:
        models = [{"w": torch.tensor([float(i), -float(i)])} for i in (0, 1, 2, 3, 1000)]
        bounded = [model["w"].tolist() for model in Averaging(kind="trimmed", trim=0.2).clamp_models(models)]
        assert bounded == [[1, -1], [1, -1], [2, -2], [3, -3], [3, -3]]
        assert Averaging().clamp_models(models) is models


class TestClipping:
    start: ClassVar[State] = {"m": {"w": torch.tensor([1.0, 1.0])}}

    def test_all_tensors_are_one_vector(self) -> None:
        sent: State = {"m": {"w": torch.tensor([4.0, 1.0])}, "change": {"c": torch.tensor([4.0])}}  # 3, 0 and 4: 5
        near = clipped(sent, self.start, 2.5)
        assert near["m"]["w"].tolist() == [2.5, 1.0]
        assert near["change"]["c"].tolist() == [2.0]
        assert clipped(sent, self.start, 5.0) is sent

    def test_choices_stay(self) -> None:
        sent: State = {"m": {"w": torch.tensor([1e30, 1.0])}, "choice": {"k": torch.tensor(3)}}
        near = clipped(sent, self.start, 1.0)
        torch.testing.assert_close(near["m"]["w"], torch.tensor([2.0, 1.0]))
        assert near["choice"]["k"] == 3


@pytest.mark.parametrize("variant", TRIED)
class TestEveryMethod:
    def test_a_far_limit_changes_no_bit_and_a_near_one_is_kept(self, variant: str, recipe: Recipe) -> None:
        server, updates = a_round(variant, recipe)
        plain = make(variant, recipe, rounds=3).aggregate(server, iter(updates), 7)
        far = with_(Averaging(clip=1e12), variant, recipe)
        assert same(plain, far.aggregate(server, clip_updates(far, server, iter(updates)), 7))
        near = with_(Averaging(clip=1e-2), variant, recipe)
        for client, sent in clip_updates(near, server, iter(updates)):
            moved = differences(sent.tensors, near.updates.reference(server, client, sent.tensors))
            length = sum(float(t.square().sum()) for named in moved.values() for t in named.values()) ** 0.5
            assert length <= 1.01e-2
        if variant == "local":
            return
        assert sum(float(t.abs().sum()) for named in moved.values() for t in named.values()) > 0

    @pytest.mark.parametrize("kind", KINDS)
    def test_equal_clients_have_one_mean(self, variant: str, recipe: Recipe, kind: str) -> None:
        """The same update several times over: its mean, trimmed mean and median are the same."""
        if variant in FREE:
            pytest.skip("refused")
        server, updates = a_round(variant, recipe)
        (first, sent), *_ = updates
        alike = [(client if variant in HOLDS else first, sent) for client, _ in updates]
        close(
            with_(KINDS[kind], variant, recipe).aggregate(server, iter(alike), 7),
            make(variant, recipe, rounds=3).aggregate(server, iter(alike), 7),
        )

    def test_nothing_trimmed_is_the_mean(self, variant: str, recipe: Recipe) -> None:
        if variant in FREE:
            with pytest.raises(InputError, match="coordinate_descent = true"):
                with_(KINDS["trimmed"], variant, recipe)
            return
        server, updates = a_round(variant, recipe)
        got = with_(Averaging(kind="trimmed", trim=0.0), variant, recipe).aggregate(server, iter(updates), 7)
        close(got, make(variant, recipe, rounds=3).aggregate(server, iter(updates), 7))

    @pytest.mark.parametrize("kind", KINDS)
    def test_one_garbage_client_of_four_does_little(self, variant: str, recipe: Recipe, kind: str) -> None:
        if variant in FREE:
            pytest.skip("refused")
        server, updates = a_round(variant, recipe)
        held = [clone(sent.tensors) for _, sent in updates]
        (bad, sent), *good = updates
        attacked = [*good[:1], (bad, garbage(sent)), *good[1:]]
        method = with_(KINDS[kind], variant, recipe)
        robust = method.aggregate(server, iter(attacked), 7)
        assert finite(robust)
        assert all(same(sent.tensors, before) for (_, sent), before in zip(updates, held, strict=True))
        clean = method.model(method.aggregate(server, iter(good), 7))
        start = method.model(server)
        moved = max(float((clean[name] - start[name]).abs().max()) for name in clean)
        off = max(float((method.model(robust)[name] - clean[name]).abs().max()) for name in clean)
        assert off <= 10 * moved + 1e-6
        if variant == "local":
            return
        plain = make(variant, recipe, rounds=3)
        ruined = plain.model(plain.aggregate(server, iter(attacked), 7))
        if variant != "ifca":  # garbage may have gone to the cluster that is not shown
            assert max(float((ruined[name] - clean[name]).abs().max()) for name in clean) > 1e3 * moved


class TestBases:
    def test_trimming_is_done_among_those_who_use_a_basis(self, recipe: Recipe) -> None:
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
    def test_weights_that_are_none_are_made_convex(self, recipe: Recipe, kind: str) -> None:
        server, updates = a_round("fedbasis", recipe)
        (bad, sent), *good = updates
        coefficients = {"alpha": torch.full_like(sent.tensors["coefficients"]["alpha"], -1e9),
                        "a": sent.tensors["coefficients"]["a"] * 1e9}  # fmt: skip
        lie = bad, replace(sent, tensors={**sent.tensors, "coefficients": coefficients})
        method = with_(KINDS[kind], "fedbasis", recipe)
        told, true = (method.aggregate(server, iter([*good, last]), 7) for last in (lie, (bad, sent)))
        for group, tensors in told.items():
            for name, tensor in tensors.items():
                assert float((tensor - true[group][name]).abs().max()) < 1

    def test_the_warm_start_makes_no_basis_of_garbage(self, recipe: Recipe) -> None:
        method = with_(KINDS["trimmed"], "fedbasis", recipe)
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


def problems(**changes: Any) -> str:
    try:
        parse({"method": {"name": "fedavg"}, **changes})
    except InputError as error:
        return str(error)
    return ""


class TestConfiguration:
    def test_what_makes_no_sense_is_refused_with_a_sentence(self) -> None:
        examples = {"weighting": "examples"}
        assert not problems(aggregation={"mean": "median", "clip": 3.0})
        assert "how many images they say" in problems(aggregation={"mean": "trimmed"}, train=examples)
        assert "averages nothing" in problems(aggregation={"clip": 1.0}, method={"name": "local"})
        assert "aggregation.trim" in problems(aggregation={"trim": 0.5})
        assert "aggregation.mean" in problems(aggregation={"mean": "middle"})

    def test_defaults_do_not_rename_a_run(self) -> None:
        plain = parse({"method": {"name": "fedavg"}})
        written = parse({"method": {"name": "fedavg"}, "aggregation": {"mean": "mean"}, "privacy": {}})
        other = parse({"method": {"name": "fedavg"}, "aggregation": {"mean": "median"}})
        assert plain.digest("") == written.digest("")
        assert other.digest("") != plain.digest("")

    def test_every_method_says_whether_it_averages(self) -> None:
        assert [name for name, method in METHODS.items() if not method.updates_type.averages] == ["local"]


def test_a_stream_stays_a_stream(recipe: Recipe) -> None:
    """Clipping looks at one update at a time."""
    server, updates = a_round("fedavg", recipe)
    asked = []

    def stream() -> Iterator[tuple[str, Sent]]:
        for client, sent in updates:
            asked.append(client)
            yield client, sent

    got = iter(clip_updates(with_(Averaging(clip=1.0), "fedavg", recipe), server, stream()))
    next(got)
    assert asked == [updates[0][0]]
