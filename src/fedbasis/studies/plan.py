"""A plan: the runs of several studies, each once, runs that share their training together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fedbasis.experiment.config import Experiment
from fedbasis.studies.base import RunRequest, Setup, Study
from pflbed.errors import InputError


@dataclass(frozen=True)
class Item:
    """One run of the plan, with its post-steps and the studies that need it."""

    request: RunRequest
    post_steps: tuple[str, ...]
    studies: tuple[str, ...]

    @cached_property
    def experiment(self) -> Experiment:
        """The configuration, checked."""
        return self.request.experiment

    @cached_property
    def training_key(self) -> str:
        """The same text for runs that share their training; a run that serves during training shares it with none."""
        e = self.experiment.training
        serving = () if not e.train.serve_every else (self.request.key,)
        return str((e.seed, e.data, e.model, e.train, e.method_name, e.method, serving))


def plan(studies: Sequence[Study], setup: Setup) -> list[Item]:
    """Collect the runs of all studies, each once; those that share their training follow each other."""
    found: dict[str, tuple[RunRequest, list[str], list[str]]] = {}
    for study in studies:
        for request in _requests(study, setup.of(study)):
            _, post_steps, names = found.setdefault(request.key, (request, [], []))
            post_steps += [request.post_step] if request.post_step and request.post_step not in post_steps else []
            names += [study.name] if study.name not in names else []
    items = [Item(request, tuple(post_steps), tuple(names)) for request, post_steps, names in found.values()]
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.training_key, []).append(item)
    return [item for group in groups.values() for item in group]


def _requests(study: Study, setup: Setup) -> list[RunRequest]:
    """List a study's runs; ``--methods`` must leave at least one of them."""
    requests = study.requests(setup)
    everything = [] if requests else study.requests(replace(setup, methods=None, strict=False))
    if everything:
        names = dict.fromkeys(request.experiment.method_name for request in everything)
        raise InputError(
            f"--methods must leave {study.name} something to compare, but it names none of its methods; "
            f"these are {', '.join(names)}."
        )
    return requests
