"""The library: train, personalize, evaluate, load. The command line is one of its users.

Nothing is written to disk unless a folder is given (but for temporary files of worker processes). Nothing is printed:
``on_event`` is called with what happens.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fedbasis.engines.choice import device_of, devices_of, workers_for
from fedbasis.engines.client_state import ClientStates
from fedbasis.engines.download import Download
from fedbasis.engines.simulation import Simulation
from fedbasis.experiment import Prepared
from fedbasis.experiment.config import parse
from fedbasis.methods import name_of
from fedbasis.methods.base import Adaptation, Method, ValueTable
from fedbasis.networks.augment import Augment
from fedbasis.networks.inputs import Examples
from fedbasis.networks.models import Network, NetworkSource, sides
from fedbasis.networks.statistics import Statistics
from fedbasis.networks.train import predict
from fedbasis.serving import artifact, new_client
from fedbasis.serving.evaluation import EvaluationPlan, ResultRow, summarize
from fedbasis.serving.evaluation import evaluate as evaluate_clients
from fedbasis.serving.hub_download import SCHEME, downloaded
from fedbasis.serving.tables import from_record
from fedbasis.tensors.flat import Precision
from fedbasis.tensors.packed import packed
from fedbasis.tensors.params import State
from fedbasis.training.events import ClientServed, Emit, Event, RoundEnded, RunStarted, WorkersStarted, ignore, to_all
from fedbasis.training.runs import Run, read_lines, rewrite_lines
from pflbed import Client, Clients, Images, InputError
from pflbed.files import write_json
from pflbed.foreign import read_json

Folder = str | Path
IN_MEMORY = "memory"
"""What the configuration of a run that ``train`` made has as its data."""
MAX_CONFIG = 2**24
"""Bytes of a run's configuration."""


@dataclass(frozen=True, eq=False)
class Trained:
    """What a training gave: a method with the tensors that new clients are served from.

    Attributes:
        method: The method, bound to its network.
        state: The published tensors, group by group; for FedBasis the bases.
        card: What they are and where they come from.
        metrics: The log, one record per round; empty for what was loaded from a folder of bases.
        run: The run folder, if the training has one.

    Example:
        >>> import fedbasis as fb, pflbed
        >>> clients = pflbed.digits4(clients=1, new=1, limit=24)
        >>> trained = fb.train(fb.FedAvg(network="cnn-small"), clients, rounds=1, epochs=1, engine="serial")
        >>> trained.module(torch.zeros(2, 3, 28, 28)).shape, trained.classes[:3]
        (torch.Size([2, 10]), ['0', '1', '2'])
    """

    method: Method
    state: State = field(repr=False)
    card: artifact.Card = field(repr=False)
    metrics: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    run: Run | None = None

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the network's outputs."""
        return self.card.classes

    @cached_property
    def module(self) -> nn.Module:
        """The ordinary network that a new client starts from, in evaluation mode."""
        return _module(self.method.task.network, self.method.model(self.state))

    def tables(self) -> list[ValueTable]:
        """Return what the method explains about its state, such as how alike its bases are."""
        return self.method.insight.describe(self.state)

    def save(self, folder: Folder, overwrite: bool = False) -> None:
        """Write the tensors and their card to a folder, which ``load`` and ``fedbasis personalize`` read."""
        artifact.save(Path(folder), self.state, self.card, overwrite=overwrite)


