"""Fed-RoD against two heads written down naively."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from battery import clients, same
from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation, Context, Task
from fedbasis.networks.batches import Recipe, batches
from fedbasis.networks.inputs import Examples
from fedbasis.networks.models import Network
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import Tensors
from methods.helpers.layers import SEED, Train, build, close, descend, federate, inputs, naive
from pflbed.errors import InputError
from shapes import shapes_examples


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
        free, held = (
            Adaptation(epochs=4, rate=0.05, decay=decay, batch=5, statistics="frozen") for decay in (0.0, 0.3)
        )
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
