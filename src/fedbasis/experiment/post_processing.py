"""FedBasis as a post-processing step: bases from the local models of any finished training, without training it again.

Every participating client trains the final model for one more round, as it did before. The server clusters these local
models into bases; their mean is the major basis. It is the last round of FedBasis' own warm start, so after FedAvg the
bases are those that FedBasis itself would begin with.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from fedbasis.engines.choice import devices_of, workers_for
from fedbasis.engines.simulation import Simulation
from fedbasis.experiment import prepare
from fedbasis.experiment.api import IN_MEMORY, MAX_CONFIG, Trained
from fedbasis.experiment.config import parse
from fedbasis.methods.base import CLOCK, MODEL, Task
from fedbasis.methods.fedbasis import FedBasis
from fedbasis.methods.fedbasis.config import FedBasisConfig
from fedbasis.networks.batches import Recipe
from fedbasis.networks.models import NetworkSource, sides
from fedbasis.serving import artifact
from fedbasis.tensors.params import State
from fedbasis.training.clipping import clip_updates
from fedbasis.training.events import Emit, WorkersStarted, ignore
from fedbasis.training.rounds import UpdateStream
from fedbasis.training.runs import Run
from pflbed import Clients, InputError
from pflbed.foreign import read_json


def bases_from(
    trained: Trained,
    clients: Clients,
    *,
    bases: int = 4,
    major: bool = True,
    cluster: Literal["network", "block"] = "block",
    epochs: int | None = None,
    batch: int | None = None,
    rate: float | None = None,
    seed: int | None = None,
    engine: Literal["auto", "serial", "pool", "ray"] = "auto",
    workers: int | None = None,
    device: str = "auto",
    on_event: Emit = ignore,
) -> Trained:
    """Make bases of a finished training of any method: one more local round, whose models are clustered.

    What ``train`` returned knows how it was trained; of what ``load`` returned, ``epochs``, ``batch`` and ``rate`` are
    5, 16 and 0.01 if they are not given.

    Args:
        trained: What ``train`` or ``load`` returned, of any method.
        clients: The clients with their images; all participating ones train.
        bases: The number of bases besides the major one.
        major: Whether the mean of the local models is a major basis, with weight 1/2 in every combination.
        cluster: Whether models are clustered as a whole, or block by block.
        epochs: Local epochs; None: as in training.
        batch: Images of a local step; None: as in training.
        rate: The learning rate; None: as in training.
        seed: The seed; None: that of the training.
        engine: Where clients are trained.
        workers: How many worker processes.
        device: "auto", "cpu", "cuda", ...
        on_event: Called with every event.

    Returns:
        A trained FedBasis, to ``personalize`` or ``save``.

    Example:
        >>> import fedbasis as fb, pflbed
        >>> clients = pflbed.digits4(clients=1, new=1, limit=24)
        >>> trained = fb.train(fb.FedAvg(network="cnn-small"), clients, rounds=1, epochs=1, engine="serial")
        >>> fb.bases_from(trained, clients, bases=2, engine="serial").tables()[0].title
        '2 bases and a major basis: mean pairwise cosine'
    """
    _require_same_data(trained, clients)
    task, provenance = trained.method.task, trained.card.provenance
    done = int(provenance.get("rounds", 1))
    seed = int(provenance.get("seed", 0)) if seed is None else seed
    method = _method(task, _recipe(task.recipe, epochs, batch, rate), done, bases, major, cluster)
    method.network = trained.method.network
    names = clients.benchmark.participating
    method.updates.require_clients(len(names))
    server: State = {
        MODEL: trained.method.model(trained.state),
        CLOCK: {"round": torch.tensor(method.warm_rounds - 1)},  # the round that ends the warm start is next
    }
    raw = {"machine": {"engine": engine, "workers": workers, "device": device}, "method": {"name": "fedavg"}}
    machine = parse(raw).machine.machine()
    if machine.engine != "ray":
        devices_of(machine)
    torch.set_num_threads(machine.threads)
    with workers_for(method, machine) as started:
        on_event(WorkersStarted(str(started)))
        simulation = Simulation(started, {name: clients[name].train for name in names}, seed)
        stream = UpdateStream(simulation.map(server, names, done), len(names), done + 1, on_event)
        state = method.aggregate(server, clip_updates(method, server, stream), seed)
        simulation.states.remove()
    source = {"from_method": trained.card.method, **({"from": trained.card.sha256} if trained.card.sha256 else {})}
    card = trained.card.model_copy(
        update={
            "method": method.about.name,
            "settings": method.config.model_dump(mode="json"),
            "provenance": {**provenance, "rounds": done + 1, "seed": seed, "clients": len(names), **source},
            "sha256": "",
        }
    )
    return Trained(method, state, card)


def bases_of_run(
    folder: Path, data: str | None = None, *, trust: bool = False, network: NetworkSource | None = None, **options: Any
) -> Trained:
    """Make bases of a run folder, with its own split into clients and its own local training.

    Args:
        folder: A finished run.
        data: Where its images are; None: where they were.
        trust: Whether code that the run names may be run.
        network: Your own network, in place of the one that the run names.
        **options: As ``bases_from`` has them.
    """
    run = Run(folder)
    if not run.done:
        raise InputError(f"Bases are made of a finished run, but {folder} is none; finish it with 'fedbasis train'.")
    raw = read_json(run.config, "The configuration of a run", MAX_CONFIG)
    if data is not None and isinstance(raw, dict) and isinstance(raw.get("data"), dict):
        raw["data"]["source"] = data
    experiment = parse(raw, str(run.config), trust=trust)
    if experiment.data.source == IN_MEMORY:
        raise InputError(
            f"The images of the run {folder} must be on the disk, but it was trained from memory; give a benchmark "
            "with --data, or use fedbasis.bases_from in Python."
        )
    prepared = prepare(experiment)
    card, state = artifact.load(run.bases, "bases", trust, network)
    trained = Trained(prepared.method, state, card, (), run)
    if not isinstance(prepared.clients, Clients):  # pragma: no cover  (prepare returns no others)
        raise TypeError(type(prepared.clients))
    return bases_from(trained, prepared.clients, **options)


def _require_same_data(trained: Trained, clients: Clients) -> None:
    card = trained.card
    if "privacy" in card.provenance:
        raise InputError(
            "Bases are made of single clients' models, which no noise protects, but this training had [privacy]; train "
            "without it."
        )
    shape = (*sides(card.pixels.resolution), card.architecture.channels)
    if list(clients.benchmark.table.class_names) != list(card.classes) or clients.image_shape != shape:
        raise InputError(
            f"The clients must have the {len(card.classes)} classes and the image shape {shape} of the training, but "
            f"they have {len(clients.benchmark.table.class_names)} classes and the shape {clients.image_shape}."
        )


def _recipe(recipe: Recipe, epochs: int | None, batch: int | None, rate: float | None) -> Recipe:
    given = {"epochs": epochs, "batch": batch, "rate": rate}
    for name, value in given.items():
        if value is not None and value <= 0:
            raise InputError(f"'{name}' must be above 0, but it is {value}.")
    return replace(recipe, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _method(task: Task, recipe: Recipe, done: int, bases: int, major: bool, cluster: str) -> FedBasis:
    """Bind FedBasis to the network of a training."""
    config = FedBasis(bases=bases, major=major, cluster=cluster).config  # checks the settings
    assert isinstance(config, FedBasisConfig)
    averaging, weighting = task.averaging, task.weighting
    return FedBasis.build(config, Task(task.network, recipe, done + 2, weighting=weighting, averaging=averaging))
