"""The interface of a study, which reproduces one table or figure: the runs it needs, and a chapter of their results.

Studies list configurations; one that several studies need is run once. Each study then makes a chapter of the report
with the paper's numbers beside the measured ones.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from fedbasis.experiment import Prepared, prepare
from fedbasis.experiment.config import Experiment, parse
from fedbasis.networks.weights import weights_path
from fedbasis.report.chapter import Chapter
from fedbasis.report.runs import RunData
from fedbasis.studies.scales import Scale, TestbedSettings
from fedbasis.studies.variants import PRINTED, variant
from fedbasis.tensors.files import read_header
from pflbed.dataset import EMBEDDED
from pflbed.errors import InputError


@dataclass(frozen=True)
class RunRequest:
    """One run that a study needs: on which dataset, under which name within the study, for which seed."""

    testbed: str
    name: str
    seed: int
    raw: Mapping[str, Any] = field(repr=False)
    post_step: str = ""
    """``module:function`` to call with the prepared experiment and the finished run, for further measurements."""

    @cached_property
    def key(self) -> str:
        """The same for the same configuration."""
        return hashlib.sha256(json.dumps(self.raw, sort_keys=True).encode()).hexdigest()

    @property
    def experiment(self) -> Experiment:
        """The configuration, checked."""
        return parse(self.raw, f"the plan's {self.name} on {self.testbed}")


@dataclass(frozen=True)
class Setup:
    """The user's choices: scale, folders of the data, weights, seeds, methods."""

    scale: Scale
    places: Mapping[str, str] = field(default_factory=dict)
    """The folders of datasets by name; the empty name is for all others."""
    weights: str | None = None
    seeds: tuple[int, ...] = (0,)
    methods: tuple[str, ...] | None = None
    """Only these, where a study compares methods."""
    strict: bool = True
    """Whether data and weights must be given; a dry run needs neither."""
    tuned: bool = True
    """Whether methods have the settings that tuning chose for them."""
    seeds_by_study: bool = False
    """Whether every study has its own number of seeds instead."""

    def of(self, study: "Study") -> "Setup":
        """Return the setup of one study: with its own number of seeds, from 0, unless that was given."""
        return replace(self, seeds=tuple(range(study.seeds(self.scale)))) if self.seeds_by_study else self

    @property
    def own(self) -> str:
        """The FedBasis of studies that have only one: as printed at the paper's scale."""
        return PRINTED if self.scale.name == "paper" else "fedbasis"

    def allows(self, name: str) -> bool:
        """Whether a method or variant is compared at this scale and was not excluded."""
        known = self.scale.compared is None or name in self.scale.compared
        return known and (self.methods is None or variant(name).method in self.methods)

    def testbed(self, name: str) -> TestbedSettings:
        """Return one of the scale's datasets."""
        return self.scale.testbeds[name]

    def raw(self, testbed: str, name: str, seed: int = 0, **changes: Mapping[str, Any]) -> dict[str, Any]:
        """Write the configuration of a method or a variant.

        ``changes`` go into its sections on top of the scale's and of what was tuned, ``settings`` to the method.
        """
        base, chosen = self.testbed(testbed), variant(name)
        method = chosen.method
        best = (self.scale.tuned(testbed, name) or base.carried.get(name, {})) if self.tuned else {}
        train = {**base.train, **base.train_by_method.get(method, {})}
        sections = {"data": base.data, "model": base.model, "train": train, "personalize": base.personalize}
        raw: dict[str, Any] = {
            key: {**section, **best.get(key, {}), **changes.get(key, {})} for key, section in sections.items()
        }
        raw["data"]["source"] = self._place(base)
        _drop_unused(raw["personalize"], changes.get("personalize", {}))
        settings = {
            **self.scale.untuned(testbed, method),
            **chosen.settings,
            **best.get("method", {}),
            **changes.get("settings", {}),
        }
        if base.pretrained and "weights" not in raw["model"]:
            raw["model"] = {**raw["model"], "weights": self._weights(base)}
        machine = {**MACHINE, **({"engine": "serial"} if self.scale.name == "smoke" else {})}
        return {**raw, "machine": machine, "seed": seed, "method": {"name": method, **settings}}

    def request(
        self, testbed: str, run: str, seed: int, name: str = "", post_step: str = "", **changes: Any
    ) -> RunRequest:
        """Plan a run of a method or a variant; within the study it may have another name."""
        return RunRequest(testbed, name or run, seed, self.raw(testbed, run, seed, **changes), post_step)

    def prepared(self, testbed: str) -> Prepared:
        """Return a dataset split among clients, by the first seed."""
        return prepare(parse(self.raw(testbed, "fedavg", self.seeds[0], personalize=PARTICIPATING, model=NO_WEIGHTS)))

    def require_places(self) -> None:
        """Refuse missing folders and weights before the first run."""
        for name, folder in self.places.items():
            if not Path(folder).is_dir():
                option = f"--data {name}=FOLDER" if name else "--data FOLDER"
                raise InputError(f"{option} must be a folder of images, but there is no folder {folder}.")
        if self.weights is not None:
            read_header(weights_path(self.weights))  # raises if it is none

    def _place(self, testbed: TestbedSettings) -> str:
        dataset = testbed.place or testbed.data.get("dataset")
        if dataset is None:
            return EMBEDDED
        place = self.places.get(dataset, self.places.get(""))
        if place is None and self.strict:
            raise InputError(
                f"The scale '{self.scale.name}' needs {testbed.title}, but its folder was not given; "
                f"add --data {dataset}=FOLDER, or --data with a folder that holds all datasets."
            )
        return place or dataset

    def _weights(self, testbed: TestbedSettings) -> str | None:
        if self.weights is None and self.strict:
            raise InputError(
                f"On {testbed.title} the network starts from pretrained weights, but none were given; "
                "add --weights FILE."
            )
        return self.weights


