"""Fit a trained federation to one new client: from the server's state and the client's own images alone.

``none`` takes the model as it is, ``lp`` trains the classifier on frozen features, ``ft`` fine-tunes everything;
further names belong to the method (FedBasis: ``coefficients``, ``coefficients+classifier``). The outcome holds the
model after the Last epoch and after the Best one, chosen on validation data and never on test data.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fedbasis.algorithms.base import Adaptation, Context, Method
from fedbasis.params import State, Tensors
from fedbasis.train import Examples, MeanLoss, backward_passes, sgd
from pflbed.errors import InputError

Validate = Callable[[Context], float]
GENERIC = ("none", "lp", "ft")


@dataclass(frozen=True)
class Fitted:
    """One personal model: an ordinary network's tensors, what else was learned (psi), and after which epoch."""

    tensors: Tensors
    learned: Tensors
    epoch: int


@dataclass(frozen=True)
class Outcome:
    """The personal model after the last epoch and after the best one, with the curves that led there."""

    last: Fitted
    best: Fitted
    losses: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)


def personalizers_of(method: type[Method] | Method) -> tuple[str, ...]:
    """List the ways in which a new client can be fitted after this method."""
    return GENERIC + method.personalizers


def personalize(
    method: Method,
    server: State,
    how: str,
    data: Examples,
    context: Context,
    plan: Adaptation,
    validate: Validate | None = None,
) -> Outcome:
    """Fit ``context.model`` to the client's data and return the personal models.

    ``validate`` scores the current model on validation data after every epoch; without it Best is Last.
    """
    if how not in personalizers_of(method):
        raise InputError(
            f"After {method.name} a client can be fitted by {', '.join(personalizers_of(method))}, not by '{how}'."
        )
    losses: list[float] = []
    scores: list[float] = []
    best: Fitted | None = None
    learned: Tensors = {}
    for loss, learned in _epochs(method, server, how, data, context, plan):
        losses.append(loss)
        if validate is not None:
            scores.append(validate(context))
            if best is None or scores[-1] > max(scores[:-1]):
                best = Fitted(context.model.tensors(), learned, len(scores))
    last = Fitted(context.model.tensors(), learned, len(losses))
    return Outcome(last, best or last, losses, scores)


def _epochs(
    method: Method, server: State, how: str, data: Examples, context: Context, plan: Adaptation
) -> Iterator[tuple[float, Tensors]]:
    if how in method.personalizers:
        yield from method.adapt(how, server, data, context, plan)
        return
    context.model.load(method.model(server), "The server's model")
    if how == "none":
        yield float("nan"), {}
        return
    model, blocks = context.model, range(len(context.model.weights))
    if how == "lp":  # the classifier alone, on features that stay as they are
        names = {e.name for e in model.layout.entries if e.name.startswith(method.task.classifier + ".")}
        trained = [p for name, p in model.module.named_parameters() if name in names]
        flats, gradients = [p.data for p in trained], [p.grad for p in trained if p.grad is not None]
    else:
        flats, gradients = [model.weights[b] for b in blocks], [model.gradients[b] for b in blocks]
    optimizer = sgd(flats, gradients, [plan.rate] * len(flats), [plan.decay] * len(flats), plan.momentum)
    losses = MeanLoss()
    for epoch_ends, loss in backward_passes(
        model,
        data,
        plan.recipe(method.task.recipe),
        context.generator("adapt"),
        statistics="frozen" if how == "lp" else "batch",
    ):
        optimizer.step()
        losses.add(loss)
        if epoch_ends:
            yield losses.value(), {}
            losses = MeanLoss()
