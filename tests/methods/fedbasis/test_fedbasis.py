"""FedBasis against FedAvg, the linear probe and itself, in the cases in which they must agree."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from battery import clients, make, run_rounds, same
from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation, Context
from fedbasis.networks.batches import Recipe
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import State
from pflbed.errors import InputError
from shapes import shapes_examples


def fedbasis_config(**settings: Any) -> Any:
    return METHODS["fedbasis"].Config(**settings)


@cache
def fedavg_rounds(recipe: Recipe, weighting: str) -> State:
    """What FedAvg ends with, once for all that are compared with it."""
    return run_rounds(make("fedavg", recipe, weighting=weighting), clients())[0]


class TestLimits:
    """Cases in which two methods must agree."""

    @pytest.mark.parametrize(("aggregation", "upload"), [("mean", "factored"), ("usage", "factored"), ("mean", "full")])
    @pytest.mark.parametrize("weighting", ["uniform", "examples"])
    @pytest.mark.parametrize("warm_start", [0, 0.3])
    @pytest.mark.parametrize("rate", ["per-basis", "per-model"])
    def test_one_basis_is_fedavg_bit_for_bit(
        self, quick: Recipe, aggregation: str, upload: str, weighting: str, rate: str, warm_start: float
    ) -> None:
        average = fedavg_rounds(quick, weighting)
        config = {
            "bases": 1,
            "major": False,
            "warm_start": warm_start,
            "aggregation": aggregation,
            "upload": upload,
            "rate": rate,
        }
        task = make("fedavg", quick, weighting=weighting).task
        method = METHODS["fedbasis"].build(fedbasis_config(**config), task)
        server, _, _ = run_rounds(method, clients())
        assert same({"basis_0": average["model"]}, server)

    def test_warm_up_is_fedavg_bit_for_bit(self, recipe: Recipe) -> None:
        average, _, _ = run_rounds(make("fedavg", recipe), clients(), rounds=range(1))
        basis = make("fedbasis", recipe)
        server, _, _ = run_rounds(basis, clients(), rounds=range(1))
        assert same({"model": average["model"]}, {"model": server["major"]})

    def test_one_basis_and_a_classifier_is_the_linear_probe(self, recipe: Recipe) -> None:
        average = make("fedavg", recipe)
        server, _, _ = run_rounds(average, clients())
        config = fedbasis_config(bases=1, major=False, warm_start=0)
        basis = METHODS["fedbasis"].build(config, average.task)
        plan, data = Adaptation(epochs=3, rate=0.05, decay=1e-2), shapes_examples(12)
        context = Context(7, "new", average.task.network.workspace())
        for statistics in ("frozen", "own", "shrunk"):
            probe = personalize(average, server, f"lp@{statistics}", data, context, plan)
            way = f"coefficients+classifier@{statistics}"
            both = personalize(basis, {"basis_0": server["model"]}, way, data, context, plan)
            for name, tensor in probe.last.tensors.items():
                torch.testing.assert_close(both.last.tensors[name], tensor, rtol=1e-5, atol=1e-6)

    def test_equal_bases_combine_to_themselves(self, recipe: Recipe) -> None:
        """Bases that are all equal combine to that model whatever the coefficients."""
        method = make("fedbasis-random", replace(recipe, decay=0.0))
        one = method.task.initial(3)
        server = {"basis_0": one, "basis_1": {name: t.clone() for name, t in one.items()}}
        for name, tensor in method.model(server).items():
            torch.testing.assert_close(tensor, one[name])

    @pytest.mark.parametrize("aggregation", ["mean", "usage"])
    def test_full_and_factored_training_agree(self, recipe: Recipe, aggregation: str) -> None:
        few = replace(recipe, epochs=1)
        results = []
        for upload in ("factored", "full"):
            config = fedbasis_config(bases=2, upload=upload, aggregation=aggregation)
            results.append(run_rounds(METHODS["fedbasis"].build(config, make("fedavg", few).task), clients())[0])
        for group in results[0]:
            for name, tensor in results[0][group].items():
                torch.testing.assert_close(results[1][group][name], tensor, rtol=1e-3, atol=1e-4)

    def test_upload_is_one_model_and_a_few_numbers(self, recipe: Recipe) -> None:
        from fedbasis.tensors.params import nbytes

        basis = METHODS["fedbasis"].build(
            fedbasis_config(bases=4, init="random", warm_start=0), make("fedavg", recipe).task
        )
        server = basis.init(0)
        sent, kept = basis.client_update(
            server, None, shapes_examples(12), Context(0, "c", basis.task.network.workspace())
        )
        model = nbytes({"m": basis.task.initial(0)})
        assert set(sent.tensors) == {"model", "coefficients"}
        assert nbytes(sent.tensors) <= 1.01 * model
        assert kept is None


def test_too_few_clients_for_the_bases_are_refused_at_once(recipe: Recipe) -> None:
    method = make("fedbasis", recipe)
    method.updates.require_clients(2)
    with pytest.raises(InputError, match="2 bases need at least as many local models to cluster, but there are 1"):
        method.updates.require_clients(1)


def test_random_bases_take_no_pretrained_weights(recipe: Recipe) -> None:
    task = replace(make("fedavg", recipe).task, weights={"fc.bias": torch.zeros(3)})
    with pytest.raises(InputError, match="must have no pretrained weights"):
        METHODS["fedbasis"].build(fedbasis_config(bases=2, init="random", warm_start=0), task)
    with pytest.raises(InputError, match="at least 2 rounds"):
        METHODS["fedbasis"].build(fedbasis_config(bases=2), replace(task, rounds=1))


def test_random_bases_of_two_seeds_share_nothing(recipe: Recipe) -> None:
    method = make("fedbasis-random", recipe)
    draws = [basis["conv1.0.weight"] for seed in (0, 1) for basis in method.init(seed).values()]
    assert all(not torch.equal(a, b) for i, a in enumerate(draws) for b in draws[:i])


def test_communicating_every_step_makes_one_step_a_round_and_keeps_psi(recipe: Recipe) -> None:
    method = make("fedbasis-step", recipe)
    steps: list[int] = []
    model = method.task.network.workspace()
    sent, kept = method.client_update(method.init(7), None, shapes_examples(24), Context(7, "c", model, 0))
    assert kept is None  # warm-up
    module = method.task.network.build()
    module.load_state_dict(method.init(7)["model"], strict=False)
    assert set(sent.tensors) == {"model"}
    bases, engine, _ = run_rounds(method, clients())
    assert all(state["coefficients"]["psi"].abs().max() > 0 for state in engine.states.values())
    context = Context(7, "c", model, 3, lambda *_: steps.append(1))
    before = {"coefficients": {"psi": torch.full((4, 2), 0.25)}}
    _, after = method.client_update(bases, before, shapes_examples(24), context)
    assert len(steps) == 2  # one step on psi, one on the bases
    assert after is not None
    moved = after["coefficients"]["psi"] - 0.25
    torch.testing.assert_close(moved.abs(), torch.full_like(moved, 0.1), rtol=1e-3, atol=1e-3)  # Adam's first step


def test_watching_reports_cosine_at_every_step(recipe: Recipe) -> None:
    method = make("fedbasis-random", recipe)
    seen: list[float] = []
    context = Context(7, "c", method.task.network.workspace(), 0, lambda numbers: seen.append(numbers["cosine"]))
    method.client_update(method.init(7), None, shapes_examples(16), context)
    steps = 2 * 2 * recipe.epochs  # two batches an epoch, coefficients and bases
    assert len(seen) == steps
    assert seen[steps // 2 - 1] == seen[0]  # frozen while coefficients are learned
    assert seen[-1] != seen[0]  # and moved while the client trains them


def test_the_plain_entropy_is_that_of_psi_whatever_the_temperature(recipe: Recipe) -> None:
    """What is sent is ``softmax(psi / tau)``; its power tau, made a share again, is ``softmax(psi)``."""
    method = make("fedbasis-random", recipe)
    tau = method.config.model_dump()["tau"]
    assert tau < 1
    seen: list[float] = []
    context = Context(7, "c", method.task.network.workspace(), 0, lambda numbers: seen.append(numbers["plain_entropy"]))
    sent, _ = method.client_update(method.init(7), None, shapes_examples(16), context)
    powers = sent.tensors["coefficients"]["alpha"].double() ** tau
    shares = powers / powers.sum(1, keepdim=True)
    expected = float((-shares * shares.log()).sum(1).mean())
    assert sent.numbers["plain_entropy"] == pytest.approx(expected, rel=1e-5)
    assert seen[-1] == pytest.approx(expected, rel=1e-5)
    assert seen[0] > expected  # the client began with equal shares
    sharpened = [value for key, value in sent.numbers.items() if key.startswith("entropy/")]
    assert sum(sharpened) / len(sharpened) < 0.95 * expected


def test_without_a_step_of_psi_it_is_the_linear_probe(recipe: Recipe) -> None:
    """So ``lp`` after FedBasis is FedBasis without coefficients: the uniform combination and a classifier."""
    method = make("fedbasis", recipe)
    server, _, _ = run_rounds(method, clients())
    still = METHODS["fedbasis"].build(
        method.config.model_copy(update={"coefficient_optimizer": "sgd", "new_client_factor": 1e-12}), method.task
    )
    context = Context(7, "new", method.task.network.workspace())
    plan, data = Adaptation(epochs=2, rate=0.05), shapes_examples(12)
    for statistics in ("frozen", "own", "shrunk"):
        probe = personalize(method, server, f"lp@{statistics}", data, context, plan).last.tensors
        both = personalize(still, server, f"coefficients+classifier@{statistics}", data, context, plan).last.tensors
        for name, tensor in probe.items():
            torch.testing.assert_close(both[name], tensor, rtol=1e-4, atol=1e-6)


def test_the_rate_of_psi_is_a_multiple_of_the_clients_rate(recipe: Recipe) -> None:
    method = make("fedbasis", recipe)
    server, _, _ = run_rounds(method, clients())
    context = Context(7, "new", method.task.network.workspace())

    def psi(rate: float, factor: float) -> torch.Tensor:
        other = method.config.model_copy(update={"new_client_factor": factor})
        plan = Adaptation(epochs=2, rate=rate, statistics="frozen")
        built = METHODS["fedbasis"].build(other, method.task)
        return personalize(built, server, "coefficients", shapes_examples(12), context, plan).last.learned["psi"]

    torch.testing.assert_close(psi(0.01, 10.0), psi(0.02, 5.0))
    assert not torch.allclose(psi(0.01, 10.0), psi(0.02, 10.0))


def test_the_preset_sets_every_choice_as_printed_and_can_be_changed() -> None:
    printed = fedbasis_config(preset="paper")
    assert (printed.aggregation, printed.rate, printed.cluster) == ("mean", "per-basis", "network")
    assert (printed.coefficient_optimizer, printed.coefficient_rate, printed.new_client_factor) == ("sgd", 0.01, 1.0)
    assert fedbasis_config(preset="paper", bases=8, tau=1.0).model_dump() == {
        **printed.model_dump(), "bases": 8, "tau": 1.0
    }  # fmt: skip
    assert fedbasis_config().preset == "default"
