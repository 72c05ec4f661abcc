"""Methods that personalize some layers, against plain torch modules that are trained and averaged naively."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import shapes_examples
from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation, Context, Method, Task
from fedbasis.networks.models import Network
from fedbasis.networks.train import Examples, Recipe, batches
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State, Tensors
from fedbasis.tensors.seeding import torch_generator
from pflbed.errors import InputError
from test_methods import clients, same

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


def in_two_phases(module: nn.Module, data: Examples, recipe: Recipe, generator: torch.Generator) -> None:
    head = [p for name, p in module.named_parameters() if name.startswith("fc.")]
    body = [p for name, p in module.named_parameters() if not name.startswith("fc.")]
    for chosen, epochs in ((head, 3), (body, recipe.epochs)):
        optimizer = descend(chosen, recipe)
        for _ in range(epochs):
            for rows in batches(len(data), recipe.batch, generator):
                module.train(chosen is body)
                x, y = inputs(data, rows)
                module.zero_grad()
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


CASES: dict[str, tuple[str, dict[str, Any], Callable[[str], bool], Train]] = {
    "lg-fedavg": ("lg-fedavg", {}, lambda n: n.startswith("fc."), jointly),
    "lg-fedavg 2": ("lg-fedavg", {"local_blocks": 2}, lambda n: n.startswith(("conv3.", "fc.")), jointly),
    "fedper": ("fedper", {}, lambda n: not n.startswith("fc."), jointly),
    "fedper 3": ("fedper", {"personal_blocks": 3}, lambda n: n.startswith("conv1."), jointly),
    "fedrep": ("fedrep", {"head_epochs": 3}, lambda n: not n.startswith("fc."), in_two_phases),
    "fedbn": ("fedbn", {}, lambda n: n.split(".")[1] != "1", jointly),
    "fedbn closed": (
        "fedbn",
        {"share_normalization_for_new_clients": False},
        lambda n: n.split(".")[1] != "1",
        jointly,
    ),
}


@pytest.mark.parametrize(("norm", "weighting"), [("batch", "examples"), ("group", "uniform")])
@pytest.mark.parametrize("case", CASES)
def test_rounds_equal_modules_trained_and_averaged_naively(
    case: str, norm: str, weighting: str, recipe: Recipe
) -> None:
    """Several rounds with changing clients: each comes back to its own layers, whoever else has trained meanwhile."""
    name, config, shared, train = CASES[case]
    method, data = build(name, recipe, norm, weighting, **config), clients(3)
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
    if case == "fedbn":
        assert close(server["normalization"], {n: t for n, t in mean.items() if not shared(n)})
        assert close(method.model(method.serving.published(server)), mean)
    else:
        assert set(server) == {"model"}
        assert same({"model": method.model(method.serving.published(server))}, server)


class TestNothingAndEverythingPersonal:
    @pytest.mark.parametrize(("norm", "weighting"), [("batch", "examples"), ("group", "uniform"), ("none", "examples")])
    @pytest.mark.parametrize(
        ("name", "config"), [("lg-fedavg", {"local_blocks": 0}), ("fedper", {"personal_blocks": 0})]
    )
    def test_nothing_personal_is_fedavg_bit_for_bit(
        self, name: str, config: dict[str, Any], weighting: str, norm: str, recipe: Recipe
    ) -> None:
        average, _ = federate(build("fedavg", recipe, norm, weighting), clients(3))
        server, kept = federate(build(name, recipe, norm, weighting, **config), clients(3))
        assert same(server, average)
        assert kept == {}

    @pytest.mark.parametrize("weighting", ["uniform", "examples"])
    @pytest.mark.parametrize("share", [True, False])
    def test_fedbn_without_normalization_is_fedavg_bit_for_bit(
        self, share: bool, weighting: str, recipe: Recipe
    ) -> None:
        average, _ = federate(build("fedavg", recipe, "none", weighting), clients(3))
        method = build("fedbn", recipe, "none", weighting, share_normalization_for_new_clients=share)
        server, kept = federate(method, clients(3))
        assert same(server, average)
        assert kept == {}

    @pytest.mark.parametrize(
        ("name", "config"), [("lg-fedavg", {"local_blocks": 4}), ("fedper", {"personal_blocks": 4})]
    )
    def test_everything_personal_is_training_alone_bit_for_bit(
        self, name: str, config: dict[str, Any], recipe: Recipe
    ) -> None:
        method, average, data = build(name, recipe, **config), build("fedavg", recipe), clients(3)
        server, kept = federate(method, data)
        assert same(server, method.init(SEED))
        model = method.task.network.workspace()
        for place, client in enumerate(data):
            alone = average.init(SEED)
            for number in (i for i, chosen in enumerate(SCHEDULE) if place in chosen):
                sent, _ = average.client_update(alone, None, data[client], Context(SEED, client, model, number))
                alone = sent.tensors
            assert same({"model": kept[client]["personal"]}, alone)

    def test_the_classifier_is_the_last_block(self, recipe: Recipe) -> None:
        methods = build("fedper", recipe), build("fedper", recipe, personal_blocks=1)
        one, other = (federate(method, clients(3)) for method in methods)
        assert same(one[0], other[0])
        assert all(same(one[1][client], other[1][client]) for client in one[1])

    @pytest.mark.parametrize(("name", "setting"), [("lg-fedavg", "local_blocks"), ("fedper", "personal_blocks")])
    def test_more_blocks_than_there_are_get_a_sentence(self, name: str, setting: str, recipe: Recipe) -> None:
        with pytest.raises(InputError, match=f"'{setting}' must be at most 4.*but it is 5"):
            build(name, recipe, "batch", "uniform", **{setting: 5})


class TestFedRep:
    @pytest.mark.parametrize("norm", ["batch", "group", "none"])
    def test_each_phase_leaves_the_other_half_alone_to_the_bit(self, norm: str, recipe: Recipe) -> None:
        method, data = build("fedrep", recipe, norm, head_epochs=3, body_epochs=2), shapes_examples(24)
        model, server = method.task.network.workspace(), method.init(SEED)
        seen: list[Tensors] = []
        hook = model.module.register_forward_pre_hook(lambda *_: seen.append(model.tensors()))
        sent, kept = method.client_update(server, None, data, Context(SEED, "c", model))
        hook.remove()
        assert kept is not None
        assert len(seen) == (3 + 2) * 3  # three batches an epoch
        after = {**sent.tensors["model"], **kept["personal"]}
        body, head = sent.tensors["model"].keys(), kept["personal"].keys()
        fitting, training = [*seen[:9], seen[9]], [*seen[9:], after]
        assert all(torch.equal(now[name], server["model"][name]) for now in fitting for name in body)
        assert all(torch.equal(now[name], kept["personal"][name]) for now in training for name in head)
        assert all(not torch.equal(a[name], b[name]) for a, b in pairwise(fitting) for name in head)
        assert all(not torch.equal(a[name], b[name]) for a, b in pairwise(training) for name in body)

    def test_the_head_a_client_fits_is_that_of_a_linear_probe(self, recipe: Recipe) -> None:
        """With one batch an epoch the order is the same, so a new client gets what a participant's head phase gives."""
        whole = replace(recipe, batch=64)
        method, data = build("fedrep", whole, head_epochs=4), shapes_examples(24)
        server, _ = federate(method, clients(3))
        context = Context(SEED, "new", method.task.network.workspace())
        _, kept = method.client_update(server, None, data, context)
        plan = Adaptation(epochs=4, rate=recipe.rate, decay=recipe.decay, momentum=recipe.momentum, batch=64)
        probe = personalize(method, server, "lp", data, context, plan).last.tensors
        assert kept is not None
        assert close({name: probe[name] for name in kept["personal"]}, kept["personal"], 1e-5)

    def test_the_body_gets_the_epochs_of_the_recipe_unless_told_otherwise(self, recipe: Recipe) -> None:
        one, same_said = (build("fedrep", recipe, head_epochs=1, body_epochs=n) for n in (None, recipe.epochs))
        assert same(federate(one, clients(3))[0], federate(same_said, clients(3))[0])


