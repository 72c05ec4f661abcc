"""What a table or a figure of the paper is here: the runs it wants, and what it makes of their results.

A study plans plain configurations; whoever carries them out does a configuration that several studies want once. Then
each study turns what was found into a section of the report, with the paper's own figures beside the measured ones.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from fedbasis.experiment import Prepared, prepare
from fedbasis.experiment.config import EMBEDDED, Experiment, parse
from fedbasis.report.chapter import Section
from fedbasis.studies.outcome import Outcome
from fedbasis.studies.scales import Bed, Scale
from fedbasis.tensors.files import read_tensors
from pflbed.errors import InputError


@dataclass(frozen=True)
class Want:
    """One run that a study needs: on which dataset, under which name within the study, for which seed."""

    bed: str
    name: str
    seed: int
    raw: Mapping[str, Any] = field(repr=False)
    after: str = ""
    """``module:function`` that measures more on the finished run, given what was prepared and the run."""

    @cached_property
    def key(self) -> str:
        """The same for the same configuration."""
        return hashlib.sha256(json.dumps(self.raw, sort_keys=True).encode()).hexdigest()

    @property
    def experiment(self) -> Experiment:
        """The configuration, checked."""
        return parse(self.raw, f"the plan's {self.name} on {self.bed}")


@dataclass(frozen=True)
class Setup:
    """What a user decides: the scale, where the data and the weights lie, the seeds, which methods."""

    scale: Scale
    places: Mapping[str, str] = field(default_factory=dict)
    """Where datasets lie by their names; under the empty name, where those lie that are not named."""
    weights: str | None = None
    seeds: tuple[int, ...] = (0,)
    methods: tuple[str, ...] | None = None
    """Only these, where a study compares methods."""
    strict: bool = True
    """Whether data and weights must be given; a plan that is only shown needs neither."""

    def allows(self, method: str) -> bool:
        """Whether a method was not excluded."""
        return self.methods is None or method in self.methods

    def bed(self, name: str) -> Bed:
        """Return one of the scale's datasets."""
        return self.scale.beds[name]

    def raw(self, bed: str, method: str, seed: int = 0, **changes: Mapping[str, Any]) -> dict[str, Any]:
        """Write a configuration; ``changes`` go into its sections on top of the scale's, ``settings`` to the method."""
        base = self.bed(bed)
        sections = {"data": base.data, "model": base.model, "train": base.train, "personalize": base.personalize}
        raw: dict[str, Any] = {name: {**section, **changes.get(name, {})} for name, section in sections.items()}
        raw["data"]["source"] = self._place(base)
        settings = {**self.scale.settings(bed, method), **changes.get("settings", {})}
        if base.pretrained and "weights" not in raw["model"]:
            raw["model"] = {**raw["model"], "weights": self._weights(base)}
        machine = {**MACHINE, **({"engine": "serial"} if self.scale.name == "smoke" else {})}
        return {**raw, "machine": machine, "seed": seed, "method": {"name": method, **settings}}

    def want(self, bed: str, method: str, seed: int, name: str = "", after: str = "", **changes: Any) -> Want:
        """Plan a run."""
        return Want(bed, name or method, seed, self.raw(bed, method, seed, **changes), after)

    def prepared(self, bed: str) -> Prepared:
        """Return a dataset split among clients, by the first seed."""
        return prepare(parse(self.raw(bed, "fedavg", self.seeds[0], personalize=WHOEVER, model=NO_WEIGHTS)))

    def require_places(self) -> None:
        """Refuse folders and weights that are not there, once and before the first run meets them."""
        for name, folder in self.places.items():
            if not Path(folder).is_dir():
                option = f"--data {name}=FOLDER" if name else "--data FOLDER"
                raise InputError(f"{option} must be a folder of images, but there is no folder {folder}.")
        if self.weights is not None:
            if not Path(self.weights).is_file():
                raise InputError(f"--weights FILE must be a safetensors file, but there is no file {self.weights}.")
            read_tensors(Path(self.weights))  # which says so if it is none

    def _place(self, bed: Bed) -> str:
        dataset = bed.data.get("dataset")
        if dataset is None:
            return EMBEDDED
        place = self.places.get(dataset, self.places.get(""))
        if place is None and self.strict:
            raise InputError(
                f"The scale '{self.scale.name}' needs {bed.title}, but its folder was not given; "
                f"add --data {dataset}=FOLDER, or --data with a folder that holds all datasets."
            )
        return place or dataset

    def _weights(self, bed: Bed) -> str | None:
        if self.weights is None and self.strict:
            raise InputError(
                f"On {bed.title} the network starts from pretrained weights, but none were given; add --weights FILE."
            )
        return self.weights


MACHINE = {"threads": 1}
"""Several runs at once are several processes; each of them is one thread."""
WHOEVER = {"whom": "participating"}
NO_WEIGHTS = {"weights": None}


class Study(ABC):
    """One table or figure."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]]
    title: ClassVar[str]
    """What it shows, in one line."""

    @abstractmethod
    def wants(self, setup: Setup) -> list[Want]:
        """List the runs."""

    @abstractmethod
    def section(self, setup: Setup, found: "Found") -> Section:
        """Make a section of the report of what was found."""


class Found:
    """The results of the plan's runs; a run that failed has none."""

    def __init__(self, outcomes: Mapping[str, Outcome]) -> None:
        self._outcomes = outcomes

    def get(self, want: Want) -> Outcome | None:
        """Return what a run gave."""
        return self._outcomes.get(want.key)

    def by_name(self, wants: list[Want], bed: str) -> dict[str, list[Outcome]]:
        """Return the outcomes on one dataset under their names, a list over the seeds each: those that all names have.

        A mean over other seeds is a mean over other clients. A name of which nothing was found is left out.
        """
        named: dict[str, dict[int, Outcome]] = {}
        for want in wants:
            outcome = self.get(want) if want.bed == bed else None
            if outcome is not None:
                named.setdefault(want.name, {})[want.seed] = outcome
        shared = set.intersection(*map(set, named.values())) if named else set()
        return {name: [mine[seed] for seed in sorted(shared)] for name, mine in named.items() if shared}

    def lacking(self, wants: list[Want]) -> list[str]:
        """Say which runs there are not, and what this does to the rest."""
        lost = [f"{want.name} on {want.bed}, seed {want.seed}" for want in wants if self.get(want) is None]
        if not lost:
            return []
        return [
            f"{len(lost)} of {len(wants)} runs are missing ({'; '.join(lost)}): what is left of a table, its marks and "
            "its claims are over the seeds that all its rows have."
        ]
