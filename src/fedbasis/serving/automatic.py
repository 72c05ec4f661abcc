"""Choose how to personalize for one client, by cross-validation on the client's own images.

The ways that fit a method are tried from the simplest to the one that the method recommends. Every image is predicted
once by a model that was fitted to the other images, so ways are compared image by image. The recommended way is kept
unless another is better by more than two standard errors: with a client's few images the error is so large that a rule
which prefers simple ways would hardly ever personalize, and that one error is exceeded by chance too often
(docs/results/log.md, sections 20 and 36). No way is chosen that is below the unpersonalized model on the held-out
images.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from fedbasis.methods.base import Context, Method
from fedbasis.networks.inputs import Examples
from fedbasis.networks.statistics import Statistics, has_statistics
from fedbasis.tensors.params import Tensors
from fedbasis.tensors.seeding import numpy_generator

Fit = Callable[[str, Examples], tuple[Tensors, Tensors]]
AUTO = "auto"
"""The way that chooses another one."""
NONE, PRIOR = "none", "prior"
FOLDS = 4
"""Parts of a client's images; each is held out once."""
FEWEST = 3
"""With fewer images nothing is held out: a model that was fitted to one image tells nothing about the ways."""
ERRORS = 2.0
"""By how many standard errors another way must be better than the recommended one."""
ROUNDING = 1e-9
"""Where one image alone differs, its share of the images is exactly the standard error."""
TRIED: tuple[Statistics, ...] = ("frozen", "own")


@dataclass(frozen=True)
class Judged:
    """One way, and which of the client's images it predicts right when they are held out."""

    way: str
    right: Tensor

    @property
    def accuracy(self) -> float:
        """The share of images."""
        return float(self.right.double().mean())


@dataclass(frozen=True)
class Choice:
    """The way that was chosen, and what was tried, from simple to complex; nothing with too few images."""

    way: str
    judged: tuple[Judged, ...]

    @property
    def before(self) -> float:
        """The accuracy without personalization."""
        return self.judged[0].accuracy

    @property
    def after(self) -> float:
        """The accuracy of the chosen way on held-out images."""
        return next(one.accuracy for one in self.judged if one.way == self.way)

    @property
    def reason(self) -> str:
        """Why it was chosen, in one sentence."""
        if not self.judged:
            return f"it is recommended, and fewer than {FEWEST} images tell too little when they are held out"
        best = max(self.judged, key=lambda one: one.accuracy)
        held = f"{len(best.right)} images, each held out once"
        if self.way == NONE and best.way == NONE:
            return f"no way of personalizing is better than none on {held}"
        if self.way == best.way:
            return f"it is the best on {held}"
        if self.way == self.judged[-1].way:
            return f"it is recommended, and none is better by more than two standard errors on {held}"
        return f"it is the nearest to the recommended way within two standard errors of the best, {best.way}, on {held}"


def candidates(method: Method) -> tuple[str, ...]:
    """List the ways to choose from, from the simplest on: no personalization, the class prior, the method's own ways.

    The last one is recommended: the method's default way with the client's own normalization statistics. Ways that are
    trained at a rate and evaluated by default start from the class prior. Each is tried with the server's statistics
    and with the client's own, except those that learn so little that only the server's make sense.
    """
    offered, prior = method.ways, f"{method.task.classifier}.bias" in method.task.parameters
    names = [way for way in (*offered.own, *offered.default) if way not in (NONE, offered.default[-1])]
    if offered.default[-1] != NONE:
        names.append(offered.default[-1])
    ways = [PRIOR] if prior else []
    for way in dict.fromkeys(names):
        trained = way in offered.default and way not in (*offered.rate_free, *offered.frozen)
        ways.append(f"{PRIOR}+{way}" if prior and trained else way)
    if not has_statistics(method.task.network.build()):
        return (NONE, *ways)
    return (
        NONE,
        *(f"{way}@{statistics}" for way in ways for statistics in (TRIED[:1] if way in offered.frozen else TRIED)),
    )


def folds(labels: Tensor, seed: int) -> Iterator[Tensor]:
    """Yield masks of the rows to hold out: every row once, the classes spread evenly over the parts."""
    count = min(FOLDS, len(labels))
    generator = numpy_generator(seed, "folds")
    shuffled = torch.from_numpy(generator.permutation(len(labels)))
    by_class = shuffled[torch.argsort(labels[shuffled], stable=True)]
    part = torch.empty(len(labels), dtype=torch.long)
    part[by_class] = torch.arange(len(labels)) % count
    for number in range(count):
        yield part == number


def choose(judged: Sequence[Judged], errors: float = ERRORS) -> str:
    """Return the last way that is within so many standard errors of the best; none that is below the first."""
    first, best = judged[0], max(judged, key=lambda one: one.accuracy)
    for one in reversed(judged):
        gap = best.right.double() - one.right.double()
        error = float(gap.std()) / sqrt(len(gap)) if len(gap) > 1 else 0.0
        if float(gap.mean()) <= errors * error + ROUNDING and one.accuracy >= first.accuracy:
            return one.way
    return best.way


def cross_validate(method: Method, data: Examples, context: Context, fit: Fit) -> Choice:
    """Try all candidates on a client's images and choose one.

    Args:
        method: The method.
        data: The client's images.
        context: The working model and the seed.
        fit: Personalizes in a way on some images, and returns the model and what else was learned.

    Returns:
        The choice; of fewer than ``FEWEST`` images, which tell too little, the recommended way.
    """
    if len(data) < FEWEST:
        return Choice(candidates(method)[-1], ())

    def right(way: str, train: Examples, rows: Tensor) -> Tensor:
        tensors, learned = fit(way, train)
        context.model.load(tensors)
        chances = method.serving.probabilities(context.model, learned, data.pixels[rows])
        return chances.argmax(1) == data.labels[rows]

    judged = []
    for way in candidates(method):
        correct = torch.zeros(len(data), dtype=torch.bool)
        if way == NONE:
            correct[:] = right(way, data, torch.ones_like(correct))
        else:
            for held in folds(data.labels, context.seed):
                correct[held] = right(way, Examples(data.pixels[~held], data.labels[~held]), held)
        judged.append(Judged(way, correct))
    return Choice(choose(judged), tuple(judged))