class TestFedBn:
    def test_what_new_clients_get_changes_nothing_for_those_who_take_part(self, recipe: Recipe) -> None:
        open_, closed = (build("fedbn", recipe, share_normalization_for_new_clients=share) for share in (True, False))
        one, other = federate(open_, clients(3)), federate(closed, clients(3))
        assert same({"model": one[0]["model"]}, other[0])
        assert all(same(one[1][client], other[1][client]) for client in one[1])
        assert same(open_.broadcast(one[0], "any"), {"model": one[0]["model"]})
        assert not close(open_.model(one[0]), closed.model(other[0]), 0.01)

    def test_the_first_normalization_layers_for_new_clients_are_the_initial_ones(self, recipe: Recipe) -> None:
        method = build("fedbn", recipe)
        assert same({"": method.model(method.init(SEED))}, {"": method.task.initial(SEED)})


def uneven(*counts: int, domain: int = 0, seed: int = 0) -> Examples:
    """Draw so many images of each class."""
    pool = shapes_examples(3 * max(counts), domain, seed)
    rows = torch.cat([torch.nonzero(pool.labels == label)[:count, 0] for label, count in enumerate(counts)])
    return Examples(pool.pixels[rows], pool.labels[rows])


def with_two_heads(counts: Tensor, personal: nn.Linear) -> Train:
    """Fed-RoD written down naively: the formula of the balanced softmax, two backward passes, two optimizers."""

    def train(module: nn.Module, data: Examples, recipe: Recipe, generator: torch.Generator) -> None:
        generic, own = descend(module.parameters(), recipe), descend(personal.parameters(), recipe)
        body = nn.Sequential(*list(module.children())[:-1])
        for _ in range(recipe.epochs):
            for rows in batches(len(data), recipe.batch, generator):
                module.train()
                x, y = inputs(data, rows)
                z = body(x)
                g = module.fc(z)  # type: ignore[operator]
                weighted = counts * torch.exp(g)
                balanced = -torch.log(weighted[torch.arange(len(y)), y] / weighted.sum(1)).mean()
                both = g.data.clone() + personal(z.data.clone())
                generic.zero_grad()
                own.zero_grad()
                balanced.backward()  # type: ignore[no-untyped-call]
                nn.functional.cross_entropy(both, y).backward()  # type: ignore[no-untyped-call]
                generic.step()
                own.step()

    return train


