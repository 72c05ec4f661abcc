"""Fit a trained federation to one new client: from the server's state and the client's own images alone.

``none`` takes the model as it is, ``prior`` shifts its logits by the client's class frequencies, ``lp`` trains the
classifier on frozen features, ``ft`` fine-tunes everything, ``ft-prox`` does so with a pull towards the server's model
(equation 2 of pFedMe), ``bn`` trains the normalization layers; further names belong to the method (``Ways.own``), and
may be followed by ``+lp`` or ``+ft``: the method's model is the start, and what the method predicts with besides the
model is computed again for the trained model. ``prior+`` before a way starts it from the client's class prior. All see
the same batches and augmentation, and all can have the server's normalization statistics, the client's own, or a mean
of both (``networks.statistics``): ``ft@frozen`` fixes them, otherwise ``Adaptation.statistics`` says which. The result
holds the model after the Last epoch and after the Best one, chosen on validation data and never on test data. ``auto``
chooses one of the ways by cross-validation on the client's images (``serving.automatic``).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from torch import Tensor
from torch.nn.functional import cross_entropy

from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation, Context, Method
from fedbasis.networks.class_prior import log_prior, with_prior
from fedbasis.networks.classifier import head_steps, passed
from fedbasis.networks.inputs import Examples
from fedbasis.networks.optimizers import PlainSGD
from fedbasis.networks.statistics import CHOICES, Statistics, has_statistics, statistics_of, with_statistics
from fedbasis.networks.train import by_epoch, proximal, sgd_steps
from fedbasis.serving.automatic import AUTO, PRIOR, Choice, cross_validate
from fedbasis.tensors.params import State, Tensors
from pflbed.errors import InputError

ValidateModel = Callable[[Context, Tensors], float]
GENERIC = ("none", PRIOR, "lp", "ft", "ft-prox", "bn")
FROM_PRIOR = f"{PRIOR}+"
"""Before a way that starts from the client's class prior: ``prior+lp``."""
PSEUDO_COUNT = 0.3
"""Of the class prior."""
CLIENT_STATE = "client-state"
"""The way of a client that took part and has a model of its own in its state: it is used as it is."""
UNTRAINED = ("none", CLIENT_STATE)
"""Ways that train nothing."""
FOLLOWING = ("lp", "ft")
"""What may follow a method's own way: its model is the start."""
AT = "@"
"""Between a way and the statistics that it is fixed to: ``ft@frozen``."""
SUFFIXES = {
    AUTO: " (auto)",
    PRIOR: " + class prior",
    "none": "",
    "lp": " + LP",
    "ft": " + FT",
    "ft-prox": " + FT (prox)",
    "bn": " + BN",
    CLIENT_STATE: "",
}


@dataclass(frozen=True)
class Fitted:
    """One personal model: an ordinary network's tensors, what else was learned, and after which epoch."""

    tensors: Tensors
    learned: Tensors
    epoch: int


@dataclass(frozen=True)
class AdaptationResult:
    """The personal model after the last epoch and after the best one, with the curves that led there."""

    last: Fitted
    best: Fitted
    losses: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    choice: Choice | None = None
    """What ``auto`` tried and chose."""


def label(method: str, way: str) -> str:
    """Name a built-in method and a way of personalizing as tables do: ``FedAvg + FT``."""
    if method in METHODS:
        return label_of(METHODS[method], way)
    way, fixed = split_way(way)
    if fixed is not None:
        return label(method, way) + statistics_suffix(fixed)
    return method.rpartition(":")[2] + SUFFIXES.get(way, f" + {way}")


def split_way(way: str) -> tuple[str, Statistics | None]:
    """Split ``ft@frozen`` into the way and its statistics; None: they are not fixed."""
    for choice in CHOICES:
        if way.endswith(AT + choice):
            return way.removesuffix(AT + choice), choice
    return way, None


def without_prior(way: str) -> str:
    """Return the way that follows the class prior, or the way itself."""
    return way.removeprefix(FROM_PRIOR)


