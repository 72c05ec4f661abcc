"""The app of a node: it trains, or personalizes, a model on images that never leave the node.

A reply has the method's update (``Sent``) and some fields of the request, and nothing else. The client state and
personal models are written to the node's own folder.
"""

import functools
import hashlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
from flwr.app import Context as FlowerContext
from flwr.app import Message
from flwr.clientapp import ClientApp

from fedbasis.engines.choice import device_of
from fedbasis.engines.download import as_received
from fedbasis.flower.expected import read_block
from fedbasis.flower.node import Node
from fedbasis.flower.payload import Payload, from_record, pack_state, to_record
from fedbasis.flower.settings import FederatedRun, read_plans
from fedbasis.methods import name_of
from fedbasis.methods.base import Context, Method
from fedbasis.networks.inputs import Examples
from fedbasis.serving import artifact
from fedbasis.serving.new_client import serve, write_model
from fedbasis.tensors.params import State
from pflbed.errors import InputError
from pflbed.images import Resolution

ECHO = ("experiment", "run", "client", "round", "digest")
Handler = Callable[[Node, FederatedRun, Payload], Payload]


def client_app(app: Path) -> ClientApp:
    """Return the Flower app of a node, from the folder with its settings."""
    client = ClientApp()

    @client.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: FlowerContext) -> Message:
        return _answers(app, update, message, context)

    @client.query("personalize")  # type: ignore[untyped-decorator]
    def personalize(message: Message, context: FlowerContext) -> Message:
        return _answers(app, fit, message, context)

    @client.query("who")  # type: ignore[untyped-decorator]
    def who(message: Message, context: FlowerContext) -> Message:
        return Message(to_record([Payload({"name": Node.configured(context.node_config).name})]), reply_to=message)

    return client


def _answers(app: Path, job: Handler, message: Message, context: FlowerContext) -> Message:
    with _until(float(message.metadata.created_at) + float(message.metadata.ttl)):
        plans = {plan.name: plan for plan in read_plans(app)}
        node = Node.configured(context.node_config)
        answers = [answer(node, plans, job, payload) for payload in from_record(message.content)]
    return Message(to_record(answers), reply_to=message)


@contextmanager
def _until(end: float) -> Iterator[None]:
    """Raise a ``TimeoutError`` at the deadline: Flower sends a node the next message only after this one."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the round continued without this node")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, max(0.01, end - time.time()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def answer(node: Node, plans: Mapping[str, FederatedRun], job: Handler, payload: Payload) -> Payload:
    """Handle one request; the text of an ``InputError`` is sent to the server.

    Args:
        node: This node.
        plans: The experiments of the app, by name.
        job: ``update`` or ``fit``.
        payload: The request.
    """
    echo = {key: payload.words[key] for key in ECHO if key in payload.words}
    try:
        if payload.word("client") != node.name:
            raise InputError(f"This node is {node.name}, but the request is for {payload.word('client')}.")
        if hashlib.sha256(payload.block.data).hexdigest() != payload.word("digest"):
            raise InputError("The tensors of the server must have their digest, but they were changed on the way.")
        if payload.word("experiment") not in plans:
            raise InputError(f"This app has no experiment {payload.word('experiment')}.")
        done = job(node, plans[payload.word("experiment")], payload)
    except InputError as error:
        return Payload({**echo, "error": str(error)})
    return Payload({**echo, **done.words}, done.numbers, done.block)


def update(node: Node, plan: FederatedRun, payload: Payload) -> Payload:
    """Train on this node's images for one round, and return the update."""
    torch.set_num_threads(plan.experiment.machine.threads)
    method, round = plan.method(), payload.number("round")
    version, checkpoint = payload.number("version"), payload.number("checkpoint")
    if not 0 <= checkpoint <= round or not 0 <= version <= round:
        raise InputError(f"Round {round} cannot follow version {version} and checkpoint {checkpoint}.")
    states = node.states(payload.word("run"), version, checkpoint)
    device = device_of(plan.experiment.machine.device)
    images = _images(node, plan).to(device)
    context = Context(payload.number("seed"), node.name, method.task.network.workspace(device), round)
    with context.random_layers():
        sent, after = method.client_update(_received(method, payload), states.read(node.name, version), images, context)
    states.write(node.name, round, after)
    return Payload({}, sent.numbers, pack_state(sent.tensors))


def fit(node: Node, plan: FederatedRun, payload: Payload) -> Payload:
    """Personalize a model on this node's images; the model stays here, accuracies and image counts are returned."""
    torch.set_num_threads(plan.experiment.machine.threads)
    card = artifact.Card.model_validate_json(payload.word("card"))
    method = plan.method()
    if list(card.classes) != list(plan.federation.classes) or card.method != name_of(type(method)):
        raise InputError("The bases that the server sent are not of this federation's classes and method.")
    out = node.place(payload.word("run")) / "model"
    adaptation = plan.experiment.personalize.adaptation()
    images, device = _images(node, plan), device_of(plan.experiment.machine.device)
    served = serve(
        method, card, _received(method, payload), images, None, adaptation, payload.number("seed"), device=device
    )
    write_model(served, out, overwrite=True)
    numbers = {key: float(getattr(served, key)) for key in ("before", "after", "images", "held_out")}
    return Payload({"how": served.way}, numbers)


@functools.lru_cache(maxsize=2)
def _decoded(node: Node, classes: tuple[str, ...], resolution: Resolution, channels: int) -> Examples:
    """Read a node's images once for all requests of a message."""
    return node.images(classes, resolution, channels)


def _images(node: Node, plan: FederatedRun) -> Examples:
    data = plan.experiment.data
    return _decoded(node, plan.federation.classes, data.resolution, data.channels)


def _received(method: Method, payload: Payload) -> State:
    return as_received(read_block(payload.block), method.task.layout.shapes)
