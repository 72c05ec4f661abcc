"""What the tests of methods with a table of all clients' models share."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from battery import Serial
from fedbasis.methods.base import Adaptation, Context, Method, Sent, Task
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Examples, Preprocessing
from fedbasis.networks.models import Network
from fedbasis.networks.train import local_sgd
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import State, Tensors
from shapes import shapes_examples

SEED = 7
DATA = {f"{'ab'[i % 2]}/p{i}": shapes_examples(16 + 3 * i, i % 2, seed=i) for i in range(4)}
NAMES = sorted(DATA)


def task_of(norm: str = "batch", weighting: Any = "uniform", **recipe: Any) -> Task:
    settings = {"epochs": 1, "batch": 8, "rate": 0.05, "momentum": 0.9, "decay": 1e-2, **recipe}
    return Task(
        Network("cnn-small", 3, 12, {"norm": norm, "width": 4}),
        Recipe(preprocessing=Preprocessing(12), **settings),
        4,
        weighting=weighting,
    )


def train(method: Method, rounds: list[list[str]]) -> tuple[list[State], Serial, list[dict[str, Sent]]]:
    """Return the server's state before the first and after every round, the engine, and what was sent."""
    engine, states, log = Serial(method, DATA, SEED), [method.init(SEED)], []
    for number, names in enumerate(rounds):
        seen: dict[str, Sent] = {}

        def stream(names: list[str] = names, number: int = number, seen: dict[str, Sent] = seen) -> Iterator[Any]:
            for client, sent in engine.map(states[-1], names, number):
                seen[client] = sent
                yield client, sent

        states.append(method.aggregate(states[-1], stream(), SEED))
        log.append(seen)
    return states, engine, log


def context_of(task: Task, client: str, round: int = 0) -> Context:
    return Context(SEED, client, task.network.workspace(), round)


def parameters(task: Task, tensors: Tensors) -> Tensor:
    """All parameters of a model in one vector, by the module's own order; statistics are left out."""
    return torch.cat([tensors[name].reshape(-1) for name, _ in task.network.build().named_parameters()]).double()


def equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def alone(task: Task, rounds: int) -> dict[str, Tensors]:
    """Every client trains its own model from the initial one and hears nothing of the others."""
    own = {name: task.initial(SEED) for name in NAMES}
    for number in range(rounds):
        for name in NAMES:
            context = context_of(task, name, number)
            context.model.load(own[name])
            local_sgd(context.model, DATA[name], task.recipe, context.generator("batches"))
            own[name] = context.model.tensors()
    return own


def one_step(task: Task, start: Tensors, data: Examples, penalty: Any) -> Tensors:
    """One step of plain SGD on all images at once by autograd; ``penalty`` is a function of the named parameters."""
    module = task.network.build()
    module.load_state_dict(start, strict=False)
    module.train()
    rows = torch.arange(len(data))
    named = dict(module.named_parameters())
    loss = cross_entropy(module(task.recipe.preprocessing(data.pixels[rows])), data.labels[rows])
    total = loss + penalty(torch.cat([p.reshape(-1) for p in named.values()]).double()).float()
    gradients = torch.autograd.grad(total, list(named.values()))
    return {
        name: (p - task.recipe.rate * (g + task.recipe.decay * p)).detach()
        for (name, p), g in zip(named.items(), gradients, strict=True)
    }


def assert_parameters_close(got: Tensors, wanted: Tensors) -> None:
    for name, tensor in wanted.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=1e-6)


def personal(method: Method, how: str, server: State, prox: float = 1.0) -> Tensors:
    plan = Adaptation(epochs=3, rate=0.05, prox=prox)
    outcome = personalize(
        method,
        method.serving.published(server),
        how,
        shapes_examples(12, 1, seed=9),
        context_of(method.task, "new"),
        plan,
    )
    assert len(outcome.losses) == 3
    return outcome.last.tensors


def assert_own_way_is_ft_prox(method: Method, how: str, server: State, prox: float) -> None:
    own = personal(method, how, server)
    assert equal(own, personal(method, "ft-prox", server, prox))
    assert not equal(own, personal(method, "ft", server))
