"""Carry out one experiment: data -> benchmark -> rounds -> bases -> new clients -> results, in one run folder.

Called again it goes on where it stopped; called after its end it only reads. Nothing is printed here: whoever calls
passes an ``Observer``.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch

import pflbed
from fedbasis.engines.choice import Machine, devices_of, workers_for
from fedbasis.engines.client_state import ClientStates
from fedbasis.engines.in_process import InProcess
from fedbasis.engines.simulation import Simulation
from fedbasis.experiment.config import Experiment, PersonalizeConfig
from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation, Method, Task
from fedbasis.networks.models import Network
from fedbasis.networks.train import Preprocessing, Recipe
from fedbasis.serving import artifact
from fedbasis.serving.evaluation import EvaluationPlan, ServingCurve, evaluate, summarize
from fedbasis.serving.personalize import KEPT
from fedbasis.tensors.files import load_weights
from fedbasis.tensors.params import State
from fedbasis.training.privacy import Mechanism
from fedbasis.training.rounds import Validation, sampled, train
from fedbasis.training.runs import Run, append_line, read_lines, rewrite_lines, sync
from pflbed import Benchmark, Client, Images, InputError
from pflbed.dataset import EMBEDDED, find
from pflbed.files import write_json
from pflbed.manifest import CARD, read_card
from pflbed.table import limited_rows


class Observer:
    """What a run tells while it works; every method may be overridden, and none has to be."""

    def decoding(self, done: int, total: int) -> None:
        """So many images are decoded."""

    def bad_images(self, bad: list[tuple[str, str]]) -> None:
        """These images could not be read and are left out."""

    def started(self, run: Run, method: str, rounds_done: int, rounds: int, jobs_done: int, jobs: int) -> None:
        """The run begins, or goes on."""

    def working(self, who: str) -> None:
        """These workers do the work."""

    def client(self, number: int, client: int, clients: int, loss: float) -> None:
        """A client of a round has trained."""

    def round(self, record: dict[str, Any]) -> None:
        """A round has ended."""

    def served(self, done: int, total: int, record: dict[str, Any]) -> None:
        """A new client has been personalized in one way."""


@dataclass(frozen=True)
class Prepared:
    """An experiment with its data in place."""

    experiment: Experiment
    benchmark: Benchmark
    clients: Mapping[str, Client]
    identity: str
    """A digest of the images and, if these were split up before, of who got which."""

    @cached_property
    def method(self) -> Method:
        """The method with its network."""
        method = method_for(self.experiment, self.benchmark.table.class_names)
        protectable(method, self.mechanism)
        return method

    @cached_property
    def mechanism(self) -> Mechanism | None:
        """How the participating clients are protected, if they are."""
        return mechanism_for(self.experiment, self.benchmark.participating)

    @property
    def training(self) -> Mapping[str, Images]:
        """The images that clients train on, each client's made when it is asked for."""
        return _Training(self.clients)

    @property
    def new(self) -> dict[str, Client]:
        """The clients that come after training."""
        return {name: self.clients[name] for name in self.benchmark.new}

    @property
    def served(self) -> dict[str, Client]:
        """The clients that are served after training."""
        if self.experiment.personalize.whom == "new":
            return self.new
        return {name: self.clients[name] for name in self.benchmark.participating}

    @property
    def sizes(self) -> tuple[str, ...]:
        """The sizes of data that are tried on them; clients that took part have all of theirs."""
        sizes = self.experiment.data.sizes
        if self.experiment.personalize.whom == "new":
            return tuple(sizes)
        return tuple(size for size, share in sizes.items() if share == 1.0)

    @property
    def training_digest(self) -> str:
        """The same for experiments that train alike, however they serve clients afterwards."""
        e = self.experiment
        alike = e if e.train.serve_every else e.model_copy(update={"personalize": PersonalizeConfig()})
        return alike.digest(self.identity)

    def run(self, out: Path) -> Run:
        """Return the run's folder below ``out``."""
        return Run(out / f"{self.experiment.method_name}-{self.experiment.digest(self.identity)}")


