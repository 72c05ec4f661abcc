"""Every table and figure of the paper by name, and one more: a file each, or one for those that read the same runs."""

from collections.abc import Iterable, Mapping

from fedbasis.studies.ablation import Ablation
from fedbasis.studies.base import Study
from fedbasis.studies.bases import Bases
from fedbasis.studies.cifar import CifarNew, CifarParticipating
from fedbasis.studies.coefficients import Coefficients
from fedbasis.studies.collapse import Collapse, Communication
from fedbasis.studies.curves import Curves
from fedbasis.studies.new_clients import AllMethods, NewClients, Variance
from fedbasis.studies.parts import Parts
from fedbasis.studies.pca import PCA
from fedbasis.studies.rates import MetaRates, Rates
from fedbasis.studies.regularized import Regularized
from fedbasis.studies.testbed import ClientsStudy, Datasets, Split
from pflbed.errors import InputError, did_you_mean

STUDIES: Mapping[str, Study] = {
    study.name: study
    for study in (
        Datasets(), NewClients(), Regularized(), Ablation(), CifarParticipating(), CifarNew(), Communication(),
        MetaRates(), AllMethods(), Variance(), Bases(), Collapse(), Rates(), Coefficients(), Split(), ClientsStudy(),
        PCA(), Curves(), Parts(),
    )
}  # fmt: skip
ALIASES: Mapping[str, str] = {alias: study.name for study in STUDIES.values() for alias in study.aliases}
EVERYTHING = "all"


def studies(names: Iterable[str]) -> list[Study]:
    """Find studies by name or alias, each once, in the order of the paper; ``all`` is all of them."""
    chosen = set()
    for name in names:
        known = ALIASES.get(name, name)
        if known == EVERYTHING:
            chosen |= set(STUDIES)
        elif known in STUDIES:
            chosen.add(known)
        else:
            hint = did_you_mean(name, [*STUDIES, *ALIASES, EVERYTHING], cutoff=0.6)
            raise InputError(f"A result must be named as in the paper, but there is no '{name}'{hint}.")
    return [study for study in STUDIES.values() if study.name in chosen]
