"""One training run, in a simulation or in a federation: its checks before the rounds, its files, and its end."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedbasis.engines.base import Engine
from fedbasis.engines.download import Download, require_download
from fedbasis.experiment.config import Experiment
from fedbasis.methods import find_method, name_of
from fedbasis.methods.base import Method, Task
from fedbasis.networks.models import Network
from fedbasis.networks.weights import weights_path
from fedbasis.serving import artifact
from fedbasis.serving.personalize import all_ways, label_of
from fedbasis.tensors.files import load_weights
from fedbasis.tensors.params import State
from fedbasis.training.events import Emit, ignore
from fedbasis.training.privacy import Mechanism
from fedbasis.training.rounds import Measure, ValidateServer, sampled, train
from fedbasis.training.runs import Run
from pflbed import InputError
from pflbed.files import write_json
from pflbed.manifest import installed_version


def method_for(
    e: Experiment, classes: Sequence[str], kind: type[Method] | None = None, network: Network | None = None
) -> Method:
    """Build an experiment's method.

    Args:
        e: The experiment.
        classes: The names of the classes.
        kind: The method's class; None: import it by the experiment's name.
        network: The network; None: the experiment's.
    """
    if network is None:
        network = Network(
            e.model.name, len(classes), e.data.input_resolution, e.model.options, e.model.blocks, e.data.channels
        )
    kind = kind or find_method(e.method_name)
    network = replace(network, precision=e.train.precision, channels_last=_on_gpu(e) and not kind.flat_state)
    task = Task(
        network,
        e.train.recipe(e.data.preprocessing(network.channels)),
        e.train.rounds,
        weighting=e.train.weighting,
        weights=network.given_weights(),
        averaging=e.aggregation.averaging(),
    )
    if e.model.weights is not None:
        unused = getattr(network.skeleton(), "unused_weights", ())
        task = replace(task, weights=load_weights(weights_path(e.model.weights), task.layout.shapes, unused))
    return kind.build(e.method, task)


def _on_gpu(e: Experiment) -> bool:
    return torch.cuda.is_available() and e.machine.device.startswith(("auto", "cuda"))


def mechanism_for(e: Experiment, clients: Sequence[str]) -> Mechanism | None:
    """Return the mechanism of differential privacy for these clients, or None without privacy."""
    return e.privacy.mechanism(len(clients), len(sampled(clients, e.train.participation, e.seed, 0)))


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A method, its clients, and the run folder; without a run folder nothing is written."""

    method: Method
    experiment: Experiment
    clients: Sequence[str]
    classes: Sequence[str]
    data_digest: str
    run: Run | None = None
    download: Download = "float32"

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism of differential privacy, or None."""
        return mechanism_for(self.experiment, self.clients)

    def check(self) -> None:
        """Check the network, the number of clients a round and privacy, before anything is written."""
        e, method = self.experiment, self.method
        method.task.network.check()
        method.task.classifier  # noqa: B018  (an error if the network has none)
        require_download(method, self.download)
        if "bn" in e.ways and not method.task.normalization & method.task.parameters:
            raise InputError(
                f"personalize.ways has 'bn', which trains normalization layers, but {e.model.name} has none here; "
                "set personalize.ways to others, such as ['lp', 'ft']."
            )
        method.updates.require_clients(len(sampled(self.clients, e.train.participation, e.seed, 0)))
        if (mechanism := self.mechanism) is not None:
            method.updates.require_average()
            mechanism.epsilon(method.task.rounds)  # an error if dp-accounting is not installed

    def start(self, config: Mapping[str, Any]) -> None:
        """Write the run's configuration, and the texts about its method for reports."""
        if self.run is not None:
            write_json(self.run.config, config)
            kind, about = type(self.method), self.method.about
            labels = {way: label_of(kind, way) for way in all_ways(kind)}
            write_json(self.run.about, {"title": about.title, "labels": labels, "charts": dict(about.charts)})

    def train(
        self,
        engine: Engine,
        emit: Emit = ignore,
        validate: ValidateServer | None = None,
        measure: Measure | None = None,
    ) -> State:
        """Train for all rounds, write the published artifact, and return the server's state."""
        e = self.experiment
        server = train(
            self.method,
            engine,
            self.clients,
            e.seed,
            self.run,
            participation=e.train.participation,
            validate=validate,
            checkpoint_seconds=e.machine.checkpoint_seconds,
            emit=emit,
            measure=measure,
            privacy=self.mechanism,
            download=self.download,
        )
        if self.run is not None:
            artifact.save(self.run.bases, self.method.serving.published(server), self.card(), overwrite=True)
        return server

    def finish(self, engine: Engine, **summary: Any) -> None:
        """Mark the run as done and remove the checkpoint and the client states."""
        if self.run is not None:
            digest = artifact.read_card(self.run.bases).sha256
            rounds = self.experiment.train.rounds
            self.run.finish({"bases": digest, "rounds": rounds, "versions": versions(), **summary})
            self.run.remove_checkpoints()
        engine.states.remove()

    def card(self) -> artifact.Card:
        """Return the card of the published artifact: architecture, classes, settings and provenance."""
        e, task, mechanism = self.experiment, self.method.task, self.mechanism
        return artifact.Card(
            kind="bases",
            method=name_of(type(self.method)),
            settings=self.method.config.model_dump(mode="json"),
            architecture=artifact.describe(task.network),
            classes=list(self.classes),
            preprocessing=artifact.describe_pixels(task.recipe.preprocessing),
            provenance={
                "data": self.data_digest,
                "seed": e.seed,
                "run": "" if self.run is None else self.run.folder.name,
                "rounds": e.train.rounds,
                "clients": len(self.clients),
                **({} if mechanism is None else {"privacy": mechanism.spent(e.train.rounds)}),
            },
        )


def versions() -> dict[str, str]:
    """Return what the last bits of a result depend on beside the settings."""
    return {
        "fedbasis": installed_version(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
