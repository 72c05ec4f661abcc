"""The settings that ``fedbasis tune`` tries for every method: data, the same number of tries for all.

The first try is the method as it is. The next two are the other learning rates of ``RATES``, the same for all. The last
nine are at the best of these rates: three over the settings that the method's own paper names as important, or, for a
method without any, over the weight decay; and six over what every local training has (``COMMON``). FedBasis with the
settings of this repository has none of these six: all its nine are over its own settings. A key is ``section.setting``
of an experiment's TOML file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedbasis.studies.variants import PRINTED, variant

Candidate = Mapping[str, Any]
TRIES = 12
RATES = (0.05, 0.1)
"""Learning rates of local training besides the scale's own, 0.01."""
RATE, DECAY, PROX = "train.rate", "train.decay", "personalize.prox"
MOMENTUM, BATCH = "train.momentum", "train.batch"


@dataclass(frozen=True)
class Tunable:
    """A method, or a variant of one, that is tuned by itself, and how it is scored."""

    name: str
    own: tuple[Candidate, ...] = field(repr=False)
    """The nine tries after those of the learning rates, at the best of these unless they name one."""
    ways: tuple[str, ...] = ()
    """The ways whose accuracy on new clients is the score; none: the method's default ways."""
    participating: tuple[str, ...] = ()
    """The same on a testbed without new clients; none: as for new ones."""

    @property
    def method_name(self) -> str:
        """The method's name."""
        return variant(self.name).method

    def candidates(self, best: int) -> tuple[Candidate, ...]:
        """Return all tries in order, where ``best`` is the number of the best one of the learning rates."""
        return (*BY_RATE, *({**BY_RATE[best], **own} for own in self.own))


BY_RATE: tuple[Candidate, ...] = ({}, *({RATE: rate} for rate in RATES))
"""The first tries of every method."""
COMMON: tuple[Candidate, ...] = (
    {RATE: 0.02}, {RATE: 0.2}, {MOMENTUM: 0.0}, {BATCH: 8}, {BATCH: 32}, {DECAY: 5e-4},
)  # fmt: skip
"""The last six tries of every method but FedBasis with the settings of this repository."""
KEPT = ("client-state",)
REGULARIZED: tuple[Candidate, ...] = ({DECAY: 0.0}, {DECAY: 1e-3}, {DECAY: 5e-3})
"""For methods without important settings of their own; the usual weight decay is 1e-4."""
PULLED: tuple[Candidate, ...] = ({PROX: 0.1}, {PROX: 0.01}, {DECAY: 1e-3})
"""Weaker pulls of ft-prox, whose default is 1."""


def _own(name: str, *values: Any) -> tuple[Candidate, ...]:
    return tuple({f"method.{name}": value} for value in values)


TUNABLES: Mapping[str, Tunable] = {
    tunable.name: tunable
    for tunable in (
        Tunable(
            "fedavg",
            (*PULLED, *({PROX: 0.1, **one} for one in COMMON)),
            ways=("lp", "ft", "ft-prox"),
            participating=("ft",),
        ),
        Tunable("fedprox", (*_own("mu", 0.001, 0.03, 1.0), *COMMON), ways=("lp", "ft"), participating=("ft",)),
        Tunable("scaffold", (*REGULARIZED, *COMMON), ways=("lp", "ft"), participating=("ft",)),
        Tunable("fedbn", (*REGULARIZED, *COMMON), ways=("bn", "lp", "ft"), participating=KEPT),
        Tunable(
            "fedrep",
            (*_own("head_epochs", 5, 20), {DECAY: 1e-3}, *COMMON),
            ways=("lp", "ft"),
            participating=KEPT,
        ),
        Tunable("fedper", (*REGULARIZED, *COMMON), participating=KEPT),
        Tunable("lg-fedavg", (*REGULARIZED, *COMMON), participating=KEPT),
        # The last one, in place of a weight decay: its authors' size.
        Tunable(
            "pfedhn",
            (*_own("rate", 0.2, 1.0), {DECAY: 1e-3}, *COMMON[:-1], {"method.hidden": 100, "method.layers": 3}),
            ways=("embedding+lp", "embedding+ft"),
        ),
        Tunable("per-fedavg-fo", (*_own("inner_rate", 0.001, 0.03, 0.1), *COMMON), ways=("ft",)),
        Tunable("per-fedavg-hf", (*_own("inner_rate", 0.001, 0.03, 0.1), *COMMON), ways=("ft",)),
        Tunable("knn-per", (*_own("lam", "tuned", 0.25), {"method.k": 30}, *COMMON), ways=("knn", "knn+ft")),
        # The product of rate and strength is the step of w towards theta: 0.15 by default.
        Tunable(
            "pfedme",
            (
                {"method.strength": 5.0, RATE: 0.05},
                {"method.strength": 1.0, RATE: 0.15},
                {"method.strength": 1.0, RATE: 0.5},
                *COMMON,
            ),
            ways=("pfedme", "ft"),
            participating=KEPT,
        ),
        Tunable("ditto", (*_own("lam", 0.1, 0.3, 3.0), *COMMON), participating=KEPT),
        Tunable("apfl", (*_own("alpha", 0.25, 0.9), *_own("adaptive", True), *COMMON), participating=KEPT),
        Tunable("l2gd", (*_own("pull", 0.25, 0.75, 1.0), *COMMON), participating=KEPT),
        Tunable("fed-mtl", (*_own("l1", 1e-4, 1e-2, 1e-1), *COMMON), participating=KEPT),
        Tunable("ifca", (*_own("clusters", 2, 3, 6), *COMMON)),
        Tunable("fedem", (*_own("components", 2, 4, 5), *COMMON)),
        Tunable(
            "fedbasis",
            (
                {"method.major": False},
                {"method.bases": 8},
                {"method.major": False, "method.bases": 8},
                *_own("warm_start", 0.6, 0.8, 0.9, 0.95),
                {"method.warm_start": 0.9, "method.bases": 8},
                {"method.warm_start": 0.95, "method.bases": 8},
            ),
            ways=("coefficients+classifier",),
        ),
        Tunable(
            PRINTED,
            # What the paper prints stays: four bases and a major one, 30 % of the rounds as warm start.
            (*_own("coefficient_rate", 0.1, 1.0, 10.0), *COMMON),
            ways=("coefficients+classifier",),
        ),
    )
}
"""Whatever the tables compare."""
