"""Methods that personalize some layers, against plain torch modules that are trained and averaged naively."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from battery import clients, same
from fedbasis.methods import METHODS
from fedbasis.methods.base import Context, Method, Task
from fedbasis.networks.batches import Recipe, batches
from fedbasis.networks.inputs import Examples
from fedbasis.networks.models import Network
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State, Tensors
from fedbasis.tensors.seeding import torch_generator
from pflbed.errors import InputError

SEED = 7
SCHEDULE = [(0, 1), (0, 2), (1, 2), (0, 1)]  # who takes part in which round; the third comes late
Train = Callable[[nn.Module, Examples, Recipe, torch.Generator], None]


def build(name: str, recipe: Recipe, norm: str = "batch", weighting: Any = "uniform", **config: Any) -> Method:
    task = Task(Network("cnn-small", 3, 12, {"norm": norm}), recipe, len(SCHEDULE), weighting=weighting)
    return METHODS[name].build(METHODS[name].Config(**config), task)


def inputs(examples: Examples, rows: Tensor, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    mean = torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64).to(dtype)
    std = torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64).to(dtype)
    return ((examples.pixels[rows].to(dtype) / 255 - mean) / std).permute(0, 3, 1, 2), examples.labels[rows]


def descend(parameters: Any, recipe: Recipe) -> torch.optim.SGD:
    return torch.optim.SGD(list(parameters), lr=recipe.rate, momentum=recipe.momentum, weight_decay=recipe.decay)


def jointly(module: nn.Module, data: Examples, recipe: Recipe, generator: torch.Generator) -> None:
    optimizer = descend(module.parameters(), recipe)
    for _ in range(recipe.epochs):
        for rows in batches(len(data), recipe.batch, generator):
            module.train(len(rows) > 1)
            x, y = inputs(data, rows)
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def floats(module: nn.Module) -> Tensors:
    return {name: t.detach() for name, t in module.state_dict().items() if t.is_floating_point()}


def naive(
    method: Method, data: Mapping[str, Examples], shared: Callable[[str], bool], train: Train
) -> tuple[Tensors, dict[str, nn.Module], Tensors]:
    """Every client owns a module; shared tensors are copied into it before and averaged after its training.

    Returns the mean of the shared tensors, the clients' modules, and the last round's mean of everything.
    """
    task, names = method.task, list(data)
    start = task.network.build(SEED).double()
    modules = {name: deepcopy(start) for name in names}
    server = {name: t.clone() for name, t in floats(start).items() if shared(name)}
    for number, chosen in enumerate(SCHEDULE):
        trained, weights = [], []
        for client in (names[i] for i in chosen):
            module = modules[client]
            module.load_state_dict(server, strict=False)
            train(module, data[client], task.recipe, torch_generator(SEED, "client", client, number, "batches"))
            trained.append({name: t.clone() for name, t in floats(module).items()})
            weights.append(len(data[client]) if task.weighting == "examples" else 1)
        parts = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        mean = {
            name: torch.einsum("k,k...->...", parts, torch.stack([t[name] for t in trained])) for name in trained[0]
        }
        server = {name: tensor for name, tensor in mean.items() if shared(name)}
    return server, modules, mean


def federate(
    method: Method, data: Mapping[str, Examples], dtype: torch.dtype = torch.float32
) -> tuple[State, dict[str, State]]:
    """Run the rounds; in double precision no rounding can flip a ReLU, so that two ways of computing stay together."""
    names, model = list(data), FlatModel(method.task.network.build().to(dtype), method.task.layout)
    server: State = method.init(SEED)
    kept: dict[str, State] = {}
    for number, chosen in enumerate(SCHEDULE):
        updates = []
        for client in (names[i] for i in chosen):
            received, context = method.broadcast(server, client), Context(SEED, client, model, number)
            sent, own = method.client_update(received, kept.get(client), data[client], context)
            updates.append((client, sent))
            kept |= {} if own is None else {client: own}
        server = method.aggregate(server, updates, SEED)
    return server, kept


def close(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor], tolerance: float = 1e-9) -> bool:
    return got.keys() == wanted.keys() and all(
        float((got[name] - wanted[name]).norm()) <= tolerance * (float(wanted[name].norm()) + 1e-2) for name in wanted
    )


NORMS = pytest.mark.parametrize(("norm", "weighting"), [("batch", "examples"), ("group", "uniform")])


def assert_rounds_equal_naive(method: Method, shared: Callable[[str], bool], train: Train, open_: bool = False) -> None:
    """Several rounds with changing clients: each comes back to its own layers, whoever else has trained meanwhile.

    ``open_`` says that new clients get the mean of the layers that are not shared, as well.
    """
    data = clients(3)
    server, kept = federate(method, data, torch.float64)
    wanted, modules, mean = naive(method, data, shared, train)
    first = method.task.network.initial(SEED)
    assert close({n: t for n, t in server["model"].items() if shared(n)}, wanted)
    assert all(torch.equal(server["model"][n], first[n]) for n in first if not shared(n))  # for new clients
    for client, module in modules.items():
        assert close(kept[client]["personal"], {n: t for n, t in floats(module).items() if not shared(n)})
    owned = [kept[client]["personal"] for client in data]
    assert not close(owned[0], owned[1], 0.01)
    assert not close(owned[0], {n: first[n] for n in owned[0]}, 0.01)
    if open_:
        assert close(server["normalization"], {n: t for n, t in mean.items() if not shared(n)})
        assert close(method.model(method.serving.published(server)), mean)
    else:
        assert set(server) == {"model"}
        assert same({"model": method.model(method.serving.published(server))}, server)


class BlockTests:
    """For methods that personalize so many whole blocks (``setting``): none, some, all of four, and too many."""

    name: ClassVar[str]
    setting: ClassVar[str]
    shared: ClassVar[Mapping[int | None, tuple[str, ...]]]
    """How many blocks (None: the default) -> how the names of shared tensors start."""

    @NORMS
    def test_rounds_equal_modules_trained_and_averaged_naively(self, norm: str, weighting: str, recipe: Recipe) -> None:
        for blocks, starts in self.shared.items():
            config = {} if blocks is None else {self.setting: blocks}
            method = build(self.name, recipe, norm, weighting, **config)
            assert_rounds_equal_naive(method, lambda name, starts=starts: name.startswith(starts), jointly)  # type: ignore[misc]

    @pytest.mark.parametrize(("norm", "weighting"), [("batch", "examples"), ("group", "uniform"), ("none", "examples")])
    def test_nothing_personal_is_fedavg_bit_for_bit(self, weighting: str, norm: str, recipe: Recipe) -> None:
        average, _ = federate(build("fedavg", recipe, norm, weighting), clients(3))
        server, kept = federate(build(self.name, recipe, norm, weighting, **{self.setting: 0}), clients(3))
        assert same(server, average)
        assert kept == {}

    def test_everything_personal_is_training_alone_bit_for_bit(self, recipe: Recipe) -> None:
        method, average = build(self.name, recipe, "batch", "uniform", **{self.setting: 4}), build("fedavg", recipe)
        data = clients(3)
        server, kept = federate(method, data)
        assert same(server, method.init(SEED))
        model = method.task.network.workspace()
        for place, client in enumerate(data):
            alone = average.init(SEED)
            for number in (i for i, chosen in enumerate(SCHEDULE) if place in chosen):
                sent, _ = average.client_update(alone, None, data[client], Context(SEED, client, model, number))
                alone = sent.tensors
            assert same({"model": kept[client]["personal"]}, alone)

    def test_more_blocks_than_there_are_get_a_sentence(self, recipe: Recipe) -> None:
        with pytest.raises(InputError, match=f"'{self.setting}' must be at most 4.*but it is 5"):
            build(self.name, recipe, "batch", "uniform", **{self.setting: 5})