def default_statistics(method: type[Method] | Method, way: str) -> Statistics:
    """Return the statistics of a way where nothing is said: frozen where little is trained, else the client's own."""
    little = (*UNTRAINED, PRIOR, *method.ways.rate_free, *method.ways.frozen)
    return "frozen" if without_prior(way) in little else "own"


def statistics_suffix(fixed: Statistics | None) -> str:
    """Return what tables print after the label of a way whose statistics are fixed."""
    return "" if fixed is None else f" ({fixed} statistics)"


def label_of(method: type[Method], way: str) -> str:
    """Name a method and a way of personalizing as tables do."""
    way, fixed = split_way(way)
    if fixed is not None:
        return label_of(method, way) + statistics_suffix(fixed)
    if way.startswith(FROM_PRIOR):
        title = method.about.title
        return label_of(method, without_prior(way)).replace(title, title + SUFFIXES[PRIOR], 1)
    own, suffixes = method.ways.own, {**SUFFIXES, **method.ways.suffixes}
    first, _, then = way.rpartition("+")
    if way not in own and first in own:
        return label_of(method, first) + SUFFIXES[then]
    return method.about.title + ("" if own[-1:] == (way,) else suffixes.get(way, f" + {way}"))


def all_ways(method: type[Method] | Method) -> tuple[str, ...]:
    """List the ways in which a new client can be personalized after this method."""
    own = method.ways.own
    return (*GENERIC, *own, *(f"{a}+{b}" for a, b in product(own, FOLLOWING)))


def personalize(
    method: Method,
    server: State,
    way: str,
    data: Examples,
    context: Context,
    plan: Adaptation,
    validate: ValidateModel | None = None,
) -> AdaptationResult:
    """Fit ``context.model`` to the client's data and return the personal models.

    ``validate`` scores the current model on validation data along the epochs; without it Best is Last.
    """
    way, fixed = split_way(way)
    if way == AUTO and fixed is None:
        return _automatic(method, server, data, context, replace(plan, statistics=None), validate)
    if without_prior(way) not in all_ways(method):
        raise InputError(
            f"The way of personalizing after {method.about.title} must be {AUTO} or one of "
            f"{', '.join(all_ways(method))}, these optionally with {FROM_PRIOR} before, and {AT}"
            f"{f' or {AT}'.join(CHOICES)} after them for the statistics, but it is '{way}'"
            f"{f' with {AT}{fixed}' if fixed else ''}."
        )
    statistics = fixed or plan.statistics or default_statistics(method, way)
    server = _adapted(method, server, statistics, data, context, plan)
    if way == PRIOR or way.startswith(FROM_PRIOR):
        server = _with_prior(method, server, data)
        way = without_prior(way)
    losses: list[float] = []
    scores: list[float] = []
    best: Fitted | None = None
    learned: Tensors = {}

    def score(learned: Tensors) -> None:
        nonlocal best
        if validate is not None:
            scores.append(validate(context, learned))
            if best is None or scores[-1] > max(scores[:-1]):
                best = Fitted(context.model.tensors(), learned, len(losses))

    context.model.frozen_statistics = statistics != "own" and has_statistics(context.model.module)
    try:
        for loss, learned in _epochs(method, server, way, data, context, plan):
            losses.append(loss)
            if len(losses) % plan.validate_every == 0:
                score(learned)
    finally:
        context.model.frozen_statistics = False  # other clients use the same working model
    if len(losses) % plan.validate_every:  # ways of one epoch, or of one more, end between two scores
        score(learned)
    last = Fitted(context.model.tensors(), learned, len(losses))
    return AdaptationResult(last, best or last, losses, scores)


def _automatic(
    method: Method,
    server: State,
    data: Examples,
    context: Context,
    plan: Adaptation,
    validate: ValidateModel | None,
) -> AdaptationResult:
    """Choose a way by cross-validation, and fit the model in this way to all of the images."""
    choice = cross_validated(method, server, data, context, plan)
    return replace(personalize(method, server, choice.way, data, context, plan, validate), choice=choice)


def cross_validated(method: Method, server: State, data: Examples, context: Context, plan: Adaptation) -> Choice:
    """Return what ``auto`` tries on a client's images, and chooses."""

    def fit(way: str, some: Examples) -> tuple[Tensors, Tensors]:
        last = personalize(method, server, way, some, context, plan).last
        return last.tensors, last.learned

    return cross_validate(method, data, context, fit)


