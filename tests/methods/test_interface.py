"""The interface of a method is six functions, and a few documented things beside them."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from battery import FIRST, make
from fedbasis.methods import METHODS
from fedbasis.methods.base import Insight, Method, Serving, Updates
from fedbasis.networks.batches import Recipe
from pflbed.errors import InputError

SIX = {"init", "broadcast", "client_update", "aggregate", "model", "adapt"}
HELPERS = {"build", "bind", "setup", "mean", "serving", "updates", "insight"}
DECLARED = {"about", "ways", "Config", "serving_type", "updates_type", "insight_type", "state_group", "flat_state",
            "trains_as"}  # fmt: skip
BESIDE: dict[type, set[str]] = {
    Serving: {"published", "check", "alike_models", "check_learned", "participant", "refit", "probabilities", "learns"},
    Updates: {
        "averages", "needs_single_updates", "require_clients", "reference", "as_averageable", "from_average",
        "aggregate_rounded", "require_average",
    },
    Insight: {"diagnostics", "phase", "ready", "describe", "learned"},
}  # fmt: skip


def public(kind: type) -> set[str]:
    own = {name for base in kind.__mro__[:-1] for name in {**vars(base), **inspect.get_annotations(base)}}
    return {name for name in own if not name.startswith("_")}


def test_a_method_is_six_functions() -> None:
    functions = {name for name in public(Method) if callable(getattr(Method, name, None))} - DECLARED
    assert functions == SIX | {"build", "bind", "setup", "mean"}
    assert public(Method) == SIX | HELPERS | DECLARED | {"config", "task"}


def test_what_must_be_written_for_a_new_method() -> None:
    assert Method.__abstractmethods__ == {"init", "client_update", "aggregate", "model"}


@pytest.mark.parametrize("kind", BESIDE)
def test_the_objects_beside_a_method(kind: Any) -> None:
    assert public(kind) == BESIDE[kind]


def test_everything_public_is_explained() -> None:
    for kind in (Method, *BESIDE):
        for name in public(kind):
            thing = inspect.getattr_static(kind, name, None)
            if callable(thing) and name not in DECLARED:
                assert inspect.getdoc(getattr(kind, name)), f"{kind.__name__}.{name}"


def methods() -> Iterator[tuple[type[Method], str]]:
    for method in METHODS.values():
        for name in SIX:
            yield method, name


def test_every_method_keeps_the_signatures() -> None:
    """By name and order; a method may take more with a default."""
    for method, name in methods():
        wanted = list(inspect.signature(getattr(Method, name)).parameters)
        got = inspect.signature(getattr(method, name)).parameters
        assert list(got)[: len(wanted)] == wanted, f"{method.__name__}.{name}"
        for extra in list(got.values())[len(wanted) :]:
            assert extra.default is not inspect.Parameter.empty, f"{method.__name__}.{name} needs {extra.name}"


@pytest.mark.parametrize("variant", sorted(FIRST))
def test_nothing_is_kept_on_the_object_but_settings(variant: str, recipe: Recipe) -> None:
    """All state goes in and comes out: an attribute that a round sets would not survive a resumed run."""
    method = make(variant, recipe)
    for companion in (method.serving, method.updates, method.insight):
        assert companion.method is method
    before = dict(vars(method))
    server = method.init(7)
    method.broadcast(server, "somebody")
    method.model(server)
    method.serving.published(server)
    assert vars(method).keys() == before.keys()
    assert all(vars(method)[name] is value for name, value in before.items())


def test_wrong_settings_are_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"The settings of FedBasis: 1 problem\n  'colour' is not a key"):
        METHODS["fedbasis"](colour="red")


def test_bind_leaves_the_users_object_alone(recipe: Recipe) -> None:
    mine, task = METHODS["fedprox"](mu=0.25), make("fedavg", recipe).task
    bound = mine.bind(task)
    assert bound.task is task
    assert bound.config == mine.config
    assert not hasattr(mine, "task")
    assert Path(inspect.getfile(type(bound))).stem == "fedprox"
