"""An experiment is one TOML file: data, model, training, method, personalization. Wrong keys are all reported at once.

The hash of what influences the result names the run; where it is computed (``[machine] device``) does not count.
"""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pflbed import Spec
from pflbed.errors import InputError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from fedbasis.algorithms import METHODS
from fedbasis.algorithms.base import MethodConfig
from fedbasis.models import MODELS
from fedbasis.personalize import personalizers_of
from fedbasis.train import Augment

EMBEDDED = "digits4"


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(Section):
    """Where the images come from and how they become clients."""

    source: str = Field(EMBEDDED, description="'digits4' (embedded) or a folder <domain>/<class>/<image>")
    resolution: int = Field(28, ge=8, le=1024, description="images are scaled and cropped to this square")
    clients: int = Field(20, ge=1, description="participating clients per domain")
    new_clients: int = Field(10, ge=1, description="new clients per domain")
    alpha: float = Field(0.3, gt=0, description="Dirichlet concentration over classes")
    split: tuple[float, float, float, float] = Field((60, 20, 5, 15), description="participating/new/val/test in %")
    min_rows: int = Field(2, ge=1, description="the least number of images a client has")
    sizes: dict[str, float] = Field({"S": 0.5, "M": 1.0}, description="shares of a new client's images")

    def spec(self, seed: int) -> Spec:
        """Return PFLBed's specification of the benchmark."""
        return Spec(self.clients, self.new_clients, self.alpha, self.split, self.min_rows, self.sizes, seed)


class Model(Section):
    """The network."""

    name: str = Field("cnn-small", description=f"one of {', '.join(MODELS)}, or your own 'module:factory'")
    options: dict[str, Any] = Field({}, description="passed to the network, such as width or norm")
    blocks: int | dict[str, list[str]] | None = Field(None, description="1, or block -> parameter-name prefixes")
    weights: str | None = Field(None, description="a safetensors file of pretrained weights")


Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class Train(Section):
    """The federation's rounds and every client's local SGD."""

    rounds: int = Field(100, ge=1)
    participation: Count | Share = Field(1.0, description="clients a round: a share (1.0) or a number (10)")
    weighting: str = Field("uniform", pattern="^(uniform|examples)$", description="uniform or examples")
    epochs: int = Field(5, ge=1, description="local epochs a round")
    batch: int = Field(16, ge=1)
    rate: float = Field(0.01, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    decay: float = Field(1e-4, ge=0)
    augment: Augment = "none"


class Personalize(Section):
    """How new clients are served and scored."""

    ways: tuple[str, ...] | None = Field(None, description="none, lp, ft and the method's own; unset: the method's own")
    epochs: int = Field(20, ge=1)
    rates: tuple[float, ...] = Field((0.005, 0.01, 0.05), min_length=1, description="chosen on validation data")
    momentum: float = Field(0.9, ge=0, lt=1)
    decay: float = Field(1e-4, ge=0)
    batch: int = Field(16, ge=1)


class Machine(Section):
    """Where it is computed. The number of threads can change the last bits, so it counts for the run's name."""

    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps ...")
    threads: int = Field(1, ge=1, description="of one process; small networks are fastest with 1")


class Experiment(Section):
    """One training run and its evaluation."""

    seed: int = Field(0, ge=0)
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    personalize: Personalize = Personalize()
    machine: Machine = Machine()
    method_name: str
    method: MethodConfig

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways of personalizing that are evaluated."""
        own = METHODS[self.method_name].personalizers
        return self.personalize.ways or (own[-1:] if own else ("none", "lp", "ft"))

    def as_dict(self) -> dict[str, Any]:
        """Return everything, defaults included, as plain data."""
        return {
            **self.model_dump(mode="json", exclude={"method", "method_name"}),
            "method": {"name": self.method_name, **self.method.model_dump(mode="json")},
        }

    def digest(self, data_digest: str) -> str:
        """Hash what influences the result: the settings and the data themselves, not where the data lie."""
        settings = self.as_dict()
        settings["machine"].pop("device")
        settings["data"].pop("source")
        text = json.dumps([settings, data_digest], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def parse(raw: Mapping[str, Any], where: str = "the configuration") -> Experiment:
    """Check a configuration as a whole and report everything that is wrong in it at once."""
    raw = dict(raw)
    method = raw.pop("method", None)
    problems: list[str] = []
    name, config = "", MethodConfig()
    if not isinstance(method, Mapping) or not isinstance(method.get("name"), str):
        problems.append(f"[method] needs a 'name', one of {', '.join(METHODS)}")
    elif method["name"] not in METHODS:
        problems.append(f"method.name is '{method['name']}'{_nearest(method['name'], list(METHODS))}")
    else:
        name = method["name"]
        try:
            config = METHODS[name].Config(**{key: value for key, value in method.items() if key != "name"})
        except ValidationError as error:
            problems += [_sentence(e, ("method",), METHODS[name].Config) for e in error.errors()]
    for reserved in ("method_name",):
        if reserved in raw:
            problems.append(f"'{reserved}' is not a key{_nearest(reserved, ['method'])}")
            raw.pop(reserved)
    try:
        experiment = Experiment(method_name=name, method=config, **raw)
    except ValidationError as error:
        problems += [_sentence(e, (), Experiment) for e in error.errors()]
    if name and not problems:
        allowed = personalizers_of(METHODS[name])
        wrong = [way for way in experiment.ways if way not in allowed]
        problems += [f"personalize.ways holds '{way}'{_nearest(way, list(allowed))}" for way in wrong]
    if problems:
        raise InputError(f"{where} has {len(problems)} problem{'s' * (len(problems) > 1)}: " + "; ".join(problems) + ".")
    return experiment


def read(path: Path) -> Experiment:
    """Read a TOML file."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"The configuration {path} must exist, but it does not; see experiments/ for ready ones.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} must be a TOML file, but it cannot be read: {error}.") from error
    return parse(raw, str(path))


def _sentence(error: ErrorDetails, prefix: tuple[str, ...], root: type[BaseModel]) -> str:
    path = (*prefix, *(str(part) for part in error["loc"]))
    key = ".".join(path)
    if error["type"] == "extra_forbidden":
        section = _section(root, path[len(prefix) : -1])
        return f"'{key}' is not a key{_nearest(path[-1], list(section.model_fields))}"
    message = error["msg"].removeprefix("Value error, ")
    return f"'{key or 'method'}': {message[0].lower()}{message[1:]}" + (
        f" (got {error['input']!r})" if not isinstance(error["input"], (Mapping, BaseModel)) else ""
    )


def _section(root: type[BaseModel], path: tuple[str, ...]) -> type[BaseModel]:
    for part in path:
        field = root.model_fields.get(part)
        kind = field.annotation if field else None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            root = kind
    return root


def _nearest(got: str, valid: list[str]) -> str:
    valid = [name for name in valid if name != "method_name"]
    near = difflib.get_close_matches(got, valid, n=1, cutoff=0.5)
    return f" (did you mean '{near[0]}'?)" if near else f" (valid: {', '.join(valid)})"