def method_for(e: Experiment, classes: Sequence[str]) -> Method:
    """Build an experiment's method for images of these classes."""
    network = Network(e.model.name, len(classes), e.data.resolution, e.model.options, e.model.blocks)
    recipe = Recipe(
        Preprocessing(e.data.resolution), e.train.epochs, e.train.batch, e.train.rate, e.train.momentum,
        e.train.decay, e.train.augment,
    )  # fmt: skip
    weighting = cast(Literal["uniform", "examples"], e.train.weighting)
    task = Task(network, recipe, e.train.rounds, weighting, averaging=e.aggregation.averaging())
    if e.model.weights is not None:
        task = replace(task, weights=load_weights(Path(e.model.weights), task.layout.shapes))
    return METHODS[e.method_name](e.method, task)


def mechanism_for(e: Experiment, clients: Sequence[str]) -> Mechanism | None:
    """Return how these clients are protected while they train, if they are."""
    return e.privacy.mechanism(len(clients), len(sampled(clients, e.train.participation, e.seed, 0)))


def protectable(method: Method, mechanism: Mechanism | None) -> None:
    """Refuse, before any work, what a mechanism cannot protect, or whose epsilon cannot be computed here."""
    if mechanism is not None:
        method.require_mean()
        mechanism.epsilon(method.task.rounds)


class _Training(Mapping[str, Images]):
    def __init__(self, clients: Mapping[str, Client]) -> None:
        self._clients = clients

    def __getitem__(self, name: str) -> Images:
        return self._clients[name].train

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def prepare(experiment: Experiment, observer: Observer | None = None) -> Prepared:
    """Decode the data (or find them decoded) and split them among clients, unless that was done before."""
    observer = observer or Observer()
    source, resolution = experiment.data.source, experiment.data.resolution
    if is_benchmark(source):
        return _built_before(experiment, Path(source), observer)
    dataset = find(source, experiment.data.dataset, progress=observer.decoding)
    if dataset.source.resolution not in (None, resolution):
        raise InputError(
            f"The embedded data are {dataset.source.resolution} pixels wide, but data.resolution is {resolution}; set "
            f"it to {dataset.source.resolution}."
        )
    dataset, findings, _ = dataset.checked(observer.decoding)
    if findings.bad:
        observer.bad_images(findings.bad)
    decoded = dataset.decode(resolution, progress=observer.decoding)
    table, images = decoded.table, decoded.images
    if experiment.data.limit is not None:
        rows = limited_rows(table, experiment.data.limit, experiment.seed)
        table, images = table.take(rows), images[rows]
    benchmark = pflbed.build(table, experiment.data.spec(experiment.seed))
    return Prepared(experiment, benchmark, pflbed.clients(benchmark, images), decoded.table.digest)


def is_benchmark(source: str) -> bool:
    """Whether the source is a folder that ``pflbed build`` wrote."""
    return source != EMBEDDED and (Path(source) / CARD).is_file()


def _built_before(experiment: Experiment, folder: Path, observer: Observer) -> Prepared:
    """Take the clients as they are; the experiment's own numbers of clients, sizes and so on give way to theirs."""
    clients = pflbed.load(folder, resolution=experiment.data.resolution, progress=observer.decoding)
    whom, benchmark = experiment.personalize.whom, clients.benchmark
    served = benchmark.new if whom == "new" else benchmark.participating
    lacking = [name for name in served if not benchmark.held_weights(name, "val").sum()]
    if lacking or not served:
        raise InputError(
            f"The benchmark {folder} must have {whom} clients with validation images, because rates and epochs are "
            f"chosen by these, but {lacking[0] if lacking else 'it'} has none; build it with --new and a validation "
            "share."
        )
    data = experiment.data.as_built(clients.benchmark.spec)
    changed = experiment.model_copy(update={"data": data})
    return Prepared(changed, clients.benchmark, clients, read_card(folder)["manifest_sha256"])


