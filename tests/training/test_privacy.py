"""The mechanism of differential privacy against its definition, with every method that it can protect."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from battery import FIRST, VARIANTS, Serial, clients, finite, make, run_rounds, same
from fedbasis.experiment.protection import PrivacyConfig
from fedbasis.methods import METHODS
from fedbasis.methods.base import Method, Sent
from fedbasis.networks.batches import Recipe
from fedbasis.tensors.params import State
from fedbasis.training.accounting import default_delta, epsilon
from fedbasis.training.clipping import differences
from fedbasis.training.privacy import Mechanism, urandom_normal
from fedbasis.training.rounds import train
from fedbasis.training.runs import Run, read_lines
from pflbed.errors import InputError

PROTECTED = [
    "fedem-noise" if variant == "fedem" else variant  # a warm start compares single models
    for variant in VARIANTS
    if variant in FIRST
    and VARIANTS[variant][0] != "fedbasis"
    and not METHODS[VARIANTS[variant][0]].updates_type.needs_single_updates
]


BASIS: dict[str, Any] = {"bases": 2, "init": "random", "warm_start": 0, "aggregation": "mean"}


def basis(method: Method, **changed: Any) -> Method:
    """FedBasis with settings that can be protected."""
    return METHODS["fedbasis"].build(METHODS["fedbasis"].Config(**{**BASIS, **changed}), method.task)


def protected(variant: str, recipe: Recipe) -> Method:
    short = replace(recipe, epochs=1)
    return basis(make("fedavg", short)) if variant == "fedbasis" else make(variant, short)


def mechanism(multiplier: float = 0.0, clip: float = 1e9, sampled: int = 4, secret: bool = False) -> Mechanism:
    return Mechanism(multiplier=multiplier, clip=clip, delta=1e-3, clients=sampled, sampled=sampled, secret=secret)


def flat(state: State, start: State) -> torch.Tensor:
    return torch.cat([t.reshape(-1) for named in differences(state, start).values() for t in named.values()])


class TestNoise:
    def test_the_operating_systems_noise_is_normal_and_never_repeats(self) -> None:
        one, two = urandom_normal(20000), urandom_normal(20000)
        assert kstest(one, "norm").pvalue > 1e-6
        assert abs(np.corrcoef(one, two)[0, 1]) < 0.05
        assert np.isfinite(one).all()

    @pytest.mark.parametrize("secret", [False, True])
    def test_every_number_gets_noise_of_the_said_size(self, recipe: Recipe, secret: bool) -> None:
        method = make("fedavg", recipe, norm="group")
        server = method.init(7)
        still = [(str(i), Sent(server, {"loss": 0.0, "examples": 3.0})) for i in range(4)]
        made = mechanism(2.0, 3.0, secret=secret)
        moved = flat(made.aggregate(method, server, still, 7, 0), server)
        assert kstest(moved.numpy() / (2.0 * 3.0 / 4), "norm").pvalue > 1e-6
        again, other = (made.aggregate(method, server, still, 7, round_) for round_ in (0, 1))
        assert torch.equal(flat(again, server), moved) == (not secret)
        assert not torch.equal(flat(other, server), moved)


@pytest.mark.parametrize("variant", [*PROTECTED, "fedbasis"])
class TestEveryProtectedMethod:
    def test_without_noise_and_limit_it_is_the_method(self, variant: str, recipe: Recipe) -> None:
        method, data = protected(variant, recipe), clients(3)
        server = method.init(7)
        updates = list(Serial(method, data, seed=7).map(server, list(data), 0))
        got = mechanism(sampled=3).aggregate(method, server, iter(updates), 7, 0)
        expected = method.aggregate(server, iter(updates), 7)
        for group, tensors in expected.items():
            for name, tensor in tensors.items():
                if variant != "fedbasis" or name in method.task.parameters:  # statistics count by usage there
                    torch.testing.assert_close(got[group][name], tensor, rtol=1e-4, atol=1e-5)

    def test_no_client_moves_the_mean_by_more_than_its_share(self, variant: str, recipe: Recipe) -> None:
        """Whatever one of four clients sends, even nothing at all, the mean moves by at most 2 clip / 4."""
        method, data = protected(variant, recipe), clients(2)
        server = method.init(7)
        updates = list(Serial(method, data, seed=7).map(server, list(data), 0))
        (_, sent), *rest = updates
        huge = {g: {n: 1e9 * torch.ones_like(t) for n, t in named.items()} for g, named in sent.tensors.items()}
        broken = {g: {n: t * float("nan") for n, t in named.items()} for g, named in sent.tensors.items()}
        made, seen = mechanism(0.0, 0.5), []
        method.updates.from_average = lambda server, mean, seed: seen.append(mean) or server  # type: ignore[method-assign,func-returns-value]
        for tensors in (sent.tensors, huge, broken):
            made.aggregate(method, server, iter([("a", Sent(tensors, sent.numbers)), *rest]), 7, 0)
        made.aggregate(method, server, iter(rest), 7, 0)
        for mean in seen[1:]:
            assert finite(mean)
            assert float(flat(mean, seen[0]).norm()) <= 2 * 0.5 / 4 * (1 + 1e-3)
        assert float(flat(seen[1], seen[0]).norm()) > 0.5 / 4 * 0.5
        torch.testing.assert_close(flat(seen[2], seen[3]), torch.zeros_like(flat(seen[2], seen[3])))


class TestWhatIsRefused:
    def test_methods_that_need_single_updates(self, recipe: Recipe) -> None:
        refused = {
            "local", "scaffold", "fed-mtl", "fedamp", "fedfomo", "pca-k", "kmeans-k", "ifca", "pfedhn", "fedbasis",
            "fedem",
        }  # fmt: skip
        make("fedem-noise", recipe).updates.require_average()
        for name in sorted(FIRST):
            if VARIANTS[name][0] not in refused:
                make(name, recipe).updates.require_average()
                continue
            with pytest.raises(InputError, match=r"\[privacy\] protects what is averaged"):
                make(name, recipe).updates.require_average()

    def test_fedbasis_by_usage_or_with_a_warm_start(self, recipe: Recipe) -> None:
        plain = make("fedavg", recipe)
        basis(plain).updates.require_average()
        for changed in ({"aggregation": "usage"}, {"init": "pretrained", "warm_start": 0.3}):
            with pytest.raises(InputError, match="set warm_start = 0"):
                basis(plain, **changed).updates.require_average()

    def test_what_is_no_change_of_what_was_received(self, recipe: Recipe) -> None:
        method = make("fedavg", recipe)
        server = method.init(7)
        extra = {**server, "choice": {"cluster": torch.tensor(1)}}
        with pytest.raises(InputError, match="'choice/cluster'"):
            mechanism().aggregate(method, server, [("a", Sent(extra, {}))], 7, 0)
        name, *_ = server["model"]
        less = {"model": {n: t for n, t in server["model"].items() if n != name}}
        with pytest.raises(InputError, match=f"The update of b does not fit the network: '{name}' is missing"):
            mechanism().aggregate(method, server, [("a", Sent(server, {})), ("b", Sent(less, {}))], 7, 0)
        with pytest.raises(InputError, match="none was received in round 3"):
            mechanism().aggregate(method, server, [], 7, 2)


class TestRounds:
    def test_epsilon_is_in_the_log_and_a_seeded_run_repeats(self, recipe: Recipe, tmp_path: Path) -> None:
        def run(name: str, secret: bool) -> tuple[State, list[dict[str, Any]]]:
            method, data = make("fedavg", recipe, rounds=2), clients(4)
            made = PrivacyConfig(noise_multiplier=3.0, noise_seed="secret" if secret else "run").mechanism(4, 2)
            run = Run(tmp_path / name)
            run.folder.mkdir()
            server = train(
                method, Serial(method, data, 7), list(data), 7, run, participation=2, privacy=made,
                validate=lambda _: 0.5,
            )  # fmt: skip
            return server, read_lines(run.metrics)

        (one, lines), (two, _), (three, quiet) = run("a", False), run("b", False), run("c", True)
        assert same(one, two)
        assert not same(one, three)
        expected = [epsilon(n, 3.0, 4, 2, default_delta(4)) for n in (1, 2)]
        assert [line["epsilon"] for line in lines] == [line["epsilon"] for line in quiet] == expected
        assert lines[0]["delta"] == default_delta(4)
        assert all("loss" in line and line["validation"] == 0.5 for line in lines)
        assert all("loss" not in line and "examples" not in line and line["validation"] is None for line in quiet)

    def test_secret_runs_draw_their_clients_anew(self) -> None:
        made = mechanism(1.0, 1.0, secret=True)
        assert made.drawing_seed(7) != made.drawing_seed(7)
        assert mechanism(1.0, 1.0).drawing_seed(7) == 7

    def test_noise_never_makes_a_variance_negative(self, recipe: Recipe) -> None:
        method, data = make("fedavg", recipe), clients(2)
        server, engine, _ = run_rounds(method, data, rounds=range(1))
        updates = engine.map(server, list(data), 1)
        model = mechanism(50.0, 1.0).aggregate(method, server, updates, 7, 1)["model"]
        variances = [t for name, t in model.items() if name.endswith("running_var")]
        assert variances
        assert all((t >= 0).all() for t in variances)
