"""pFedGP: clients share the body of the network as a deep kernel; each has its own Gaussian process on it.

Achituve et al., "Personalized Federated Learning with Gaussian Processes", NeurIPS 2021 (pFedGP on all data, without
inducing points). A client builds a class tree of binary Gaussian processes (``gp_tree``) on its features, and trains
the body by SGD on one of the paper's two objectives, each step on all of its images:

    predictive: -log p(y* | x*, D) of a share of its images, drawn in every step, given the others D
    marginal:   -log p(y | X), whose gradient is the mean of that of log p(y | omega, X) over the posterior of omega

The server averages the bodies. A new client computes its posterior with the shared kernel, without gradients. The
network's own classifier is not trained and stays the initial one, for linear probes and fine-tuning (lp, ft).

Differences from the authors' code: p(y* | ...) is the mean of the sigmoid, not exp of the mean of its logarithm; the
loss is that of the whole tree per image, not the sum of every node's own mean; distances in the kernel are per feature;
Polya-Gamma variables are drawn by their series (its tail at its mean), not by an exact sampler.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedbasis.methods.base import (
    MODEL,
    About,
    Adaptation,
    Context,
    Method,
    MethodConfig,
    Sent,
    Serving,
    Update,
    Ways,
    require_labels,
    require_tensor,
)
from fedbasis.methods.pfedgp.gp_tree import GPTree, Kernel, class_tree
from fedbasis.networks.classifier import probabilities_and_features, watching
from fedbasis.networks.hold_out import hold_out
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import local_sgd
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.params import State, Tensors, only
from pflbed.errors import InputError


class PFedGPConfig(MethodConfig):
    """The kernel, the sampler and the objective; the defaults are those of the authors' code."""

    variance: float = Field(8.0, gt=0, description="variance of the RBF kernel (its output scale)")
    length: float = Field(1.0, gt=0, description="length scale of the RBF kernel, per feature")
    objective: Literal["predictive", "marginal"] = Field("predictive", description="the kernel's training objective")
    held_out: float = Field(0.5, gt=0, lt=1, description="share of a client's images that the predictive loss predicts")
    gibbs: int = Field(5, ge=1, description="steps of every Gibbs chain")
    draws: int = Field(20, ge=1, description="number of Gibbs chains in training")
    draws_new: int = Field(30, ge=1, description="number of Gibbs chains on a new client")


class PFedGPServing(Serving):
    """How a personalized client predicts."""

    method: "PFedGP"

    def check_learned(self, learned: Tensors) -> None:
        """Check the features, the labels, the tree of classes and the draws."""
        classes = self.method.task.network.classes
        features = require_tensor(learned, "features", (None, None))
        labels = require_tensor(learned, "labels", (len(features),), torch.int64)
        require_labels(labels, classes)
        tree = require_tensor(learned, "tree", (None, classes), torch.int64)
        omega = require_tensor(learned, "omega", (len(tree), None, len(features)))
        if not len(features) or (tree.numel() and not -1 <= int(tree.min()) <= int(tree.max()) <= 1):
            raise InputError("A Gaussian process must hold images and a tree of classes, but it does not.")
        if omega.numel() and float(omega.min()) < 0:
            raise InputError("The draws of a Gaussian process must not be negative, but one is.")

    def refit(self, way: str, data: Examples, context: Context) -> Tensors:
        """Compute the posterior again, by the features of the model as it is now."""
        return self.method.posterior(data, context)[1]

    def probabilities(self, model: FlatModel, learned: Tensors, pixels: Tensor) -> Tensor:
        """Predict by the Gaussian processes; without them by the model."""
        if "omega" not in learned:
            return super().probabilities(model, learned, pixels)
        features = self.method.features(model, pixels)
        classifier = GPTree(self.method.kernel, learned["features"], learned["labels"], learned["tree"])
        return classifier.log_probabilities(learned["omega"], features).exp().float()


