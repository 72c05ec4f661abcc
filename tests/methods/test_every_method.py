"""One battery over the registry: every method must pass it, and a new one needs no test file of its own."""

import gc
import inspect
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from battery import (
    COLLECTS,
    FIRST,
    HOLDS,
    ROUNDS,
    SENT,
    SLOW,
    VARIANTS,
    Serial,
    clone,
    few_clients,
    finite,
    make,
    run_rounds,
    same,
    serve,
    served,
    trained_few,
    trained_few_states,
)
from fedbasis.engines.base import WorkerContext
from fedbasis.engines.simulation import ClientTask, update
from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation, Context, Sent
from fedbasis.networks.batches import Recipe
from fedbasis.serving.personalize import all_ways, personalize
from fedbasis.tensors.files import read_tensors, write_tensors
from fedbasis.tensors.params import State, nbytes
from fedbasis.training.rounds import UpdateStream
from helpers.accelerator import DEVICE, Accelerator, on_device
from pflbed.errors import InputError
from shapes import shapes_examples

NORMALIZED = [
    (variant, n) for variant in VARIANTS for n in ("batch", "group", "none") if n == "batch" or variant in FIRST
]
"""Other settings of a method than its first ones are tried with one kind of normalization."""


def test_every_method_of_the_registry_is_in_the_battery() -> None:
    assert {name for name, _ in VARIANTS.values()} == set(METHODS)


def test_every_method_says_what_it_is() -> None:
    for name, method in METHODS.items():
        about, ways = method.about, method.ways
        assert about.name == name
        for word in (about.title, about.paper, about.sends, about.keeps, about.new_client):
            assert word
        assert ways.default
        assert set(ways.default) <= set(all_ways(method))
        assert set(ways.rate_free) <= set(ways.own)
        assert set(ways.head_only) <= set(ways.own)
        assert set(ways.suffixes) <= set(all_ways(method))


def test_every_method_has_a_file_of_its_own() -> None:
    places = [Path(inspect.getfile(method)) for method in METHODS.values()]
    assert len(set(places)) == len(places)


SPOOLED = {"fedbasis", "fedem", "ifca", "pca-k", "kmeans-k"}
"""Methods whose warm start collects the updates of a round on the disk, to cluster them."""


def _copies_of_an_update(worker: WorkerContext, server: State, number: int, images: int) -> Counter[str]:
    """Count the copies between the devices that one client's update makes."""
    with Accelerator() as device:
        update(worker, server, ClientTask("a/p00", shapes_examples(images), number, 7, None))
    return device.counts


def _copies_of_serving(worker: WorkerContext, published: State, how: str, images: int) -> Counter[str]:
    method, data = worker.method, shapes_examples(images)
    with Accelerator() as device:
        context = Context(7, "new", worker.model)
        outcome = personalize(method, published, how, data.to(DEVICE), context, Adaptation(epochs=2, rate=0.05))
        context.model.load(outcome.last.tensors)
        method.serving.probabilities(context.model, outcome.last.learned, shapes_examples(12, seed=5).pixels)
    return device.counts


@pytest.mark.parametrize("variant", sorted(FIRST))
def test_no_step_on_another_device_waits_for_it(variant: str, quick: Recipe) -> None:
    """As many copies between the devices for two steps as for five; whatever mixes devices raises."""
    method = make(variant, replace(quick, augment="flip+shift"))
    worker = WorkerContext(method, DEVICE)
    for number, server in enumerate((method.init(7), trained_few_states(variant, quick)[1])):
        few, many = (_copies_of_an_update(worker, server, number, images) for images in (16, 40))
        if variant.startswith("pfedme"):  # the inner steps on a batch have their own order of its images
            assert many.pop("sent") > few.pop("sent")
        assert few == many


@pytest.mark.parametrize("variant", sorted(FIRST))
def test_a_new_client_is_served_on_another_device(variant: str, quick: Recipe) -> None:
    method, server = make(variant, replace(quick, augment="flip+shift")), trained_few(variant, quick)[0]
    worker, published = WorkerContext(method, DEVICE), method.serving.published(server)
    generic = all_ways(method)[: -len(method.ways.own) * 3] if variant in ("fedavg", "fedbasis") else ()
    for how in (*generic, *method.ways.own):
        few, many = (_copies_of_serving(worker, published, how, images) for images in (16, 40))
        assert few == many, how


@pytest.mark.parametrize("variant", sorted(FIRST))
def test_updates_are_averaged_where_they_are(variant: str, quick: Recipe) -> None:
    """A server's state may be on any device, except where updates are collected on the disk first."""
    method, (_, _, log) = make(variant, quick), trained_few(variant, quick)
    for number, server in enumerate([method.init(7), *trained_few_states(variant, quick)][:ROUNDS]):
        if method.about.name == "pfedhn" or (method.about.name in SPOOLED and number == 0):
            continue
        with Accelerator():
            sent = [(client, replace(one, tensors=on_device(one.tensors))) for client, one in log[number].items()]
            after = method.aggregate(on_device(server), iter(sent), 7)
            assert DEVICE in {tensor.device.type for named in after.values() for tensor in named.values()}


