"""Fed-RoD: a generic model trained with a balanced loss, and a personal head on top trained with the plain loss.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022. With body
``f``, generic head ``h``, personal head ``p_m`` and ``N_mc`` images of class ``c`` at client ``m``:

    generic:  minimize  -log( N_my^gamma exp(h_y) / sum_c N_mc^gamma exp(h_c) )   in ``f`` and ``h``; averaged
    personal: minimize  CE( h(z) + p_m(z), y ),  z = f(x),  ``z`` and ``h(z)`` detached,  in ``p_m``; kept
    predict:  argmax_c  h_c(z) + p_mc(z)

Both are trained in the same steps. The personal head is linear (the paper's other variant generates it by a
hypernetwork): the sum of two linear heads is a linear head, so a client's model is one ordinary network.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fedbasis.methods.base import MODEL, About, Adaptation, Context, MethodConfig, Sent, Task, Ways
from fedbasis.methods.fedavg import FedAvg
from fedbasis.networks.batches import Recipe
from fedbasis.networks.classifier import head_steps, passed, require_last, watching
from fedbasis.networks.inputs import Examples
from fedbasis.networks.optimizers import PlainSGD
from fedbasis.networks.train import by_epoch, local_sgd
from fedbasis.tensors.params import State, Tensors
from pflbed.errors import InputError

PERSONAL = "personal"


class FedRoDConfig(MethodConfig):
    """The balanced softmax of the generic model."""

    gamma: float = Field(1.0, ge=0, description="power of the class counts in the balanced softmax; 0: the plain loss")


class FedRoD(FedAvg):
    """The server's state is the generic model; a client's state is its personal head."""

    about: ClassVar[About] = About(
        name="fedrod",
        title="Fed-RoD",
        paper="Chen and Chao 2022",
        sends="1 model",
        keeps="the personal head",
        new_client="a personal head trained from zero on the frozen generic model (rod)",
    )
    ways: ClassVar[Ways] = Ways(
        own=("rod",),
        default=("none", "lp", "ft", "rod"),
        head_only=("rod",),
    )
    Config: ClassVar[type[MethodConfig]] = FedRoDConfig
    config: FedRoDConfig

    def setup(self) -> None:
        """Check the settings against the network."""
        if type(self.task.network.build().get_submodule(self.task.classifier)) is not nn.Linear:
            raise InputError(
                f"Fed-RoD needs a linear classifier, but '{self.task.classifier}' is not one; set 'classifier_name'."
            )

    def client_update(
        self,
        received: State,
        state: State | None,
        data: Examples,
        context: Context,
        only: tuple[int, int] | None = None,
    ) -> tuple[Sent, State | None]:
        """Train the generic model and, on its detached features, this client's head; the loss is the sum of both."""
        context.model.load(received[MODEL])
        head = _Head(context.model.module, self.task, self.task.recipe, {} if state is None else state[PERSONAL])
        counts = torch.bincount(data.labels.cpu(), minlength=self.task.network.classes)
        prior = log_prior(counts, self.config.gamma).to(context.model.weights[0])

        def objective(logits: Tensor, labels: Tensor, _: Tensor) -> Tensor:
            features, output = seen.pop()
            if not head.checked:  # once: to compare is to wait for the device
                require_last(self.task.classifier, output, logits, self.about.title)
                head.checked = True
            head.optimizer.zero_grad()
            personal = F.cross_entropy(logits.detach() + head(features.detach()), labels)
            return F.cross_entropy(logits + prior, labels) + personal

        with watching(head.classifier) as seen:
            loss = local_sgd(
                context.model, data, self.task.recipe, context.generator("batches"),
                only=only, objective=objective, on_step=lambda _: head.optimizer.step(),
            )  # fmt: skip
        numbers = {"loss": loss.value(), "examples": float(len(data))}
        return Sent({MODEL: context.model.tensors()}, numbers), {PERSONAL: head.tensors()}

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Train a personal head from zero on the frozen generic model."""
        context.model.load(self.model(server), "The server's model")
        recipe, module, classifier = plan.recipe(self.task.recipe), context.model.module, self.task.classifier
        head = _Head(module, self.task, recipe, {})
        seen = passed(module, classifier, data.pixels, recipe.preprocessing, last_for=self.about.title)
        labels = data.labels.to(seen.logits.device)

        def loss_of(rows: Tensor) -> Tensor:
            return F.cross_entropy(seen.logits[rows] + head(seen.features[rows]), labels[rows])

        generator = context.generator("adapt")
        steps = head_steps(loss_of, head.optimizer, len(data), recipe.batch, recipe.epochs, generator, labels.device)
        for loss in by_epoch(steps):
            head.merge()
            yield loss, {}


class _Head:
    """A personal head in addition to a network's classifier: same shapes and names, zero by default, its own SGD."""

    def __init__(self, module: nn.Module, task: Task, recipe: Recipe, tensors: Tensors) -> None:
        self.prefix, self.classifier, self.checked = task.classifier, module.get_submodule(task.classifier), False
        self.generic = {name: tensor.detach().clone() for name, tensor in self.classifier.named_parameters()}
        zero = {f"{self.prefix}.{name}": torch.zeros_like(tensor) for name, tensor in self.generic.items()}
        start = {**zero, **tensors}
        self.own = {n: nn.Parameter(start[f"{self.prefix}.{n}"].to(t, copy=True)) for n, t in self.generic.items()}
        self.optimizer = PlainSGD(self.own.values(), recipe.rate, recipe.momentum, recipe.decay)

    def __call__(self, features: Tensor) -> Tensor:
        return F.linear(features, self.own["weight"], self.own.get("bias"))

    def merge(self) -> None:
        """Set the network's classifier to the sum of the generic and the personal head."""
        with torch.no_grad():
            for name, parameter in self.classifier.named_parameters():
                parameter.copy_(self.generic[name] + self.own[name])

    def tensors(self) -> Tensors:
        return {f"{self.prefix}.{name}": tensor.detach().to("cpu", copy=True) for name, tensor in self.own.items()}


def log_prior(counts: Tensor, gamma: float) -> Tensor:
    """Return ``gamma log(N_c / max N)``: equal counts give exact zeros, and an absent class minus infinity."""
    return (counts.double() / counts.max()).pow(gamma).log()