@dataclass(frozen=True, eq=False)
class Personal:
    """A personal model.

    Attributes:
        method: The method that made it.
        state: Its tensors as they are saved: an ordinary state dict, and what the method predicts with besides it.
        card: What it is and where it comes from.
        before: Accuracy of the server's model on the client's held-out images (or on its training images, if few).
        after: Accuracy of the personal model on the same images.
        tables: What was learned besides the model, by name.

    Example:
        >>> import fedbasis as fb, pflbed
        >>> clients = pflbed.digits4(clients=1, new=1, limit=24)
        >>> method = fb.FedBasis(network="cnn-small", bases=2)
        >>> trained = fb.train(method, clients, rounds=2, epochs=1, engine="serial")
        >>> mine = fb.personalize(trained, clients["mnist/n00"].train, epochs=1)
        >>> mine.module(torch.zeros(2, 3, 28, 28)).shape, sorted(mine.alpha)
        (torch.Size([2, 10]), ['conv1', 'conv2', 'conv3', 'fc'])
    """

    method: Method
    state: State = field(repr=False)
    card: artifact.Card = field(repr=False)
    before: float | None = None
    after: float | None = None
    tables: Mapping[str, ValueTable] = field(default_factory=dict, repr=False)

    @property
    def alpha(self) -> dict[str, list[float]]:
        """The coefficients: for every block, how much of each basis; empty for methods without coefficients."""
        return (
            {row: list(values) for row, values in self.tables["alpha"].rows.items()} if "alpha" in self.tables else {}
        )

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the network's outputs."""
        return self.card.classes

    @cached_property
    def module(self) -> nn.Module:
        """One ordinary network, in evaluation mode; it takes preprocessed inputs [N, C, H, W]."""
        return _module(self.method.task.network, self.state[""])

    def predict(self, images: Images | ArrayLike | Tensor) -> Tensor:
        """Return the class probabilities [N, classes] of uint8 images [N, H, W, C]."""
        pixels = torch.from_numpy(_pixels(images))
        if new_client.LEARNED not in self.state:
            return predict(self.module, pixels, self.card.pixels)
        workspace = self.method.task.network.workspace()
        workspace.load({name: self.state[""][name] for name in self.method.task.layout.shapes})
        return self.method.serving.probabilities(workspace, self.state[new_client.LEARNED], pixels)

    def save(self, folder: Folder, overwrite: bool = False) -> None:
        """Write the model and its card to a folder, which ``load`` and ``fedbasis predict`` read."""
        artifact.save(Path(folder), self.state, self.card, overwrite=overwrite)


@dataclass(frozen=True, eq=False)
class Scores:
    """How well clients are served: one row per way of personalizing and size.

    Attributes:
        rows: Mean personalized accuracies after the last epoch and after the best one, and each client's own.
        records: One record per client, way, size and rate, with its predictions.

    Example:
        >>> import fedbasis as fb, pflbed
        >>> clients = pflbed.digits4(clients=1, new=1, limit=24)
        >>> trained = fb.train(fb.FedAvg(network="cnn-small"), clients, rounds=1, epochs=1, engine="serial")
        >>> scores = fb.evaluate(trained, clients.new, ways=["none"], sizes=["S"], engine="serial")
        >>> [(row.label, row.size) for row in scores.rows], 0 <= scores["none", "S"].last <= 1
        ([('FedAvg', 'S')], True)
    """

    rows: Sequence[ResultRow]
    records: Sequence[Mapping[str, Any]] = field(repr=False)

    def __getitem__(self, key: tuple[str, str]) -> ResultRow:
        """Return the row of a way and a size."""
        for row in self.rows:
            if (row.how, row.size) == key:
                return row
        raise KeyError(key)

    def __repr__(self) -> str:
        head = f"{'method':<28} {'size':<5} {'Last':>6} {'Best':>6}"
        lines = [f"{row.label:<28} {row.size:<5} {100 * row.last:6.1f} {100 * row.best:6.1f}" for row in self.rows]
        return "\n".join(["Personalized accuracy (%)", head, *lines])


