"""The log of a tuning: every try with its score, and the winners, which the tables use.

``tuned/<scale>-<testbed>.json`` is beside this module and in the wheel; ``fedbasis tune`` writes such files.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedbasis.networks.statistics import Statistics
from pflbed.errors import InputError
from pflbed.files import write_json
from pflbed.foreign import read_json_object

HERE = Path(__file__).parent / "tuned"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Try(_Strict):
    """One try."""

    settings: dict[str, bool | int | float | str] = Field(max_length=100)
    """``section.setting`` -> value, on top of the method's settings at this scale."""
    scores: dict[str, list[float]] = Field(max_length=100)
    """``way, size`` -> the mean personalized Last accuracy of the clients, an item a seed."""
    score: float = Field(ge=0, le=1)
    """Their mean; 0 if training diverged."""
    diverged: bool = False
    """Whether training diverged, with any of the seeds; such a try has no scores."""
    runs: list[str] = Field(default=[], max_length=100)
    """The names of the run folders, an item a seed."""


class ServingTry(_Strict):
    """One learning rate and one kind of normalization statistics of a way of personalizing."""

    rate: float = Field(gt=0)
    statistics: Statistics
    score: float = Field(ge=0, le=1)
    """The mean personalized Last accuracy of the clients, over sizes and seeds."""


class TunedMethod(_Strict):
    """All tries of one method, and how its winner serves new clients."""

    winner: int = Field(ge=0)
    """The try with the highest score; of equal ones the first."""
    tries: list[Try] = Field(min_length=1, max_length=1000)
    seeds: list[int] = Field(min_length=1, max_length=100)
    version: str
    """The version of this package."""
    command: str
    serving: dict[str, list[ServingTry]] = Field(default={}, max_length=100)
    """way -> what was tried for it after the winner's training; the highest score is used, of equal ones the first."""

    @model_validator(mode="after")
    def _the_best_wins(self) -> Self:
        scores = [one.score for one in self.tries]
        if self.winner != scores.index(max(scores)):
            raise ValueError(f"the winner must be the try with the highest score, {scores.index(max(scores))}")
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that won."""
        return dict(self.tries[self.winner].settings)

    @property
    def chosen(self) -> dict[str, ServingTry]:
        """The rate and the statistics that won, for every way."""
        return {way: max(tried, key=lambda one: one.score) for way, tried in self.serving.items() if tried}


class Tuned(_Strict):
    """The tuning of methods on one testbed at one scale."""

    format: Literal[1] = 1
    scale: str
    testbed: str
    data: dict[str, Any] = Field(max_length=100)
    """How the tuning part was split among clients."""
    methods: dict[str, TunedMethod] = Field(max_length=1000)

    def save(self, folder: Path) -> Path:
        """Write the log into a folder, under the name of its scale and testbed."""
        path = folder / file_name(self.scale, self.testbed)
        write_json(path, self.model_dump(mode="json"))
        return path


def file_name(scale: str, testbed: str) -> str:
    """Name the log of a testbed at a scale."""
    return f"{scale}-{testbed}.json"


def read_tuned(path: Path) -> Tuned:
    """Read a log; one that does not hold what it must is refused.

    Its methods need not have equally many tries while some are being added: tables say how many each one had.
    """
    raw = read_json_object(path, "The log of a tuning")
    try:
        return Tuned.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise InputError(
            f"The log of a tuning {path} must be as 'fedbasis tune' wrote it, but at {where}: {first['msg']}; run the "
            "command again."
        ) from None


@lru_cache(maxsize=64)
def shipped(scale: str, testbed: str) -> Tuned | None:
    """Return the log that comes with the package, if there is one."""
    path = HERE / file_name(scale, testbed)
    return read_tuned(path) if path.exists() else None


def winners(scale: str, testbed: str, name: str) -> dict[str, dict[str, Any]]:
    """Return the winning settings of a method by section; empty if it was not tuned."""
    log = shipped(scale, testbed)
    if log is None or name not in log.methods:
        return {}
    method = log.methods[name]
    sections = by_section(method.settings)
    by_way = {way: {"rates": [one.rate], "statistics": [one.statistics]} for way, one in method.chosen.items()}
    if by_way:
        sections["personalize"] = {**sections.get("personalize", {}), "by_way": by_way}
    return sections


def by_section(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Turn ``section.setting`` into tables of an experiment."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        section, _, setting = key.partition(".")
        sections.setdefault(section, {})[setting] = value
    return sections
