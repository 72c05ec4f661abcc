"""The benchmarks compare like with like: the loop by hand computes what fedbasis does; tables find their place."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbasis.engines.in_process import InProcess
from fedbasis.engines.simulation import Simulation
from fedbasis.methods import METHODS
from fedbasis.methods.base import Task
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_loop_by_hand_is_fedavg(channels_last: bool) -> None:
    import plain

    network = Network("cnn", 3, 8)
    images = plain.shared_out(*plain.random_images(12, 8, 3), clients=2)
    recipe = Recipe(
        preprocessing=Preprocessing(8), epochs=1, batch=6, rate=plain.RATE, momentum=plain.MOMENTUM, decay=plain.DECAY
    )
    method = METHODS["fedavg"].build(None, Task(network, recipe, rounds=1))
    server = method.init(0)
    engine = Simulation(InProcess(method), images, 0)
    variant = plain.Variant(channels_last=channels_last, fused=channels_last)
    ready = [plain.channels_last(*plain.floats(i)) if channels_last else plain.floats(i) for i in images.values()]
    model, _ = plain.prepared(network.build(), variant)
    state = server["model"]
    for number in range(3):  # a batch holds all images of a client, so their order does not matter
        server = method.aggregate(server, engine.map(server, list(images), number), 0)
        state = plain.fedavg_round(model, state, ready, 6, variant)
    start = method.init(0)["model"]
    for name, tensor in state.items():
        moved = (tensor - start[name]).norm()
        assert moved > 0
        assert (tensor - server["model"][name]).norm() < 1e-4 * moved


def test_pixels_are_normalized_alike() -> None:
    import plain

    images = plain.shared_out(*plain.random_images(4, 8), clients=1)["client-0"]
    theirs, labels = plain.floats(images)
    assert torch.allclose(Preprocessing(8)(torch.from_numpy(images.pixels)), theirs, atol=1e-5)
    assert np.array_equal(labels.numpy(), images.labels)


def test_an_attack_changes_what_attackers_send_and_nothing_else() -> None:
    import plain
    import robust

    images = plain.shared_out(*plain.random_images(12, 8, 3), clients=2)
    method = METHODS["fedavg"].build(
        None, Task(Network("cnn", 3, 8), Recipe(preprocessing=Preprocessing(8), epochs=1, batch=6), rounds=1)
    )
    server, honest = method.init(0), Simulation(InProcess(method), images, 0)
    first, second = images
    attacked = robust.Attacked(honest, frozenset({second}), 0)
    for (name, sent), (_, true) in zip(
        attacked.map(server, [first, second], 0), honest.map(server, [first, second], 0), strict=True
    ):
        same = [torch.equal(t, true.tensors["model"][n]) for n, t in sent.tensors["model"].items()]
        assert all(same) if name == first else not any(same)


def test_every_benchmark_has_a_place_on_the_page() -> None:
    import all as runner
    from measure import put

    page = runner.PAGE.read_text(encoding="utf-8")
    for name in runner.NAMES:
        assert (BENCHMARKS / f"{name}.py").is_file()
        changed = put(page, name, "| a table |")
        assert f"<!-- {name} -->\n| a table |\n<!-- end {name} -->" in changed
        assert changed.partition(f"<!-- {name} -->")[0] == page.partition(f"<!-- {name} -->")[0]
        assert changed.partition(f"<!-- end {name} -->")[2] == page.partition(f"<!-- end {name} -->")[2]
    with pytest.raises(ValueError, match="nothing"):
        put(page, "nothing", "")