def train(
    method: Method,
    clients: Clients,
    *,
    rounds: int = 100,
    seed: int = 0,
    out: Folder | None = None,
    epochs: int = 5,
    batch: int = 16,
    rate: float = 0.01,
    momentum: float = 0.9,
    decay: float = 1e-4,
    augment: Augment = "none",
    crop: int | tuple[int, int] | None = None,
    participation: float | int = 1.0,
    weighting: Literal["uniform", "examples"] = "uniform",
    download: Download = "float32",
    precision: Precision = "float32",
    weights: Folder | None = None,
    blocks: int | Mapping[str, Sequence[str]] | None = None,
    options: Mapping[str, Any] | None = None,
    aggregation: Mapping[str, Any] | None = None,
    privacy: Mapping[str, Any] | None = None,
    engine: Literal["auto", "serial", "pool", "ray"] = "auto",
    workers: int | None = None,
    device: str = "auto",
    on_event: Emit = ignore,
) -> Trained:
    """Train a method over the participating clients.

    Args:
        method: A method with its network, such as ``FedBasis(network="resnet10", bases=4)``.
        clients: Clients with their images, from ``pflbed``.
        rounds: Communication rounds.
        seed: The seed of every random choice; the same seed gives the same bits.
        out: A folder for the run: its log, checkpoints and bases. The same call resumes it. None: nothing is written.
        epochs: Local epochs a round.
        batch: Images of a local step.
        rate: The clients' learning rate.
        momentum: Momentum of the clients' SGD.
        decay: Weight decay of the clients' SGD.
        augment: Random changes of training images: "flip", "shift" by up to two pixels, "flip+shift",
            "padded-crop+flip" (as usual on CIFAR), or "resized-crop+flip" (as usual on ImageNet).
        crop: The size of the network's inputs, the centres of the images; None: the whole images.
        participation: Clients a round, as a share (1.0) or a number (10).
        weighting: Whether clients count the same, or by their number of images.
        download: The precision of the tensors that a client receives: "bfloat16" has half the bytes; "compact" codes
            bases as one reference and differences of 4 bits.
        precision: The arithmetic of training steps: "float32", or "bf16" for GPUs; weights are float32 in both.
        weights: A safetensors file of pretrained weights.
        blocks: The blocks of the network that have coefficients of their own; 1: the whole network is one.
        options: Options of the network, such as ``{"width": 16, "norm": "group"}``.
        aggregation: The table ``[aggregation]`` of a configuration: robust means and clipping.
        privacy: The table ``[privacy]`` of a configuration: differential privacy of the clients.
        engine: Where clients are trained; "auto" uses a pool of processes where there are several cores.
        workers: How many worker processes; None: one per core, or two per GPU.
        device: "auto", "cpu", "cuda", ...
        on_event: Called with every event; ``fedbasis.show_progress()`` draws a bar.

    Returns:
        The trained method.

    Example:
        >>> import fedbasis as fb, pflbed
        >>> clients = pflbed.digits4(clients=1, new=1, limit=24)
        >>> trained = fb.train(fb.FedAvg(network="cnn-small"), clients, rounds=1, epochs=1, engine="serial")
        >>> trained.metrics[0]["clients"]
        4
    """
    if method.network is None:
        raise InputError(
            f"Training needs a network, but {type(method).__name__} has none; give one, such as "
            f"{type(method).__name__}(network='resnet10')."
        )
    kind, classes = type(method), clients.benchmark.table.class_names
    height, width, channels = clients.image_shape
    inputs = (*((height, width) if crop is None else sides(crop)), channels)
    network = Network.of(method.network, len(classes), inputs, _plain(blocks), **dict(options or {}))
    raw = {
        "seed": seed,
        "data": {"source": IN_MEMORY, "resolution": height if height == width else (height, width), "crop": crop},
        "model": {
            "name": network.name, "options": dict(options or {}), "blocks": _plain(blocks),
            "weights": None if weights is None else str(weights),
        },
        "train": {
            "rounds": rounds, "epochs": epochs, "batch": batch, "rate": rate, "momentum": momentum, "decay": decay,
            "augment": augment, "participation": participation, "weighting": weighting, "download": download,
            "precision": precision,
        },
        "machine": {"engine": engine, "workers": workers, "device": device},
        "aggregation": dict(aggregation or {}),
        "privacy": dict(privacy or {}),
        "method": {"name": name_of(kind), **method.config.model_dump(mode="json")},
    }  # fmt: skip
    e = parse(raw, "the arguments of train", kind=kind)
    e = e.model_copy(update={"data": e.data.as_built(clients.benchmark.spec).normalized(clients.normalization)})
    prepared = Prepared(e, clients.benchmark, clients, _identity(clients, network), kind, network)
    bound, run = prepared.method, None if out is None else prepared.run(Path(out))
    bound.network = method.network
    training, machine = prepared.training_run(run), e.machine.machine()
    if run is not None and run.done:
        on_event(RunStarted(run.folder, bound.about.title, rounds, rounds, 0, 0, done=True))
        card, state = artifact.load(run.bases, "bases", trust=True, network=method.network)
        return Trained(bound, state, card, read_lines(run.metrics), run)
    if machine.engine != "ray":
        devices_of(machine)
    torch.set_num_threads(machine.threads)
    training.check()
    metrics: list[Mapping[str, Any]] = []

    def keep(event: Event) -> None:
        if isinstance(event, RoundEnded):
            metrics.append(event.record)

    emit = to_all(keep, on_event)
    with workers_for(bound, machine) as started:
        if run is None:
            emit(RunStarted(None, bound.about.title, 0, rounds, 0, 0))
            emit(WorkersStarted(str(started)))
            simulation = Simulation(started, prepared.training, seed, download=download)
            server = training.train(simulation, emit, prepared.validation())
        else:
            with run.locked():
                emit(RunStarted(run.folder, bound.about.title, len(read_lines(run.metrics)), rounds, 0, 0))
                training.start(e.as_dict())
                states = ClientStates(run.client_states)
                simulation = Simulation(started, prepared.training, seed, states, download=download)
                server = training.train(simulation, emit, prepared.validation())
                clients.benchmark.save(run.folder / "benchmark")
                training.finish(simulation, training=prepared.training_digest)
                metrics = list(read_lines(run.metrics))  # with the rounds before it was resumed
    return Trained(bound, bound.serving.published(server), training.card(), metrics, run)


