"""Run one experiment: data -> benchmark -> rounds -> bases -> new clients -> results, in one run folder.

Called again, it resumes from the last checkpoint; a run that is done is only read. Nothing is printed here: events are
passed to the callback ``emit``.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import pflbed
from fedbasis.engines.choice import device_of, devices_of, workers_for
from fedbasis.engines.client_state import ClientStates
from fedbasis.engines.in_process import InProcess
from fedbasis.engines.simulation import Simulation
from fedbasis.experiment.config import Experiment
from fedbasis.experiment.setup import TrainingRun, method_for
from fedbasis.methods.base import Method
from fedbasis.networks.activations import require_network
from fedbasis.networks.models import Network
from fedbasis.serving.evaluation import EvaluationPlan, ServingCurve, evaluate, summarize
from fedbasis.serving.personalize import CLIENT_STATE
from fedbasis.training.events import (
    ClientServed,
    Emit,
    ImagesDecoded,
    ImagesSkipped,
    RunStarted,
    WorkersStarted,
    ignore,
)
from fedbasis.training.rounds import Validation, final_round
from fedbasis.training.runs import Run, append_line, read_lines, rewrite_lines, sync
from pflbed import Benchmark, Client, Images, InputError
from pflbed.dataset import EMBEDDED, find
from pflbed.files import write_json
from pflbed.manifest import CARD, read_card
from pflbed.table import limited_rows


@dataclass(frozen=True)
class Prepared:
    """An experiment with its data: the images are decoded and split among clients."""

    experiment: Experiment
    benchmark: Benchmark
    clients: Mapping[str, Client]
    identity: str
    """A digest of the images; of a built benchmark, a digest of its manifest."""
    kind: type[Method] | None = None
    """The method's class, if it was given as an object."""
    network: Network | None = None
    """The network, if it was given as an object."""

    @cached_property
    def method(self) -> Method:
        """The method with its network."""
        return method_for(self.experiment, self.benchmark.table.class_names, self.kind, self.network)

    @property
    def training(self) -> Mapping[str, Images]:
        """The training images of every client, loaded on access."""
        return _Training(self.clients)

    @property
    def new(self) -> dict[str, Client]:
        """The new clients."""
        return {name: self.clients[name] for name in self.benchmark.new}

    @property
    def served(self) -> dict[str, Client]:
        """The clients that are personalized after training."""
        if self.experiment.personalize.whom == "new":
            return self.new
        return {name: self.clients[name] for name in self.benchmark.participating}

    @property
    def sizes(self) -> tuple[str, ...]:
        """The data sizes that are evaluated; participating clients have all of their images."""
        sizes = self.experiment.data.sizes
        if self.experiment.personalize.whom == "new":
            return tuple(sizes)
        return tuple(size for size, share in sizes.items() if share == 1.0)

    @property
    def plan(self) -> EvaluationPlan:
        """How these clients are personalized and scored."""
        p = self.experiment.personalize
        return EvaluationPlan.of(
            self.method,
            ways=p.ways,
            sizes=self.sizes,
            rates=p.rates,
            statistics=p.statistics,
            adaptation=p.adaptation(),
            own_rates={way: own.rates for way, own in p.by_way.items() if own.rates},
            own_statistics={way: own.statistics for way, own in p.by_way.items() if own.statistics},
        )

    @property
    def training_digest(self) -> str:
        """A digest that is equal for experiments with the same training, whatever their personalization."""
        return self.experiment.training.digest(self.identity)

    def run(self, out: Path) -> Run:
        """Return the run's folder below ``out``."""
        return Run(out / f"{self.experiment.slug}-{self.experiment.digest(self.identity)}")

    def training_run(self, run: Run | None = None) -> TrainingRun:
        """Set up the training."""
        table = self.benchmark.table
        return TrainingRun(
            method=self.method,
            experiment=self.experiment,
            clients=self.benchmark.participating,
            classes=table.class_names,
            data_digest=table.digest,
            run=run,
            download=self.experiment.train.download,
        )

    def validation(self) -> Validation:
        """Return the evaluation of the server's model on the participating clients' validation images."""
        machine = self.experiment.machine
        device = "cpu" if machine.engine == "ray" else device_of(machine.device)  # a cluster's GPUs are elsewhere
        return Validation(self.method, (self.clients[name] for name in self.benchmark.participating), device)


