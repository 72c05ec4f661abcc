"""Serving new clients beside the arithmetic that it needs: 40 clients, personalized and scored, one thread.

    python benchmarks/new_clients.py            (some minutes; --quick for a look)

By hand means: the same training steps, a look at the validation images after every epoch and at the test images after
the last and the best one, forward passes shared where clients' models agree, and images laid out for the processor; no
seeds, no weights of images, no records, no copies of best models.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fedbasis.engines.in_process import InProcess
from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation, Method, Task
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.serving.evaluation import EvaluationPlan, evaluate
from fedbasis.tensors.params import State
from measure import options, ratio, table, taking_turns
from pflbed import Client, Images
from plain import DECAY, MOMENTUM, PIXELS, RATE, channels_last, floats, picked, random_images

DOMAINS, TRAIN, VAL, TEST, BATCH, K = 4, 39, 100, 300, 16, 4
NETWORK = Network("cnn-small", 10, PIXELS)
BASES: dict[str, Any] = {"bases": K, "init": "random", "warm_start": 0.0}
Floats = tuple[Tensor, Tensor]


def new_clients(count: int) -> dict[str, Client]:
    """Make clients of a few domains, which share the images they are scored on."""
    held = VAL + TEST
    pixels, labels = random_images(DOMAINS * held + count * TRAIN, PIXELS)

    def images(start: int, size: int) -> Images:
        return Images(pixels, np.arange(start, start + size), labels[start : start + size])

    shared = [(images(d * held, VAL), images(d * held + VAL, TEST)) for d in range(DOMAINS)]
    made = {}
    for number in range(count):
        val, test = shared[number % DOMAINS]
        train = images(DOMAINS * held + number * TRAIN, TRAIN)
        made[f"n{number}"] = Client(
            f"n{number}", f"domain {number % DOMAINS}", train, val, test, np.full(10, 0.1), np.ones(VAL), np.ones(TEST),
            {"M": np.arange(TRAIN)},
        )  # fmt: skip
    return made


class ByHand:
    """Loops over clients whose images lie in memory as floats; ``best`` says which epoch is best for whom."""

    def __init__(self, clients: dict[str, Client], epochs: int, best: dict[str, int], state: State) -> None:
        ready: dict[Images, Floats] = {}
        for client in clients.values():
            for images in (client.train, client.val, client.test):
                ready[images] = ready[images] if images in ready else channels_last(*floats(images))
        self._clients = [(ready[c.train], ready[c.val][0], ready[c.test][0], best[name]) for name, c in clients.items()]
        self._epochs, self._state = epochs, state
        self._model = NETWORK.build()
        self._start = {name: tensor.clone() for name, tensor in self._model.state_dict().items()}

    @torch.no_grad()
    def none(self) -> None:
        """Look at every domain's images once."""
        self._model.load_state_dict(self._start)
        self._model.eval()
        for _, val, test, _ in self._clients[:DOMAINS]:
            for images in (val, test):
                self._model(images).argmax(1)

    def lp(self) -> None:
        """Train a linear layer on features; those of a domain's images are made once."""
        self._model.load_state_dict(self._start)
        layers = list(self._model.eval().children())
        body, head = nn.Sequential(*layers[:-1]), layers[-1]
        first = {name: tensor.clone() for name, tensor in head.state_dict().items()}
        with torch.no_grad():
            held = [(body(val), body(test)) for _, val, test, _ in self._clients[:DOMAINS]]
        for number, ((x, y), _, _, best) in enumerate(self._clients):
            head.load_state_dict(first)
            with torch.no_grad():
                features = body(x)
            self._fit(head, head, features, y, held[number % DOMAINS], best)

    def ft(self) -> None:
        """Train the whole network."""
        for (x, y), val, test, best in self._clients:
            self._model.load_state_dict(self._start)
            self._fit(self._model, self._model, x, y, (val, test), best)

    def _fit(self, model: nn.Module, trained: nn.Module, x: Tensor, y: Tensor, held: Floats, best: int) -> None:
        optimizer = torch.optim.SGD(trained.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)

        def step(rows: Tensor) -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(picked(x, rows)), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        self._epochs_of(model, True, step, len(y), held, best)

    def _epochs_of(
        self, model: nn.Module, training: bool, step: Callable[[Tensor], None], count: int, held: Floats, best: int
    ) -> None:
        for _ in range(self._epochs):
            model.train(training)
            for rows in torch.split(torch.randperm(count), BATCH):
                step(rows)
            model.eval()
            with torch.no_grad():
                model(held[0]).argmax(1)
        for _ in range(1 if best == self._epochs else 2):
            with torch.no_grad():
                model(held[1]).argmax(1)

    def coefficients(self) -> None:
        """Learn the coefficients of one flat matrix of bases, and an offset of the classifier."""
        names = [name for name, _ in self._model.named_parameters()]
        bases = torch.stack([torch.cat([m[name].flatten() for name in names]) for m in self._state.values()])
        flat = torch.empty_like(bases[0])
        gradient = torch.zeros_like(flat)
        start = 0
        for parameter in self._model.parameters():
            stop = start + parameter.numel()
            parameter.data = flat[start:stop].view(parameter.shape)
            parameter.grad = gradient[start:stop].view(parameter.shape)
            start = stop
        classifier = sum(p.numel() for p in list(self._model.children())[-1].parameters())
        for (x, y), val, test, best in self._clients:
            self._learn(bases, flat, gradient, classifier, x, y, (val, test), best)

    def _learn(
        self, bases: Tensor, flat: Tensor, gradient: Tensor, size: int, x: Tensor, y: Tensor, held: Floats, best: int
    ) -> None:
        psi = torch.zeros(K, requires_grad=True)
        offset = torch.zeros(size)
        offset.grad = gradient[-size:]
        adam = torch.optim.Adam([psi], lr=0.1)
        sgd = torch.optim.SGD([offset], lr=RATE, momentum=MOMENTUM)

        def step(rows: Tensor) -> None:
            c = torch.cat([torch.full((1,), 0.5), torch.softmax(psi, 0) / 2])
            torch.mv(bases.t(), c.detach(), out=flat)
            flat[-size:] += offset
            gradient.zero_()
            F.cross_entropy(self._model(picked(x, rows)), y[rows]).backward()  # type: ignore[no-untyped-call]
            adam.zero_grad()
            c.backward(torch.mv(bases, gradient))  # type: ignore[no-untyped-call]
            adam.step()
            sgd.step()

        self._epochs_of(self._model, False, step, len(y), held, best)


