"""The app of a node: it updates, or personalizes, a client whose images lie here and stay here.

Nothing but what the method sends (``Sent``) leaves in a reply, beside an echo of the question. What the method keeps
and what a new client learns are written to the node's own folder.
"""

import functools
import hashlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType

import torch
from flwr.app import Context as FlowerContext
from flwr.app import Message
from flwr.clientapp import ClientApp

from fedbasis.flower.expected import read_block
from fedbasis.flower.node import Node
from fedbasis.flower.payload import Parcel, block_of, loaded, restored, unloaded
from fedbasis.flower.settings import Plan, read_plans
from fedbasis.methods.base import Adaptation, Context
from fedbasis.networks.train import Examples
from fedbasis.serving import artifact
from fedbasis.serving.new_client import serve, write_model
from fedbasis.tensors.params import State
from pflbed.errors import InputError

ECHO = ("experiment", "run", "client", "round", "digest")
Job = Callable[[Node, Plan, Parcel], Parcel]


def client_app(app: Path) -> ClientApp:
    """Make the app of a node from the folder with its settings."""
    made = ClientApp()

    @made.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: FlowerContext) -> Message:
        return _answers(app, update, message, context)

    @made.query("personalize")  # type: ignore[untyped-decorator]
    def personalize(message: Message, context: FlowerContext) -> Message:
        return _answers(app, fit, message, context)

    @made.query("who")  # type: ignore[untyped-decorator]
    def who(message: Message, context: FlowerContext) -> Message:
        return Message(loaded([Parcel({"name": Node.configured(context.node_config).name})]), reply_to=message)

    return made


def _answers(app: Path, job: Job, message: Message, context: FlowerContext) -> Message:
    with _until(float(message.metadata.created_at) + float(message.metadata.ttl)):
        plans = {plan.name: plan for plan in read_plans(app)}
        node = Node.configured(context.node_config)
        answers = [answer(node, plans, job, parcel) for parcel in unloaded(message.content)]
    return Message(loaded(answers), reply_to=message)


@contextmanager
def _until(end: float) -> Iterator[None]:
    """Give up when nobody waits any more: Flower gives a node the next message only after this one."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the round went on without this node")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, max(0.01, end - time.time()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def answer(node: Node, plans: Mapping[str, Plan], job: Job, parcel: Parcel) -> Parcel:
    """Do one job; what is wrong with it is told to the server in a sentence."""
    echo = {key: parcel.words[key] for key in ECHO if key in parcel.words}
    try:
        if parcel.word("client") != node.name:
            raise InputError(f"This node is {node.name}, but it was asked as {parcel.word('client')}.")
        if hashlib.sha256(parcel.block.data).hexdigest() != parcel.word("digest"):
            raise InputError("What the server sent was changed on its way.")
        if parcel.word("experiment") not in plans:
            raise InputError(f"This app has no experiment {parcel.word('experiment')}.")
        done = job(node, plans[parcel.word("experiment")], parcel)
    except InputError as error:
        return Parcel({**echo, "error": str(error)})
    return Parcel({**echo, **done.words}, done.numbers, done.block)


def update(node: Node, plan: Plan, parcel: Parcel) -> Parcel:
    """Carry out a client's part of a round."""
    torch.set_num_threads(plan.experiment.machine.threads)
    method, round = plan.method(), parcel.number("round")
    version, checkpoint = parcel.number("version"), parcel.number("checkpoint")
    if not 0 <= checkpoint <= round or not 0 <= version <= round:
        raise InputError(f"Round {round} cannot follow version {version} and checkpoint {checkpoint}.")
    kept = node.kept(parcel.word("run"), version, checkpoint)
    images = _images(node, plan.federation.classes, plan.experiment.data.resolution)
    context = Context(parcel.number("seed"), node.name, method.task.network.workspace(), round)
    sent, after = method.client_update(_received(parcel), kept.read(node.name, version), images, context)
    kept.write(node.name, round, after)
    return Parcel({}, sent.numbers, block_of(sent.tensors))


def fit(node: Node, plan: Plan, parcel: Parcel) -> Parcel:
    """Fit a personal model to this node's images; it stays here, and two accuracies are all that leaves."""
    torch.set_num_threads(plan.experiment.machine.threads)
    card = artifact.Card.model_validate_json(parcel.word("card"))
    if list(card.classes) != list(plan.federation.classes) or card.method != plan.experiment.method_name:
        raise InputError("The bases that the server sent are not of this federation's classes and method.")
    out = node.place(parcel.word("run")) / "model"
    p = plan.experiment.personalize
    adaptation = Adaptation(p.epochs, p.rates[0], p.decay, p.momentum, p.batch, p.prox)
    images = _images(node, plan.federation.classes, plan.experiment.data.resolution)
    served = serve(card, _received(parcel), images, None, adaptation, parcel.number("seed"))
    write_model(served, out, replace=True)
    told = {key: value for key, value in asdict(served).items() if key in ("before", "after", "images", "held_out")}
    return Parcel({"how": served.how}, told)


@functools.lru_cache(maxsize=2)
def _images(node: Node, classes: tuple[str, ...], resolution: int) -> Examples:
    """Read a node's images once for all jobs of a message."""
    return node.images(classes, resolution)


def _received(parcel: Parcel) -> State:
    return restored(read_block(parcel.block))