def _drop_unused(serve: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Drop what was tuned for ways that are not served, and what the study varies itself."""
    own = {
        way: {key: value for key, value in chosen.items() if key not in given}
        for way, chosen in serve.pop("by_way", {}).items()
        if way in serve.get("ways", ())
    }
    if used := {way: chosen for way, chosen in own.items() if chosen}:
        serve["by_way"] = used


MACHINE = {"threads": 1}
"""Runs at once are processes of one thread each."""
PARTICIPATING = {"whom": "participating"}
NO_WEIGHTS = {"weights": None}


class Study(ABC):
    """One table or figure."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]]
    title: ClassVar[str]
    """What it shows, in one line."""

    def seeds(self, scale: Scale) -> int:
        """How many seeds it has by default."""
        return scale.seeds

    @abstractmethod
    def requests(self, setup: Setup) -> list[RunRequest]:
        """List the runs."""

    @abstractmethod
    def chapter(self, setup: Setup, found: "Results") -> Chapter:
        """Make a chapter of the results."""


class Results:
    """The results of the plan's runs; a run that failed has none."""

    def __init__(self, runs: Mapping[str, RunData]) -> None:
        self._runs = runs

    def get(self, request: RunRequest) -> RunData | None:
        """Return the run, if it is there."""
        return self._runs.get(request.key)

    def by_name(self, requests: list[RunRequest], testbed: str) -> dict[str, list[RunData]]:
        """Return the runs on one dataset by name, a list over the seeds that all names have.

        A mean over other seeds is a mean over other clients. A name of which nothing was found is left out.
        """
        named: dict[str, dict[int, RunData]] = {}
        for request in requests:
            run = self.get(request) if request.testbed == testbed else None
            if run is not None:
                named.setdefault(request.name, {})[request.seed] = run
        shared = set.intersection(*map(set, named.values())) if named else set()
        return {name: [mine[seed] for seed in sorted(shared)] for name, mine in named.items() if shared}

    def lacking(self, requests: list[RunRequest]) -> list[str]:
        """Return a note on missing runs."""
        lost = [
            f"{request.name} on {request.testbed}, seed {request.seed}"
            for request in requests
            if self.get(request) is None
        ]
        if not lost:
            return []
        return [
            f"{len(lost)} of {len(requests)} runs are missing ({'; '.join(lost)}): what is left of a table, its marks "
            "and its claims are over the seeds that all its rows have."
        ]
