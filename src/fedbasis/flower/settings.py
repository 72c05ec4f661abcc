"""The settings of a federation: participating clients, classes, the deadline of a round; and its experiments.

They are in the app's folder, which Flower sends to every node: ``federation.toml`` and one experiment or more in
``experiments/``. All experiments are trained at the same time, in the same messages.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, Strict, ValidationError

from fedbasis.engines.download import Download
from fedbasis.experiment.config import Experiment, Share, read
from fedbasis.experiment.setup import TrainingRun, method_for
from fedbasis.experiment.toml import ConfigSection
from fedbasis.methods.base import Method
from fedbasis.methods.problems import problem_lines
from fedbasis.training.runs import Run
from pflbed.errors import InputError, InputListError
from pflbed.foreign import read_toml

FEDERATION, EXPERIMENTS = "federation.toml", "experiments"
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Federation(ConfigSection):
    """The settings that all nodes of a federation share."""

    clients: Annotated[tuple[Name, ...], Strict(False)] = Field(
        min_length=1, description="names of the nodes that train; updates are added in this order"
    )
    classes: Annotated[tuple[Name, ...], Strict(False)] = Field(
        min_length=2, description="names of the class folders, in the order of the network's outputs"
    )
    download: Download = Field(
        default="float32",
        description="precision of the tensors that the server sends: float32, bfloat16 (half the bytes), or compact "
        "(bases as one reference and differences of 4 bits)",
    )
    deadline: float = Field(default=600.0, gt=0, le=86400, description="seconds until a round continues without a node")
    minimum: Share = Field(default=0.5, description="the share of a round's clients that must answer in time")

    @property
    def identity(self) -> str:
        """A digest of the settings that influence the result."""
        settings = [self.clients, self.classes, self.download]
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


@dataclass(frozen=True)
class FederatedRun:
    """An experiment of a federation."""

    name: str
    experiment: Experiment
    federation: Federation

    def method(self) -> Method:
        """Build the method with its network."""
        return method_for(self.experiment, self.federation.classes)

    def run(self, out: Path) -> Run:
        """Return the run below ``out``; the same settings give the same folder."""
        return Run(out / f"{self.experiment.slug}-{self.experiment.digest(self.federation.identity)}")

    def training_run(self, out: Path) -> TrainingRun:
        """Set up the training."""
        terms = self.federation
        return TrainingRun(
            method=self.method(),
            experiment=self.experiment,
            clients=terms.clients,
            classes=terms.classes,
            data_digest=terms.identity,
            run=self.run(out),
            download=terms.download,
        )


def read_federation(app: Path) -> Federation:
    """Read ``federation.toml``."""
    path = app / FEDERATION
    raw = read_toml(path, "The settings of a federation", "'fedbasis federation init' writes them")
    return _checked(raw, path)


def _checked(raw: Mapping[str, Any], path: Path) -> Federation:
    try:
        federation = Federation(**raw)
    except ValidationError as error:
        raise InputListError(str(path), problem_lines(error, (), Federation)) from error
    for what, names in (("clients", federation.clients), ("classes", federation.classes)):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InputError(f"The {what} of {path} must have different names, but '{twice[0]}' is there twice.")
    return federation


def read_plans(app: Path) -> list[FederatedRun]:
    """Read the experiments of an app."""
    federation = read_federation(app)
    paths = sorted((app / EXPERIMENTS).glob("*.toml"))
    if not paths:
        raise InputError(f"An app must have an experiment to train, but there is no toml file in {app / EXPERIMENTS}.")
    plans = [FederatedRun(path.stem, read(path), federation) for path in paths]
    for path, plan in zip(paths, plans, strict=True):
        require_modules(plan.experiment)
        if plan.experiment.train.download != "float32":
            raise InputError(
                f"The download of a federation is set in {FEDERATION}, but {path} has train.download = "
                f"'{plan.experiment.train.download}'; move it there."
            )
        privacy = plan.experiment.privacy
        if privacy.noise_multiplier and federation.download == "compact":
            raise InputError(
                f"[privacy] clips the difference from what the server has, so download in {FEDERATION} must not be "
                f"'compact', but {path} has [privacy]; set download = 'float32'."
            )
        if privacy.noise_multiplier and privacy.noise_seed != "secret":
            raise InputError(
                f"The [privacy] of {path} must have noise_seed = 'secret' in a federation, but it is "
                f"'{privacy.noise_seed}': every node has this file, and could subtract noise that a seed determines."
            )
    return plans


def require_modules(experiment: Experiment) -> None:
    """Refuse a network or a method of a running script, which no node can import."""
    for what, name in (("network", experiment.model.name), ("method", experiment.method_name)):
        if name.startswith("__main__:"):
            raise InputError(
                f"The {what} of a federation must be in a module that nodes can import, but it is '{name}'; name it by "
                f"the script's file, such as 'my_script:{name.partition(':')[2]}'."
            )
