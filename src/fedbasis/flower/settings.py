"""What a federation agrees on: who takes part, the classes, how long a round may last; and what is to be trained.

All of it lies in the app's folder, which Flower carries to every node: ``federation.toml`` and one experiment or more
in ``experiments/``. Experiments that lie side by side are trained side by side, in the same messages.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, Strict, ValidationError

from fedbasis.experiment.config import Experiment, Share, read
from fedbasis.experiment.setup import TrainingRun, method_for
from fedbasis.experiment.toml import ConfigSection
from fedbasis.methods.base import Method
from fedbasis.methods.problems import problem_lines, problems_error
from fedbasis.training.runs import Run
from pflbed.errors import InputError
from pflbed.foreign import read_toml

FEDERATION, EXPERIMENTS = "federation.toml", "experiments"
Name = Annotated[str, Field(min_length=1, max_length=200)]


class Federation(ConfigSection):
    """The terms of a federation."""

    clients: Annotated[tuple[Name, ...], Strict(False)] = Field(
        min_length=1, description="the nodes that train, by name; sums are added up in this order"
    )
    classes: Annotated[tuple[Name, ...], Strict(False)] = Field(
        min_length=2, description="the classes, in the order of the network's outputs; folders of these names"
    )
    download: Literal["float32", "bfloat16"] = Field(
        default="float32", description="how the server's tensors travel to the nodes; bfloat16 halves the bytes"
    )
    deadline: float = Field(default=600.0, gt=0, le=86400, description="seconds until a round goes on without a node")
    minimum: Share = Field(default=0.5, description="the share of a round's clients that must answer in time")

    @property
    def identity(self) -> str:
        """The same for federations that give the same result."""
        agreed = [self.clients, self.classes, self.download]
        return hashlib.sha256(json.dumps(agreed).encode()).hexdigest()


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
        """Return the run's folder below ``out``; the same terms lead to the same folder."""
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
        )


def read_federation(app: Path) -> Federation:
    """Read the terms."""
    path = app / FEDERATION
    raw = read_toml(path, "A federation's app needs its terms:", "'fedbasis federation init' writes one")
    return _checked(raw, path)


def _checked(raw: Mapping[str, Any], path: Path) -> Federation:
    try:
        federation = Federation(**raw)
    except ValidationError as error:
        raise problems_error(str(path), problem_lines(error, (), Federation)) from error
    for what, names in (("clients", federation.clients), ("classes", federation.classes)):
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InputError(f"The {what} of {path} must have names of their own, but '{twice[0]}' stands there twice.")
    return federation


def read_plans(app: Path) -> list[FederatedRun]:
    """Read the experiments of an app."""
    federation = read_federation(app)
    found = sorted((app / EXPERIMENTS).glob("*.toml"))
    if not found:
        raise InputError(f"An app must have an experiment to train, but there is no toml file in {app / EXPERIMENTS}.")
    plans = [FederatedRun(path.stem, read(path), federation) for path in found]
    for path, plan in zip(found, plans, strict=True):
        privacy = plan.experiment.privacy
        if privacy.noise_multiplier and privacy.noise_seed != "secret":
            raise InputError(
                f"The [privacy] of {path} must have noise_seed = 'secret' in a federation, but it is "
                f"'{privacy.noise_seed}': every node has this file, and could subtract noise that its seed tells."
            )
    return plans
