"""A plan: what several studies want, every run once, runs that train alike together, with an estimate of the time.

The estimate is a count of image passes divided by a speed that is measured on the spot: how many images a second this
machine trains with the network, one thread. What methods cost beside FedAvg is a constant, measured on a small PACS.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch.nn.functional import cross_entropy

from fedbasis.engines.choice import device_of
from fedbasis.experiment.config import Experiment
from fedbasis.methods import METHODS
from fedbasis.networks.models import Network
from fedbasis.serving.personalize import KEPT
from fedbasis.studies.base import RunRequest, Setup, Study
from pflbed.errors import InputError
from pflbed.sources import SOURCES

COST: Mapping[str, float] = {"fedbasis": 2.1, "apfl": 2.0, "ditto": 2.0, "per-fedavg-hf": 1.7, "pfedme": 5.0}
"""Time of a local round beside FedAvg's; what is not listed costs the same (and FedRep's head besides)."""
FORWARD = 3.0
"""So many images are predicted in the time that one is trained on."""
CLASSES = {"pacs": 7, "office-home": 65, "gld23k": 203, "cifar10": 10, "cifar100": 100}
DIGITS4 = 7797
PROBES = ("lp", "none", KEPT, "knn", "embedding+lp", "centroid")
"""Ways that do not train the whole network: one pass over the images, and little else."""


@dataclass(frozen=True)
class Item:
    """One run of the plan, with all that is measured on it."""

    request: RunRequest
    post_steps: tuple[str, ...]
    studies: tuple[str, ...]

    @cached_property
    def experiment(self) -> Experiment:
        """The configuration, checked."""
        return self.request.experiment

    @cached_property
    def training_key(self) -> str:
        """The same for runs that train alike (a run that serves along the rounds is like no other)."""
        e = self.experiment
        serving = () if not e.train.serve_every else (self.request.key,)
        return str((e.seed, e.data, e.model, e.train, e.method_name, e.method, serving))


def plan(studies: Sequence[Study], setup: Setup) -> list[Item]:
    """Collect the runs of all studies, each once; those that train alike stand together."""
    found: dict[str, tuple[RunRequest, list[str], list[str]]] = {}
    for study in studies:
        for request in _requests(study, setup):
            _, post_steps, names = found.setdefault(request.key, (request, [], []))
            post_steps += [request.post_step] if request.post_step and request.post_step not in post_steps else []
            names += [study.name] if study.name not in names else []
    items = [Item(request, tuple(post_steps), tuple(names)) for request, post_steps, names in found.values()]
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.training_key, []).append(item)
    return [item for group in groups.values() for item in group]


def _requests(study: Study, setup: Setup) -> list[RunRequest]:
    """List a study's runs; one that compares methods must be left at least one of them."""
    requests = study.requests(setup)
    everything = [] if requests else study.requests(replace(setup, methods=None, strict=False))
    if everything:
        names = dict.fromkeys(request.experiment.method_name for request in everything)
        raise InputError(
            f"--methods must leave {study.name} something to compare, but it names none of its methods; "
            f"these are {', '.join(names)}."
        )
    return requests


@dataclass(frozen=True)
class Passes:
    """How many images a run trains on (in units of FedAvg's time) and predicts."""

    training: float
    serving: float
    predicted: float

    def seconds(self, speed: float, trained_before: bool = False) -> float:
        """Estimate the time at so many trained images a second."""
        training = 0.0 if trained_before else self.training
        return (training + self.serving + self.predicted / FORWARD) / speed


def passes(experiment: Experiment) -> Passes:
    """Count a run's passes from the size of its dataset."""
    e, d, p = experiment, experiment.data, experiment.personalize
    images, domains, tested = _images(e)
    new = p.whom == "new"
    share = 0.5 if d.partition == "natural" else d.split[0] / (100 - d.split[2] - d.split[3])
    pool = images * (1 - (d.split[2] + d.split[3]) / 100)
    count, served = d.clients * domains, (d.new_clients if new else d.clients) * domains
    part = e.train.participation / count if isinstance(e.train.participation, int) else e.train.participation
    training = pool * share * part * e.train.epochs * e.train.rounds * _cost(e)
    if getattr(e.method, "communicate_every", "round") == "step":
        training = count * part * e.train.batch * e.train.rounds * 1.3
    sizes = sum(d.sizes.values()) if new else 1.0
    mine = pool * ((1 - share) if new else share) * sizes
    rate_free = ("none", KEPT, *METHODS[e.method_name].rate_free)
    serving = predicted = 0.0
    for way in e.ways:
        tries = 1 if way in rate_free else len(p.rates)
        serving += tries * mine * (1 / FORWARD if way in PROBES else p.epochs * (2 if "+ft" in way else 1))
        looks = 1 if way in ("none", KEPT) else p.epochs // p.validate_every
        judged = images * d.split[2] / 100 / (count if d.partition == "natural" else domains)
        predicted += tries * served * (len(d.sizes) if new else 1) * (looks * judged + 2 * tested / domains)
    if e.train.serve_every:
        times = 1 + e.train.rounds // e.train.serve_every
        return Passes(training + times * serving / max(1, len(p.rates)), serving, 2 * predicted)
    return Passes(training, serving, predicted)


def _cost(e: Experiment) -> float:
    """Return the time of a local round beside FedAvg's; a head on a frozen body costs little more than predictions."""
    head: int = getattr(e.method, "head_epochs", 0)
    return COST.get(e.method_name, 1.0) + head / e.train.epochs / FORWARD


def _images(e: Experiment) -> tuple[float, int, float]:
    """Return how many images there are to deal out, of how many domains, and how many test images."""
    source = SOURCES.get(e.data.dataset or "")
    whole, domains = (sum(source.counts.values()), len(source.counts)) if source else (DIGITS4, 4)
    if e.data.limit is not None:
        whole = min(whole, e.data.limit * CLASSES.get(e.data.dataset or "", 10) * domains)
    if source is not None and source.name.startswith("cifar"):  # the official test set is a sixth
        return whole * 5 / 6, domains, whole / 6
    if e.data.partition == "natural":
        return whole, domains, whole / (e.data.clients + e.data.new_clients) * 0.4
    return whole, domains, whole * e.data.split[3] / 100


SMALL = 64 * 32**2
"""Pixels of a batch that is enough to tell, and soon done for a large network on a slow machine."""


def speed_of(experiment: Experiment, seconds: float = 0.4) -> float:
    """Measure how many images a second this machine trains with the experiment's network, on one thread."""
    e = experiment
    classes = CLASSES.get(e.data.dataset or "", 10)
    device = device_of(e.machine.device)
    network = Network(e.model.name, classes, e.data.resolution, e.model.options, e.model.blocks)
    module = network.build().train().to(device)
    batch = min(e.train.batch, max(2, SMALL // e.data.resolution**2))
    pixels = torch.zeros(batch, 3, e.data.resolution, e.data.resolution, device=device)
    labels = torch.zeros(batch, dtype=torch.int64, device=device)
    torch.set_num_threads(e.machine.threads)
    steps, began = [0.0], time.perf_counter()  # the first step also sets things up
    while len(steps) < 3 or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        cross_entropy(module(pixels), labels).backward()  # type: ignore[no-untyped-call]
        steps.append(time.perf_counter() - start)
    return batch / min(steps[2:])