class _Training(Mapping[str, Images]):
    def __init__(self, clients: Mapping[str, Client]) -> None:
        self._clients = clients

    def __getitem__(self, name: str) -> Images:
        return self._clients[name].train

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def prepare(experiment: Experiment, emit: Emit = ignore) -> Prepared:
    """Decode the images (or read them from the cache) and split them among clients, unless the data are a benchmark."""

    def progress(done: int, total: int) -> None:
        emit(ImagesDecoded(done, total))

    data = experiment.data
    if is_benchmark(data.source):
        return _built_before(experiment, Path(data.source), emit)
    dataset = find(data.source, data.dataset, progress=progress)
    if dataset.source.resolution not in (None, data.resolution):
        raise InputError(
            f"The embedded data are {dataset.source.resolution} pixels wide, but data.resolution is {data.resolution}; "
            f"set it to {dataset.source.resolution}."
        )
    card = dataset.card
    model = experiment.model
    require_network(card.about, model.name, model.options, model.weights, data.source)
    dataset, findings, _ = dataset.checked(progress)
    if findings.bad:
        emit(ImagesSkipped(findings.bad))
    dataset = dataset.part(data.part)
    decoded = dataset.decode(data.resolution, progress=progress, channels=data.channels)
    table, images = decoded.table, decoded.images
    if data.limit is not None:
        rows = limited_rows(table, data.limit, experiment.seed)
        table, images = table.take(rows), images[rows]
    benchmark = pflbed.build(table, data.spec(experiment.seed))
    everyone = pflbed.clients(benchmark, images, card.normalization)
    changed = experiment.model_copy(update={"data": data.normalized(card.normalization)})
    return Prepared(changed, benchmark, everyone, decoded.table.digest)


def is_benchmark(source: str) -> bool:
    """Return whether the source is a folder that ``pflbed build`` wrote."""
    return source != EMBEDDED and (Path(source) / CARD).is_file()


def _built_before(experiment: Experiment, folder: Path, emit: Emit) -> Prepared:
    """Load the clients of a benchmark; its settings replace the experiment's settings of clients and sizes."""
    clients = pflbed.load(
        folder,
        resolution=experiment.data.resolution,
        channels=experiment.data.channels,
        progress=lambda done, total: emit(ImagesDecoded(done, total)),
    )
    whom, benchmark = experiment.personalize.whom, clients.benchmark
    served = benchmark.new if whom == "new" else benchmark.participating
    lacking = [name for name in served if not benchmark.held_weights(name, "val").sum()]
    if lacking or not served:
        raise InputError(
            f"The benchmark {folder} must have {whom} clients with validation images, because rates and epochs are "
            f"chosen by these, but {lacking[0] if lacking else 'it'} has none; build it with --new and a validation "
            "share."
        )
    data = experiment.data.as_built(clients.benchmark.spec).normalized(clients.normalization)
    changed = experiment.model_copy(update={"data": data})
    return Prepared(changed, clients.benchmark, clients, read_card(folder)["manifest_sha256"])


def execute(prepared: Prepared, out: Path, emit: Emit = ignore) -> Run:
    """Train (or resume training), publish the bases, personalize and score every client, and mark the run as done.

    Args:
        prepared: The experiment with its data.
        out: The folder of run folders.
        emit: Called with every event.

    Returns:
        The run.
    """
    run, method, e = prepared.run(out), prepared.method, prepared.experiment
    training, machine, plan, clients = prepared.training_run(run), e.machine.machine(), prepared.plan, prepared.served
    if machine.engine != "ray":  # a cluster has its own devices
        devices_of(machine)
    torch.set_num_threads(machine.threads)
    tasks = len(plan.jobs(clients))
    training.check()
    with contextlib.ExitStack() as stack:
        workers = InProcess(method) if run.done else stack.enter_context(workers_for(method, machine))
        stack.enter_context(run.locked())
        states = ClientStates(run.client_states)
        done, lines = read_lines(run.evaluation), read_lines(run.metrics)
        rounds_done = lines[-1]["round"] if lines else 0
        emit(RunStarted(run.folder, method.about.title, rounds_done, e.train.rounds, len(done), tasks, run.done))
        if run.done:
            run.remove_checkpoints()  # a process that was killed at its end may leave both
            states.remove()
            return run
        training.start(e.as_dict())

        def write(record: dict[str, Any]) -> None:
            append_line(run.evaluation, record)
            sync(run.evaluation)
            done.append(record)
            emit(ClientServed(len(done), tasks, record))

        emit(WorkersStarted(str(workers)))
        engine = Simulation(workers, prepared.training, e.seed, states, download=e.train.download)
        curve = ServingCurve(method, workers, clients, plan, e.seed, e.train.serve_every, states)
        server = training.train(engine, emit, prepared.validation(), curve)
        if CLIENT_STATE in plan.ways and e.personalize.final_round:
            final_round(method, engine, server, prepared.benchmark.participating)
        rewrite_lines(run.evaluation, done)
        published = method.serving.published(server)
        records = evaluate(workers, published, clients, plan, e.seed, tuple(done), write, states)
        rows = [{**asdict(row), "delta": row.delta} for row in summarize(type(method), records, clients)]
        write_json(run.results, rows)
        prepared.benchmark.save(run.folder / "benchmark")
        training.finish(engine, training=prepared.training_digest)
    return run