@pytest.mark.parametrize("variant", VARIANTS)
class TestEveryMethod:
    def test_lowers_the_loss(self, variant: str, quick: Recipe, recipe: Recipe) -> None:
        _, _, log = trained_few(variant, recipe, rounds=8) if variant in SLOW else trained_few(variant, quick)
        losses = [sum(s.numbers["loss"] for s in round_.values()) for round_ in log]
        assert losses[-1] < losses[0]

    def test_leaves_random_state_inputs_and_skeleton_alone(self, variant: str, quick: Recipe) -> None:
        method, data = make(variant, quick), few_clients(1)
        torch.manual_seed(3)
        before = torch.random.get_rng_state()
        server = method.init(7)
        copy, pixels = clone(server), {k: v.pixels.clone() for k, v in data.items()}
        model = method.task.network.workspace()
        kept: State | None = None
        first = next(iter(data))
        for number in range(2):
            received = method.broadcast(server, first)
            copies = clone(received), None if kept is None else clone(kept)
            sent, after = method.client_update(received, kept, data[first], Context(7, first, model, number))
            assert same(received, copies[0])
            assert kept is None or (copies[1] is not None and same(kept, copies[1]))
            held = clone(sent.tensors)
            model.load(method.task.initial(1))  # what was sent must not be a view into the working model
            assert same(sent.tensors, held)
            kept = after
            assert all(p.requires_grad for p in model.module.parameters())
        assert torch.equal(before, torch.random.get_rng_state())
        assert same(server, copy)
        assert all(torch.equal(pixels[k], data[k].pixels) for k in data)

    def test_a_client_does_not_feel_who_came_before_it(self, variant: str, quick: Recipe) -> None:
        """The shared working model must not leak weights, momentum or normalization statistics between clients."""
        method, data = make(variant, quick), few_clients(2)
        for server in (method.init(7), trained_few(variant, quick)[0]):
            model = method.task.network.workspace()
            first, second = data
            mine = method.broadcast(server, second)
            method.client_update(method.broadcast(server, first), None, data[first], Context(7, first, model, 0))
            after, _ = method.client_update(mine, None, data[second], Context(7, second, model, 0))
            alone, _ = method.client_update(
                mine, None, data[second], Context(7, second, method.task.network.workspace(), 0)
            )
            assert same(after.tensors, alone.tensors)

    def test_repeated_and_resumed_from_the_disk_a_run_gives_the_same_bits(
        self, variant: str, quick: Recipe, tmp_path: Path
    ) -> None:
        method, data = make(variant, quick), few_clients()
        whole, before, _ = trained_few(variant, quick)
        half, engine, _ = run_rounds(method, data, rounds=range(2))
        assert same(half, trained_few_states(variant, quick)[1])
        write_tensors(tmp_path / "s.safetensors", half)
        loaded, _ = read_tensors(tmp_path / "s.safetensors")
        assert same(half, loaded)
        resumed = Serial(method, data, seed=7)
        for number, (client, kept) in enumerate(engine.states.items()):
            write_tensors(tmp_path / f"{number}.safetensors", kept)
            resumed.states[client], _ = read_tensors(tmp_path / f"{number}.safetensors")
            assert same(kept, resumed.states[client])
        server = loaded
        for number in range(2, ROUNDS):
            server = method.aggregate(server, resumed.map(server, list(data), number), 7)
        assert same(whole, server)
        assert set(before.states) == set(resumed.states)
        assert all(same(before.states[name], resumed.states[name]) for name in before.states)

    def test_sends_what_its_paper_says_and_nothing_else(self, variant: str, quick: Recipe) -> None:
        method = make(variant, quick)
        server, _, log = trained_few(variant, quick)
        for number, round_ in enumerate(log):
            expected = SENT[variant](variant, method.task, number)
            for sent in round_.values():
                assert {group: set(tensors) for group, tensors in sent.tensors.items()} == expected
                assert set(sent.numbers) >= {"loss", "examples"}
                whole = {g: t for g, t in sent.tensors.items() if set(t) <= set(method.task.layout.shapes)}
                for tensors in whole.values():  # a model's tensors have the network's shapes, no more bytes
                    assert all(t.shape == method.task.layout.shapes[name] for name, t in tensors.items())
                rest = nbytes({g: t for g, t in sent.tensors.items() if g not in whole})
                assert rest <= 0.05 * nbytes({"m": method.task.initial(0)}) + 1024
        for state in (server, *(sent.tensors for round_ in log for sent in round_.values())):
            assert not any("num_batches_tracked" in name for tensors in state.values() for name in tensors)

    def test_a_client_that_sends_nan_is_refused_and_the_round_goes_on(self, variant: str, quick: Recipe) -> None:
        method = make(variant, quick)
        server, updates = trained_few_states(variant, quick)[1], list(trained_few(variant, quick)[2][2].items())
        broken = [(name, _poisoned(sent) if i == 1 else sent) for i, (name, sent) in enumerate(updates)]
        if not any(t.is_floating_point() for tensors in broken[1][1].tensors.values() for t in tensors.values()):
            return  # nothing is sent that could be wrong
        stream = UpdateStream(iter(broken), len(broken), 3)
        got = method.aggregate(server, stream, 7)
        assert stream.refused == [updates[1][0]]
        assert same(got, method.aggregate(server, iter([u for i, u in enumerate(updates) if i != 1]), 7))
        assert finite(got)

    def test_clients_that_are_never_sampled_do_no_harm(self, variant: str, quick: Recipe) -> None:
        """And one that comes back after a round without it finds what it left."""
        method, data = make(variant, quick), few_clients(4)
        names = list(data)
        server, engine, _ = run_rounds(method, data, sample=lambda number: names[number % 2 : 2 + number % 2])
        assert finite(server)
        assert set(engine.states) <= set(names[:3])
        assert finite(method.broadcast(server, names[3]))

    def test_awkward_clients(self, variant: str, quick: Recipe) -> None:
        """One sample, one class, a last batch of one, a single batch; in training and as a new client."""
        method = make(variant, quick)
        odd = {f"a/{n}": shapes_examples(n, classes=classes) for n, classes in ((1, 1), (2, 1), (9, 3), (8, 3))}
        server, _, _ = run_rounds(method, {**few_clients(1), **odd}, rounds=range(2))
        assert finite(server)
        context = Context(7, "new", method.task.network.workspace())
        for how in method.ways.default:
            for name in ("a/1", "a/2"):
                plan = Adaptation(epochs=1, rate=0.01)
                fitted = personalize(method, method.serving.published(server), how, odd[name], context, plan)
                assert finite({"": fitted.last.tensors})

    def test_weighting_by_examples_trains(self, variant: str, quick: Recipe) -> None:
        """The first round's updates do not depend on it; the second's follow from another server."""
        method, data = make(variant, quick, weighting="examples"), few_clients()
        first = method.aggregate(method.init(7), iter(trained_few(variant, quick)[2][0].items()), 7)
        server, _, _ = run_rounds(method, data, first, rounds=range(1, 2))
        assert finite(server)


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant not in HOLDS])
def test_aggregates_a_stream_with_one_update_in_memory(variant: str, quick: Recipe) -> None:
    method, data = make(variant, quick, rounds=1 if variant in COLLECTS else ROUNDS), few_clients()
    server = method.init(7)
    engine = Serial(method, data, seed=7)
    alive: list[weakref.ref[torch.Tensor]] = []

    def stream() -> Iterator[tuple[str, Sent]]:
        for client, sent in engine.map(server, list(data), 0):
            alive.extend(weakref.ref(t) for tensors in sent.tensors.values() for t in tensors.values())
            count = sum(len(tensors) for tensors in sent.tensors.values())
            yield client, sent
            del sent
            left = [t for ref in alive[:-count] if (t := ref()) is not None]
            if left:  # perhaps only a cycle holds it; looking for cycles is slow
                left.clear()
                gc.collect()
                left = [t for ref in alive[:-count] if (t := ref()) is not None]
            assert not left, "an update is still in memory when the next one comes"

    method.aggregate(server, stream(), 7)