def execute(prepared: Prepared, out: Path, observer: Observer | None = None) -> Run:
    """Train (or go on training), publish the bases, serve every new client, score, and mark the run as done."""
    observer = observer or Observer()
    run, method, e = prepared.run(out), prepared.method, prepared.experiment
    machine = Machine(e.machine.engine, e.machine.workers, e.machine.device, e.machine.threads)
    if machine.engine != "ray":  # a cluster has devices of its own
        devices_of(machine)
    torch.set_num_threads(e.machine.threads)
    p = e.personalize
    plan = EvaluationPlan(
        e.ways,
        prepared.sizes,
        p.rates,
        Adaptation(p.epochs, p.rates[0], p.decay, p.momentum, p.batch, p.prox, p.validate_every),
        ("none", KEPT, *method.rate_free),
    )
    clients = prepared.served
    jobs = len(plan.jobs(clients))
    # What cannot work is refused before anything is written: the network, its classifier, the clients of a round.
    method.task.network.check()
    method.task.classifier  # noqa: B018
    if "bn" in e.ways and not method.task.normalization & method.task.parameters:
        raise InputError(
            f"personalize.ways holds 'bn', which trains normalization layers, but {e.model.name} has none here; set "
            "personalize.ways to others, such as ['lp', 'ft']."
        )
    method.require_clients(len(sampled(prepared.benchmark.participating, e.train.participation, e.seed, 0)))
    with contextlib.ExitStack() as stack:
        workers = InProcess(method) if run.done else stack.enter_context(workers_for(method, machine))
        stack.enter_context(run.locked())
        if not run.done:
            write_json(run.config, e.as_dict())
        done = read_lines(run.evaluation)
        lines = read_lines(run.metrics)
        observer.started(run, method.name, lines[-1]["round"] if lines else 0, e.train.rounds, len(done), jobs)
        if run.done:
            run.checkpoint.unlink(missing_ok=True)  # a process killed at its very end leaves both
            ClientStates(run.client_states).remove()
            return run

        def write(record: dict[str, Any]) -> None:
            append_line(run.evaluation, record)
            sync(run.evaluation)
            done.append(record)
            observer.served(len(done), jobs, record)

        observer.working(str(workers))
        kept = ClientStates(run.client_states)
        server = train(
            method, Simulation(workers, prepared.training, e.seed, kept), prepared.benchmark.participating, e.seed,
            run, participation=e.train.participation,
            validate=Validation(method, (prepared.clients[name] for name in prepared.benchmark.participating)),
            checkpoint_seconds=e.machine.checkpoint_seconds, on_client=observer.client, on_round=observer.round,
            measure=ServingCurve(method, workers, clients, plan, e.seed, e.train.serve_every, kept),
            privacy=prepared.mechanism,
        )  # fmt: skip
        publish(prepared, server, run)
        rewrite_lines(run.evaluation, done)
        records = evaluate(workers, method.published(server), clients, plan, e.seed, tuple(done), write, kept)
        rows = [{**asdict(row), "delta": row.delta} for row in summarize(method.name, records, clients)]
        write_json(run.results, rows)
        prepared.benchmark.save(run.folder / "benchmark")
        digest = artifact.read_card(run.bases).sha256
        run.finish({"bases": digest, "rounds": e.train.rounds, "training": prepared.training_digest})
        run.checkpoint.unlink(missing_ok=True)
        kept.remove()
    return run


def publish(prepared: Prepared, server: State, run: Run) -> None:
    """Write what new clients are served from; bit-identical for the same experiment."""
    table, clients = prepared.benchmark.table, len(prepared.benchmark.participating)
    card = bases_card(
        prepared.method, prepared.experiment, table.class_names, table.digest, run, clients, prepared.mechanism
    )
    artifact.save(run.bases, prepared.method.published(server), card, replace=True)


def bases_card(
    method: Method, e: Experiment, classes: Sequence[str], data: str, run: Run, clients: int,
    protected: Mechanism | None,
) -> artifact.Card:  # fmt: skip
    """Say of bases what they are and where they come from."""
    return artifact.Card(
        kind="bases",
        method=method.name,
        settings=e.method.model_dump(mode="json"),
        architecture=artifact.describe(method.task.network),
        classes=list(classes),
        preprocessing=artifact.describe_pixels(method.task.recipe.preprocessing),
        provenance={
            "data": data,
            "seed": e.seed,
            "run": run.folder.name,
            "rounds": e.train.rounds,
            "clients": clients,
            **({} if protected is None else {"privacy": protected.spent(e.train.rounds)}),
        },
    )