def personalize(
    trained: Trained,
    images: Images | ArrayLike | Tensor | Folder,
    labels: Sequence[int] | Sequence[str] | ArrayLike | Tensor | None = None,
    *,
    way: str | None = None,
    epochs: int = 20,
    rate: float = 0.005,
    batch: int = 16,
    statistics: Statistics | None = None,
    seed: int = 0,
    keep: Literal["last", "best"] = "last",
    device: str = "auto",
) -> Personal:
    """Personalize a model for a new client, from its own images alone.

    A fifth of the images is held out to measure the accuracy before and after, if there are at least 20.

    Args:
        trained: What ``train`` or ``load`` returned.
        images: The client's images: ``client.train`` of PFLBed, an array [N, H, W, C] in uint8, or a folder
            ``<class>/<image>``.
        labels: The class of every image, as numbers or names; not needed for PFLBed's images and for folders.
        way: How to personalize: "none", "prior", "lp", "ft", "ft-prox", "bn", or one of the method's own
            (``method.ways.own``); "prior+" before it starts from the client's class frequencies.
            None: the method's default, which is "coefficients+classifier" for FedBasis. "auto" chooses by
            cross-validation on the images, and never a way that is worse on them than no personalization.
        epochs: Passes over the images.
        rate: Learning rate of the classifier, or of all weights when fine-tuning; that of coefficients is a multiple
            of it.
        batch: Images of a step.
        statistics: Normalization statistics: "frozen" (the server's), "own" (the client's), "shrunk" (a mean of both);
            None: the way's default.
        seed: Decides the order of the images and which are held out.
        keep: The model of the last epoch, or of the best one on held-out images.
        device: "auto", "cpu", "cuda", ...

    Returns:
        The personal model.

    Example:
        >>> import fedbasis as fb, pflbed
        >>> clients = pflbed.digits4(clients=1, new=1, limit=24)
        >>> trained = fb.train(fb.FedAvg(network="cnn-small"), clients, rounds=1, epochs=1, engine="serial")
        >>> mine = fb.personalize(trained, clients["mnist/n00"].train, way="lp", epochs=1)
        >>> mine.predict(clients["mnist/n00"].test).shape[1]
        10
    """
    card, bad, where = trained.card, list[tuple[str, str]](), "the client's images"
    if isinstance(images, (str, Path)):
        where = str(images)
        data, bad = new_client.read_folder(Path(images), card)
    else:
        data = _examples(images, labels, card)
    plan = Adaptation(epochs=epochs, rate=rate, batch=batch, statistics=statistics)
    served = new_client.serve(
        trained.method, card, trained.state, data, way, plan, seed, keep=keep, bad=bad, bases="the trained method",
        folder=where, device=device_of(device),
    )  # fmt: skip
    model, state = new_client.model_of(served)
    return Personal(trained.method, state, model, served.before, served.after, served.tables)