def main() -> None:
    given = options(__doc__)
    torch.set_num_threads(1)
    count, epochs, repeats = (8, 4, 2) if given.quick else (40, 10, 3)
    clients = new_clients(count)
    task = Task(NETWORK, Recipe(preprocessing=Preprocessing(PIXELS)), rounds=2)
    bases = METHODS["fedbasis"].Config(**BASES)
    fedavg, fedbasis = METHODS["fedavg"].build(None, task), METHODS["fedbasis"].build(bases, task)
    rows = []
    for how in ("none", "lp", "ft", "coefficients+classifier"):
        method: Method = fedbasis if how.startswith("coefficients") else fedavg
        adaptation = Adaptation(epochs=epochs, rate=RATE, batch=BATCH)
        plan = EvaluationPlan(ways=[how], sizes=["M"], rates=[RATE], adaptation=adaptation)
        state, worker = method.init(0), InProcess(method)
        best = {r["client"]: r["best_epoch"] for r in evaluate(worker, state, clients, plan, 0)}
        hand = ByHand(clients, epochs, best, state)
        by_hand = getattr(hand, how.partition("+")[0])
        ours = lambda d=worker, s=state, p=plan: evaluate(d, s, clients, p, 0)  # noqa: E731
        taken = taking_turns({"ours": ours, "by hand": by_hand}, repeats)
        cells = [f"{taken[name]:.2f}" for name in ("ours", "by hand")]
        rows.append([how, *cells, ratio(taken["ours"], taken["by hand"]), "1.30"])
    heads = [
        f"way ({epochs} epochs, 39 images a client)",
        f"ours, s for {count} clients",
        "by hand, s",
        "ratio",
        "at most",
    ]
    print(table(heads, rows))


if __name__ == "__main__":
    main()