@pytest.mark.parametrize(("variant", "norm"), NORMALIZED)
def test_serves_a_new_client_in_every_way(variant: str, quick: Recipe, norm: str) -> None:
    """Only what the server publishes and the client's own data are handed over."""
    rounds = ROUNDS if norm == "batch" else 2
    method = make(variant, quick, norm, rounds)
    server, _, _ = trained_few(variant, quick, norm, rounds)
    published = method.serving.published(server)
    copy = clone(published)
    expected = method.task.layout.shapes
    assert {name: t.shape for name, t in method.model(published).items()} == expected
    for how in all_ways(method):
        if how == "bn" and norm == "none":
            with pytest.raises(InputError, match="this network has none"):
                served(variant, norm, how, rounds)
            continue
        outcome, chances = served(variant, norm, how, rounds)
        assert {name: t.shape for name, t in outcome.last.tensors.items()} == expected
        assert finite({"": outcome.last.tensors, "learned": outcome.last.learned})
        assert chances.shape == (12, 3)
        torch.testing.assert_close(chances.sum(1), torch.ones(12), rtol=1e-4, atol=1e-4)
        if norm == "batch":
            again, _ = serve(method, published, how)
            assert same({"": outcome.last.tensors}, {"": again.last.tensors})
    assert same(published, copy)


def _poisoned(sent: Sent) -> Sent:
    tensors = clone(sent.tensors)
    for group in tensors.values():
        for tensor in group.values():
            if tensor.is_floating_point() and tensor.numel():
                tensor.view(-1)[0] = float("nan")
                return Sent(tensors, sent.numbers)
    return Sent(tensors, sent.numbers)