def two_features(classes: int, bias: bool = True, twice: bool = False) -> nn.Module:
    """A network whose classifier may lack a bias or not come last."""
    layers = [nn.Flatten(), nn.Linear(432, 2), nn.Tanh(), nn.Linear(2, classes, bias), *([nn.Softplus()] * twice)]
    return nn.Sequential(*layers)


class TestFedRoD:
    COUNTS = ((12, 3, 5), (1, 0, 15), (8, 8, 8))

    def data(self) -> dict[str, Examples]:
        return {f"c{i}": uneven(*counts, domain=i % 2, seed=i) for i, counts in enumerate(self.COUNTS)}

    @pytest.mark.parametrize("norm", ["batch", "none"])
    def test_rounds_equal_two_heads_trained_naively(self, norm: str, recipe: Recipe) -> None:
        """One class is absent at the second client, which the formula takes as it is."""
        method, data = build("fedrod", recipe, norm), self.data()
        server, kept = federate(method, data, torch.float64)
        heads = {client: nn.Linear(64, 3, dtype=torch.float64) for client in data}
        for head in heads.values():
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        trains = {id(data[c]): with_two_heads(torch.tensor(self.COUNTS[i]), heads[c]) for i, c in enumerate(data)}
        wanted, _, _ = naive(method, data, lambda _: True, lambda m, d, r, g: trains[id(d)](m, d, r, g))
        assert close(server["model"], wanted)
        for client, head in heads.items():
            assert close(kept[client]["personal"], {f"fc.{n}": t.detach() for n, t in head.named_parameters()})
            assert float(head.weight.detach().norm()) > 0.01

    @pytest.mark.parametrize("gamma", [1.0, 0.5, 2.0])
    def test_one_step_is_the_gradient_of_the_balanced_softmax(self, gamma: float, recipe: Recipe) -> None:
        step = replace(recipe, epochs=1, batch=64, momentum=0.0, decay=0.0)
        method, data = build("fedrod", step, "none", gamma=gamma), uneven(9, 2, 0)
        module = method.task.network.build(SEED).double()
        x, y = inputs(data, torch.arange(len(data)))
        logits = module(x)
        chances = torch.tensor([9.0, 2.0, 0.0], dtype=torch.float64) ** gamma * torch.exp(logits)
        loss = -torch.log(chances[torch.arange(len(y)), y] / chances.sum(1)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        sent, _ = method.client_update(
            method.init(SEED), None, data, Context(SEED, "c", FlatModel(deepcopy(module), method.task.layout))
        )
        moved = {n: (p.detach() - sent.tensors["model"][n]) / step.rate for n, p in module.named_parameters()}
        assert close(moved, {n: p.grad for n, p in module.named_parameters() if p.grad is not None})
        both = (loss + nn.functional.cross_entropy(logits, y)).detach()  # the personal head adds nothing yet
        assert sent.numbers["loss"] == pytest.approx(float(both), rel=1e-9)

    def test_equal_counts_of_all_classes_are_fedavg_bit_for_bit(self, recipe: Recipe) -> None:
        """Then the balanced loss is the plain one; the personal head, whatever it is, touches nothing that is sent."""
        average, _ = federate(build("fedavg", recipe), clients(3))
        server, _ = federate(build("fedrod", recipe), clients(3))
        assert same(server, average)

    def test_power_zero_is_fedavg_bit_for_bit_and_power_one_is_not(self, recipe: Recipe) -> None:
        average, _ = federate(build("fedavg", recipe), self.data())
        assert same(federate(build("fedrod", recipe, gamma=0.0), self.data())[0], average)
        assert not close(federate(build("fedrod", recipe), self.data())[0]["model"], average["model"], 0.01)

    def test_no_gradient_of_the_personal_head_reaches_what_is_sent(self, recipe: Recipe) -> None:
        method, data = build("fedrod", recipe), uneven(12, 3, 5)
        context = Context(SEED, "c", method.task.network.workspace())
        server = method.init(SEED)
        far = {"personal": {"fc.weight": torch.full((3, 64), 2.0), "fc.bias": torch.tensor([5.0, -5.0, 0.0])}}
        (one, first), (other, second) = (method.client_update(server, k, data, context) for k in (None, far))
        assert same(one.tensors, other.tensors)
        assert first is not None
        assert second is not None
        assert not close(first["personal"], second["personal"], 0.1)

    def test_a_personal_head_from_zero_without_decay_is_a_linear_probe(self, recipe: Recipe) -> None:
        """The gradient of the sum of two heads is the same in each, so without decay the sum moves as one head."""
        method = build("fedrod", recipe)
        server, _ = federate(method, self.data())
        context = Context(SEED, "new", method.task.network.workspace())
        free, held = (Adaptation(epochs=4, rate=0.05, decay=decay, batch=5) for decay in (0.0, 0.3))
        data = uneven(7, 2, 4, seed=9)
        for plan, agree in ((free, True), (held, False)):
            rod, probe = (personalize(method, server, how, data, context, plan) for how in ("rod", "lp"))
            assert close(rod.last.tensors, probe.last.tensors, 1e-5) is agree
            assert (rod.losses == pytest.approx(probe.losses, rel=1e-4)) is agree
            body = server["model"].keys() - {"fc.weight", "fc.bias"}
            assert all(torch.equal(rod.last.tensors[name], server["model"][name]) for name in body)

    @pytest.mark.parametrize("bias", [True, False])
    def test_the_merged_head_gives_the_sum_of_both_heads_logits(self, bias: bool, recipe: Recipe) -> None:
        network = Network(f"{__name__}:two_features", 3, 12, {"bias": bias})
        method = METHODS["fedrod"].build(METHODS["fedrod"].Config(), Task(network, recipe, 1))
        data, plan = uneven(7, 2, 4), Adaptation(epochs=3, rate=0.1, decay=0.2, batch=5)
        context, server = Context(SEED, "new", network.workspace()), method.init(SEED)
        fitted = personalize(method, server, "rod", data, context, plan)
        module, personal = network.build(SEED), nn.Linear(2, 3, bias)
        for parameter in personal.parameters():
            nn.init.zeros_(parameter)
        x, y = inputs(data, torch.arange(len(data)), torch.float32)
        with torch.no_grad():
            features = module[:-1](x)  # type: ignore[index]
            generic = module(x)
        optimizer = torch.optim.SGD(personal.parameters(), lr=0.1, momentum=plan.momentum, weight_decay=0.2)
        generator = context.generator("adapt")
        for _ in range(3):
            for rows in batches(len(data), 5, generator):
                optimizer.zero_grad()
                nn.functional.cross_entropy(generic[rows] + personal(features[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        context.model.load(fitted.last.tensors)
        with torch.no_grad():
            torch.testing.assert_close(context.model.module(x), generic + personal(features))
            assert float(personal(features).norm()) > 0.1

    def test_best_can_be_taken_after_any_epoch(self, recipe: Recipe) -> None:
        """What stands in the model after an epoch is what that many epochs give."""
        method = build("fedrod", recipe)
        server, data = method.init(SEED), uneven(7, 2, 4)
        context = Context(SEED, "new", method.task.network.workspace())
        seen: list[Tensors] = []

        def watch(now: Context, _: Tensors) -> float:
            seen.append(now.model.tensors())
            return 0.0

        personalize(method, server, "rod", data, context, Adaptation(epochs=3), watch)
        for epochs, tensors in enumerate(seen, start=1):
            short = personalize(method, server, "rod", data, context, Adaptation(epochs=epochs))
            assert same({"": short.last.tensors}, {"": tensors})

    def test_a_classifier_that_does_not_come_last_gets_a_sentence(self, recipe: Recipe) -> None:
        network = Network(f"{__name__}:two_features", 3, 12, {"twice": True})
        method = METHODS["fedrod"].build(METHODS["fedrod"].Config(), Task(network, recipe, 1))
        context = Context(SEED, "c", network.workspace())
        with pytest.raises(InputError, match="'3' to be the network's last layer"):
            method.client_update(method.init(SEED), None, uneven(3, 3, 3), context)
        with pytest.raises(InputError, match="'3' to be the network's last layer"):
            personalize(method, method.init(SEED), "rod", uneven(3, 3, 3), context, Adaptation(epochs=1))
        assert isinstance(context.model, FlatModel)
        assert not context.model.module[3]._forward_hooks  # type: ignore[index]