def evaluate(
    trained: Trained,
    clients: Mapping[str, Client],
    *,
    ways: Sequence[str] | None = None,
    sizes: Sequence[str] | None = None,
    rates: Sequence[float] = (0.005, 0.01, 0.05),
    statistics: Sequence[Statistics] | None = None,
    epochs: int = 20,
    batch: int = 16,
    validate_every: int = 1,
    seed: int = 0,
    engine: Literal["auto", "serial", "pool", "ray"] = "auto",
    workers: int | None = None,
    device: str = "auto",
    on_event: Emit = ignore,
) -> Scores:
    """Personalize for every client, and score the result on its test images.

    The learning rate and the normalization statistics are chosen per way and size by the clients' mean validation
    accuracy, the Best epoch by each client's; test images choose nothing. If ``train`` made a run folder, the results
    are written there for reports. The run of an experiment keeps the results of its own configuration.

    Args:
        trained: What ``train`` or ``load`` returned.
        clients: New clients, such as ``clients.new``.
        ways: How to personalize; None: the method's default ways.
        sizes: Which shares of a client's images to try; None: all that the clients have.
        rates: Learning rates to choose from.
        statistics: Normalization statistics to choose from: "frozen" (the server's), "own" (the client's), "shrunk" (a
            mean of both); None: every way's default.
        epochs: Passes over a client's images.
        batch: Images of a step.
        validate_every: Epochs between two validations.
        seed: Decides the order of the images.
        engine: Where clients are served.
        workers: How many worker processes.
        device: "auto", "cpu", "cuda", ...
        on_event: Called with every event.

    Returns:
        The scores.

    Example:
        >>> import fedbasis as fb, pflbed
        >>> clients = pflbed.digits4(clients=1, new=1, limit=24)
        >>> trained = fb.train(fb.FedAvg(network="cnn-small"), clients, rounds=1, epochs=1, engine="serial")
        >>> scores = fb.evaluate(trained, clients.new, ways=["none"], engine="serial")
        >>> scores["none", "M"].label
        'FedAvg'
    """
    if not clients:
        raise InputError(
            "Clients must be given to be served, but there are none; build the benchmark with new clients."
        )
    method = trained.method
    first = next(iter(clients.values()))
    plan = EvaluationPlan.of(
        method,
        ways=ways,
        sizes=tuple(sizes or first.sizes),
        rates=rates,
        statistics=statistics,
        adaptation=Adaptation(epochs=epochs, rate=rates[0], batch=batch, validate_every=validate_every),
    )
    total = len(plan.jobs(clients))
    served: list[dict[str, Any]] = []

    def count(record: dict[str, Any]) -> None:
        served.append(record)
        on_event(ClientServed(len(served), total, record))

    raw = {"machine": {"engine": engine, "workers": workers, "device": device}, "method": {"name": "fedavg"}}
    with workers_for(method, parse(raw).machine.machine()) as started:
        records = evaluate_clients(started, trained.state, clients, plan, seed, write=count)
    rows = summarize(type(method), records, clients)
    if trained.run is not None and not _of_an_experiment(trained.run):
        with trained.run.locked():
            rewrite_lines(trained.run.evaluation, records)
            write_json(trained.run.results, [{**asdict(row), "delta": row.delta} for row in rows])
    return Scores(rows, records)


