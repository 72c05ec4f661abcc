"""The worked example of CONTRIBUTING.md is a method that passes the battery, and the docs list what the classes say."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from battery import SENT, VARIANTS, Serial, clients, make
from fedbasis.cli.display import methods_markdown
from fedbasis.methods import METHODS, find_method, name_of
from fedbasis.networks.batches import Recipe
from methods import test_every_method

ROOT = Path(__file__).parents[1]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Run the example's text as a module of its own and register its method."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"<!-- example: begin -->\n```python\n(.*?)```\n<!-- example: end -->", text, re.DOTALL)
    module = ModuleType("example_of_contributing")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, "CONTRIBUTING.md", "exec"), module.__dict__)
    monkeypatch.setitem(METHODS, "fedavgm", module.FedAvgM)
    monkeypatch.setitem(VARIANTS, "fedavgm", ("fedavgm", {"momentum": 0.5}))
    monkeypatch.setitem(VARIANTS, "fedavgm-still", ("fedavgm", {"momentum": 0.0}))
    monkeypatch.setitem(SENT, "fedavgm", lambda _, task, __: {"model": set(task.layout.shapes)})
    return module


@pytest.mark.usefixtures("example")
def test_the_example_passes_the_battery(quick: Recipe, recipe: Recipe, tmp_path: Path) -> None:
    battery, name = (
        test_every_method.TestEveryMethod(),
        "fedavgm",
    )  # by its module, or pytest collects it here too
    battery.test_lowers_the_loss(name, quick, recipe)
    battery.test_leaves_random_state_inputs_and_skeleton_alone(name, quick)
    battery.test_a_client_does_not_feel_who_came_before_it(name, quick)
    battery.test_repeated_and_resumed_from_the_disk_a_run_gives_the_same_bits(name, quick, tmp_path)
    battery.test_sends_what_its_paper_says_and_nothing_else(name, quick)
    test_every_method.test_aggregates_a_stream_with_one_update_in_memory(name, quick)
    battery.test_a_client_that_sends_nan_is_refused_and_the_round_goes_on(name, quick)
    battery.test_clients_that_are_never_sampled_do_no_harm(name, quick)
    test_every_method.test_serves_a_new_client_in_every_way(name, quick, "batch")
    battery.test_awkward_clients(name, quick)


@pytest.mark.usefixtures("example")
def test_the_example_without_momentum_is_fedavg(quick: Recipe) -> None:
    """Round by round from the same state: over several rounds a rounding may flip a ReLU, and then models part."""
    still, average, moving = (make(name, quick) for name in ("fedavgm-still", "fedavg", "fedavgm"))
    server, data = average.init(7), clients()
    servers, engine = {"still": still.init(7), "moving": moving.init(7)}, Serial(average, data, seed=7)
    for number in range(3):
        updates = list(engine.map(server, list(data), number))
        after = average.aggregate(server, iter(updates), 7)
        servers = {
            "still": still.aggregate({**servers["still"], **server}, iter(updates), 7),
            "moving": moving.aggregate({**servers["moving"], **server}, iter(updates), 7),
        }
        for name, tensor in after["model"].items():
            assert servers["still"]["model"][name].sub(tensor).abs().max() < 1e-5
        alike = [  # statistics are averaged with and without momentum
            servers["moving"]["model"][name].sub(after["model"][name]).abs().max() < 1e-5
            for name in average.task.parameters
        ]
        assert all(alike) if number == 0 else not any(alike)  # there is no movement before the first
        server = after


def test_the_example_says_what_it_is(example: ModuleType) -> None:
    about = example.FedAvgM.about
    assert (about.name, about.title, about.paper) == ("fedavgm", "FedAvgM", "Hsu et al. 2019")
    assert find_method(name_of(example.FedAvgM)) is example.FedAvgM


def test_the_docs_list_the_methods_as_their_classes_do() -> None:
    assert methods_markdown() in (ROOT / "docs" / "explanation" / "methods.md").read_text(encoding="utf-8")