def as_it_is(tensors: Tensors, context: Context, validate: ValidateModel | None = None) -> AdaptationResult:
    """Take a model without fitting it."""
    context.model.load(tensors, "The client's own model")
    fitted = Fitted(context.model.tensors(), {}, 1)
    return AdaptationResult(fitted, fitted, [], [] if validate is None else [validate(context, {})])


def _adapted(
    method: Method, server: State, statistics: Statistics, data: Examples, context: Context, plan: Adaptation
) -> State:
    """Return the published state with the statistics that personalization starts from."""
    if statistics == "frozen" or not has_statistics(context.model.module):
        return server
    context.model.load(method.model(server), "The server's model")
    own = statistics_of(context.model, data, method.task.recipe.preprocessing)
    return with_statistics(server, own, 1.0 if statistics == "own" else len(data) / (plan.prior_images + len(data)))


def _with_prior(method: Method, server: State, data: Examples) -> State:
    """Return the published state whose models have the client's class prior in the bias of their classifier."""
    bias = f"{method.task.classifier}.bias"
    if bias not in method.task.parameters:
        raise InputError(
            f"A class prior is added to the bias of the classifier, but '{method.task.classifier}' of this network has "
            f"none; choose a way without '{PRIOR}', or give the layer a bias."
        )
    return with_prior(server, bias, log_prior(data.labels, method.task.network.classes, PSEUDO_COUNT))


def _epochs(
    method: Method, server: State, way: str, data: Examples, context: Context, plan: Adaptation
) -> Iterator[tuple[float, Tensors]]:
    if way in (*method.ways.own, *method.ways.followed):
        yield from method.adapt(way, server, data, context, plan)
        return
    first, _, then = way.rpartition("+")
    if first:
        yield from method.adapt(first, server, data, context, plan)
    else:
        context.model.load(method.model(server), "The server's model")
    if then in ("none", PRIOR):
        yield float("nan"), {}
        return
    learn = _probe if then == "lp" else _fine_tune
    for loss in by_epoch(learn(then, method, data, context, plan)):
        yield loss, method.serving.refit(first, data, context) if first else {}


def _fine_tune(
    way: str, method: Method, data: Examples, context: Context, plan: Adaptation
) -> Iterator[tuple[bool, Tensor]]:
    """Train the whole model, freely or with a proximal term, or its normalization layers alone."""
    names = None
    if way == "bn":
        names = method.task.normalization & method.task.parameters
        if not names:
            raise InputError("'bn' trains normalization layers, but this network has none with parameters; use 'ft'.")
    adjust = proximal(context.model, plan.prox) if way == "ft-prox" else None
    recipe = plan.recipe(method.task.recipe)
    return sgd_steps(context.model, data, recipe, context.generator("adapt"), names=names, adjust=adjust)


def _probe(_: str, method: Method, data: Examples, context: Context, plan: Adaptation) -> Iterator[tuple[bool, Tensor]]:
    """Train the classifier alone; features that are the same in every epoch are computed once."""
    module, classifier, recipe = context.model.module, method.task.classifier, plan.recipe(method.task.recipe)
    pixels = data.pixels
    if recipe.augment != "none" or (has_statistics(module) and not context.model.frozen_statistics):
        passed(module, classifier, pixels[:1], recipe.preprocessing, last_for="A linear probe")
        names = method.task.head & method.task.parameters
        return sgd_steps(context.model, data, recipe, context.generator("adapt"), names=names)
    seen = passed(module, classifier, pixels, recipe.preprocessing, last_for="A linear probe")
    head, labels = module.get_submodule(classifier), data.labels.to(seen.logits.device)
    optimizer = PlainSGD(head.parameters(), plan.rate, plan.momentum, plan.decay)

    def loss_of(rows: Tensor) -> Tensor:
        return cross_entropy(head(seen.features[rows]), labels[rows])

    generator = context.generator("adapt")
    return head_steps(loss_of, optimizer, len(data), plan.batch, plan.epochs, generator, labels.device)
