"""Every method with the settings it is tried with, and what the tests of methods share: clients, rounds, comparisons.

``cases`` says with which settings a method is tried and what, by its paper, leaves a client.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

import cases
from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation, Context, Method, Sent, Task
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Examples, Preprocessing
from fedbasis.networks.models import Network
from fedbasis.serving.personalize import AdaptationResult, personalize
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State
from helpers import Serial as Serial  # noqa: PLC0414  (tests import it from here)
from shapes import shapes_examples

ROUNDS = 3
RECIPE = Recipe(preprocessing=Preprocessing(12), epochs=2, batch=8, rate=0.05, momentum=0.9, decay=1e-2)
QUICK = replace(RECIPE, epochs=1)
PLAN = Adaptation(epochs=2, rate=0.05)
MODULES = [importlib.import_module(f"cases.{info.name}") for info in pkgutil.iter_modules(cases.__path__)]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {k: v for module in MODULES for k, v in module.VARIANTS.items()}
HOLDS = {name for module in MODULES for name in module.HOLDS}
FIRST = {variant for variant, (name, _) in VARIANTS.items() if variant == name or name not in VARIANTS}
"""Every method with the settings that are its own; only these are tried with every kind of normalization."""
COLLECTS = {"pca-k", "kmeans-k"}
"""Those whose last round looks at all updates at once."""
SLOW = {name for module in MODULES for name in module.SLOW}
SENT: dict[str, Callable[[str, Task, int], dict[str, set[str]]]] = {
    name: module.sent for module in MODULES for name in module.VARIANTS
}


def make(variant: str, recipe: Recipe, norm: str = "batch", rounds: int = ROUNDS, **task: Any) -> Method:
    name, config = VARIANTS[variant]
    return METHODS[name].build(METHODS[name].Config(**config), task_of(recipe, norm, rounds, **task))


@cache
def task_of(recipe: Recipe, norm: str, rounds: int, **task: Any) -> Task:
    """Make a task once: it is frozen, and what it finds out about its network costs more than many a test."""
    return Task(Network("cnn-small", 3, 12, {"norm": norm}), recipe, rounds, **task)


@cache
def workspace_of(norm: str) -> FlatModel:
    """Make a working model once; what is loaded into it replaces everything."""
    return task_of(QUICK, norm, ROUNDS).network.workspace()


def clients(count: int = 4) -> dict[str, Examples]:
    return {f"{'ab'[i % 2]}/p{i:02d}": shapes_examples(18 + 3 * i, i % 2, seed=i) for i in range(count)}


def few_clients(count: int = 3) -> dict[str, Examples]:
    """Return clients of which each of the first three has two batches of eight, and not all of them are full."""
    return {f"{'ab'[i % 2]}/p{i:02d}": shapes_examples(12 + 2 * i, i % 2, seed=i) for i in range(count)}


def run_rounds(
    method: Method,
    data: dict[str, Examples],
    state: State | None = None,
    rounds: range = range(ROUNDS),
    sample: Callable[[int], list[str]] | None = None,
    states: list[State] | None = None,
) -> tuple[State, Serial, list[dict[str, Sent]]]:
    """Train; ``sample`` names the clients of a round, by default all; ``states`` collects the server's."""
    engine = Serial(method, data, seed=7)
    server = method.init(7) if state is None else state
    log: list[dict[str, Sent]] = []
    for number in rounds:
        seen: dict[str, Sent] = {}
        chosen = list(data) if sample is None else sample(number)

        def stream(
            server: State = server, number: int = number, seen: dict[str, Sent] = seen, chosen: list[str] = chosen
        ) -> Iterator[tuple[str, Sent]]:
            for client, sent in engine.map(server, chosen, number):
                seen[client] = sent
                yield client, sent

        server = method.aggregate(server, stream(), 7)
        log.append(seen)
        if states is not None:
            states.append(server)
    return server, engine, log


Training = tuple[State, Serial, list[dict[str, Sent]]]
TRAINED: dict[tuple[str, str, int, int, int], tuple[Training, list[State]]] = {}
SERVED: dict[tuple[str, str, str], tuple[AdaptationResult, Tensor]] = {}


def _trained(
    variant: str, recipe: Recipe, norm: str, rounds: int, data: dict[str, Examples]
) -> tuple[Training, list[State]]:
    key = (variant, norm, recipe.epochs, rounds, len(data))
    if key not in TRAINED:
        method, states = make(variant, recipe, norm, rounds), list[State]()
        TRAINED[key] = run_rounds(method, data, rounds=range(rounds), states=states), states
    return TRAINED[key]


def trained(variant: str, recipe: Recipe, norm: str = "batch", rounds: int = ROUNDS) -> Training:
    """Some rounds with four clients, made once for all tests that only look at the result."""
    return _trained(variant, recipe, norm, rounds, clients())[0]


def trained_few(variant: str, recipe: Recipe, norm: str = "batch", rounds: int = ROUNDS) -> Training:
    """Some rounds with the three clients of ``few_clients``, made once."""
    return _trained(variant, recipe, norm, rounds, few_clients())[0]


def trained_few_states(variant: str, recipe: Recipe) -> list[State]:
    """Return the server's state after every round of that training."""
    return _trained(variant, recipe, "batch", ROUNDS, few_clients())[1]


def serve(method: Method, server: State, how: str) -> tuple[AdaptationResult, Tensor]:
    """Personalize a new client, and predict twelve images that it has not seen."""
    context = Context(7, "new", workspace_of(method.task.network.options["norm"]))
    outcome = personalize(method, method.serving.published(server), how, shapes_examples(12), context, PLAN)
    context.model.load(outcome.last.tensors)
    pixels = shapes_examples(12, seed=5).pixels
    return outcome, method.serving.probabilities(context.model, outcome.last.learned, pixels)


def served(variant: str, norm: str, how: str, rounds: int = ROUNDS) -> tuple[AdaptationResult, Tensor]:
    """Do so once after the quick training, for all tests that only look at the result."""
    if (variant, norm, how) not in SERVED:
        server, _, _ = trained_few(variant, QUICK, norm, rounds)
        SERVED[variant, norm, how] = serve(make(variant, QUICK, norm, rounds), server, how)
    return SERVED[variant, norm, how]


def clone(state: State) -> State:
    return {group: {name: tensor.clone() for name, tensor in tensors.items()} for group, tensors in state.items()}


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(
        one[g].keys() == other[g].keys() and all(torch.equal(one[g][n], other[g][n]) for n in one[g]) for g in one
    )


def finite(state: State) -> bool:
    return all(bool(torch.isfinite(t).all()) for tensors in state.values() for t in tensors.values())