class PFedGP(Method):
    """The server's state is one whole model; only its body is trained and sent."""

    about: ClassVar[About] = About(
        name="pfedgp",
        title="pFedGP",
        paper="Achituve et al. 2021",
        sends="1 model without its classifier",
        keeps="nothing in training; the features and labels of its images when it predicts",
        new_client="a Gaussian process on the features of its own images (gp)",
    )
    serving_type: ClassVar[type[Serving]] = PFedGPServing
    ways: ClassVar[Ways] = Ways(
        own=("gp",),
        default=("lp", "ft", "gp"),
        rate_free=("gp",),
        one_network=False,
    )
    Config: ClassVar[type[MethodConfig]] = PFedGPConfig
    config: PFedGPConfig

    def setup(self) -> None:
        """Check the settings against the network."""
        self.kernel = Kernel(self.config.variance, self.config.length)
        if not self.task.body & self.task.parameters:
            raise InputError("pFedGP needs parameters below the classifier, but this network has none.")

    def init(self, seed: int) -> State:
        """Start from the initial model."""
        return {MODEL: self.task.initial(seed)}

    def broadcast(self, server: State, client: str) -> State:
        """Send only the body: no client uses the classifier."""
        return {MODEL: only(server[MODEL], self.task.body)}

    def client_update(
        self, received: State, state: State | None, data: Examples, context: Context
    ) -> tuple[Sent, State | None]:
        """Train the body by the loss of the Gaussian process; a client with a single class does not train."""
        unused = {name: torch.zeros(self.task.layout.shapes[name]) for name in self.task.head}
        context.model.load({**unused, **received[MODEL]})
        loss = 0.0
        labels = data.labels.cpu().long()
        if len(set(labels.tolist())) > 1:
            features = self.features(context.model, data.pixels)
            tree = class_tree(features, labels, self.task.network.classes)
            generator, recipe = context.generator("posterior"), replace(self.task.recipe, batch=len(data))
            with watching(context.model.module.get_submodule(self.task.classifier)) as seen:

                def objective(_: Tensor, now: Tensor, rows: Tensor) -> Tensor:
                    return self.loss(seen.pop()[0].flatten(1).cpu(), now.cpu().long(), tree, generator)

                batches, names = context.generator("batches"), self.task.body & self.task.parameters
                loss = local_sgd(context.model, data, recipe, batches, names=names, objective=objective).value()
        body = only(context.model.tensors(), self.task.body)
        return Sent({MODEL: body}, {"loss": loss, "examples": float(len(data))}), None

    def features(self, model: FlatModel, pixels: Tensor) -> Tensor:
        """Return the inputs of the classifier."""
        return probabilities_and_features(model.module, self.task.classifier, pixels, self.task.recipe.preprocessing)[1]

    def loss(self, features: Tensor, labels: Tensor, tree: Tensor, generator: torch.Generator) -> Tensor:
        """Return the training loss of labelled features, which is differentiable in them.

        With one image per class none can be held out, and the loss is the marginal likelihood.
        """
        held = hold_out(
            labels, lambda rows: int(self.config.held_out * rows), partial(torch.randperm, generator=generator)
        )
        if self.config.objective == "marginal" or not held.any():
            whole = GPTree(self.kernel, features, labels, tree)
            return whole.marginal_loss(whole.sample(self.config.draws, self.config.gibbs, generator))
        known = GPTree(self.kernel, features[~held], labels[~held], tree)
        omega = known.sample(self.config.draws, self.config.gibbs, generator)
        return F.nll_loss(known.log_probabilities(omega, features[held]), labels[held])

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Average the clients' bodies."""
        return {MODEL: {**server[MODEL], **self.mean(updates)}}

    def model(self, server: State) -> Tensors:
        """Return the shared body with the initial classifier."""
        return server[MODEL]

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Sample the posterior of the client's Gaussian processes; the loss is the negative log marginal likelihood."""
        context.model.load(self.model(server))
        yield self.posterior(data, context)

    def posterior(self, data: Examples, context: Context) -> tuple[float, Tensors]:
        """Return the negative log marginal likelihood, and the Gaussian processes on the model's features."""
        features = self.features(context.model, data.pixels)
        labels = data.labels.cpu().long()
        tree = class_tree(features, labels, self.task.network.classes)
        classifier = GPTree(self.kernel, features, labels, tree)
        omega = classifier.sample(self.config.draws_new, self.config.gibbs, context.generator("adapt"))
        learned = {"features": features, "labels": labels, "tree": tree, "omega": omega.float()}
        return float(classifier.marginal_loss(omega)), learned