def load(folder: Folder, *, trust: bool = False, network: NetworkSource | None = None) -> Trained | Personal:
    """Load what was saved: bases (or a run folder that holds them), or a personal model.

    Args:
        folder: What ``save``, ``train(out=...)``, ``fedbasis train`` or ``fedbasis personalize`` wrote; or
            ``"hf://org/name@revision"`` for such a folder on the Hugging Face Hub (needs huggingface_hub).
        trust: Whether code that the folder names may be run: a network or a method that is not built in.
        network: Your own network, in place of the one that the folder names.

    Returns:
        The trained method, or the personal model.

    Example:
        >>> import fedbasis as fb
        >>> try:
        ...     fb.load("no/such/folder")
        ... except fb.InputError as error:
        ...     print(str(error)[-34:])
        there is no folder no/such/folder.
    """
    if isinstance(folder, str) and folder.startswith(SCHEME):
        folder = downloaded(folder)
    path = new_client.bases_at(Path(folder))
    kind = artifact.read_card(path).kind
    card, state = artifact.load(path, kind, trust, network)
    method = new_client.method_of(card, network)
    if kind == "bases":
        new_client.require_fit(method, state, str(path))
        run = Run(Path(folder)) if path != Path(folder) else None
        return Trained(method, state, card, () if run is None else read_lines(run.metrics), run)
    if new_client.LEARNED in state:
        method.serving.check_learned(state[new_client.LEARNED])
    tables = {name: from_record(table, f"'{name}' in the card of {path}") for name, table in card.learned.items()}
    measured = {key: card.provenance.get(key) for key in ("before", "after")}
    return Personal(method, state, card, measured["before"], measured["after"], tables)


def _of_an_experiment(run: Run) -> bool:
    """Whether a run was made from a configuration, which also says how its new clients are served."""
    if not run.config.is_file():
        return False
    raw = read_json(run.config, "The configuration of a run", MAX_CONFIG)
    return isinstance(raw, dict) and isinstance(raw.get("data"), dict) and raw["data"].get("source") != IN_MEMORY


def _module(network: Network, tensors: Mapping[str, Tensor]) -> nn.Module:
    module = network.build()
    module.load_state_dict({name: tensors.get(name, buffer) for name, buffer in module.state_dict().items()})
    return module.eval()


def _pixels(images: Images | ArrayLike | Tensor) -> NDArray[np.uint8]:
    pixels = images.pixels if isinstance(images, Images) else np.asarray(images)
    if pixels.ndim == 3:
        pixels = pixels[..., None]  # gray
    if pixels.ndim != 4 or pixels.dtype != np.uint8:
        raise InputError(f"Images must be uint8 [N, H, W, C], but they are {pixels.dtype} {pixels.shape}.")
    return np.ascontiguousarray(pixels)


def _examples(images: Any, labels: Any, card: artifact.Card) -> Examples:
    """Check a client's images and labels against the classes and the image shape of the bases."""
    pixels = _pixels(images)
    if labels is None:
        if not isinstance(images, Images):
            raise InputError("Images must come with labels, but none were given; pass them as the third argument.")
        labels = images.labels
    found = np.asarray(labels)
    if found.dtype.kind in "US":
        unknown = sorted(set(found.tolist()) - set(card.classes))
        if unknown:
            raise InputError(
                f"Every label must be a class of the bases ({', '.join(card.classes[:12])}), but '{unknown[0]}' is not."
            )
        found = np.array([card.classes.index(name) for name in found.tolist()])
    if (
        found.dtype.kind not in "iu"
        or found.ndim != 1
        or (found.size and not 0 <= found.min() <= found.max() < len(card.classes))
    ):
        raise InputError(
            f"Labels must be names, or numbers from 0 to {len(card.classes) - 1}, but they are {found!r:.80}."
        )
    shape = (*sides(card.pixels.resolution), card.architecture.channels)
    if pixels.shape[1:] != shape:
        raise InputError(f"Images must have the shape {shape} of those in training, but they have {pixels.shape[1:]}.")
    return Examples(torch.from_numpy(pixels), torch.from_numpy(found.astype(np.int64)))


def _plain(blocks: int | Mapping[str, Sequence[str]] | None) -> int | dict[str, list[str]] | None:
    return {name: list(under) for name, under in blocks.items()} if isinstance(blocks, Mapping) else blocks


def _identity(clients: Clients, network: Network) -> str:
    """Hash what a run's name must depend on besides its settings: who has which images, and weights that were given."""
    benchmark = clients.benchmark
    digest = hashlib.sha256(benchmark.table.digest.encode())
    for part in (benchmark.split, benchmark.client, benchmark.smallest):
        digest.update(np.ascontiguousarray(part).tobytes())
    weights = network.given_weights()
    if weights is not None:
        digest.update(packed({"": weights}).tobytes())
    return digest.hexdigest()
