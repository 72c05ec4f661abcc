"""From a name to an object: built in, a module's attribute, an entry point; and back."""

import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType

import pytest
from torch import nn

from fedbasis.experiment.config import parse
from fedbasis.methods import METHODS, find_method, name_of
from fedbasis.methods.fedavg import FedAvg
from fedbasis.networks import resolve as resolving
from fedbasis.networks.models import Network
from fedbasis.networks.resolve import reference_of, resolve
from pflbed.errors import InputError

KNOWN = {"one": 1, "two": 2}


class Own(FedAvg):
    """A user's method."""


class Outer:
    class Inner(nn.Module):
        """Not at the top of its module."""


def plain(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, classes))


MODULE = plain(2)
HERE = __name__


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that registers a method, a network, and something that is neither."""
    points = EntryPoints(
        [
            EntryPoint("theirs", f"{HERE}:Own", "fedbasis.methods"),
            EntryPoint("nonsense", f"{HERE}:KNOWN", "fedbasis.methods"),
            EntryPoint("fedavg", f"{HERE}:Own", "fedbasis.methods"),
            EntryPoint("their-net", f"{HERE}:plain", "fedbasis.networks"),
        ]
    )
    monkeypatch.setattr(resolving, "entry_points", lambda group: points.select(group=group))


def test_a_built_in_name_is_taken_as_it_is() -> None:
    assert resolve("two", KNOWN, "some.group", "number") == 2
    assert find_method("fedavg") is FedAvg


def test_an_attribute_of_a_module() -> None:
    assert resolve("math:pi", KNOWN, "some.group", "number") == pytest.approx(3.14159, abs=1e-5)
    assert find_method(f"{HERE}:Own") is Own
    assert Network(f"{HERE}:plain", 2, 4).build()[1].out_features == 2  # type: ignore[index]


@pytest.mark.usefixtures("installed")
def test_an_entry_point_of_a_package() -> None:
    assert find_method("theirs") is Own
    assert Network("their-net", 5, 4).build()[1].out_features == 5  # type: ignore[index]
    experiment = parse({"method": {"name": "theirs"}, "model": {"name": "their-net"}})
    assert (experiment.method_name, experiment.model.name) == ("theirs", "their-net")
    with pytest.raises(InputError, match=r"there is no such network.*their-net"):
        parse({"method": {"name": "theirs"}, "model": {"name": "their-nets"}})


@pytest.mark.usefixtures("installed")
def test_a_package_does_not_replace_what_is_built_in() -> None:
    assert find_method("fedavg") is FedAvg


@pytest.mark.usefixtures("installed")
def test_an_unknown_name_is_refused_with_all_that_are_known() -> None:
    with pytest.raises(InputError, match=r"The method must be one of local, fedavg, .*, theirs, .*but it is 'their'"):
        find_method("their")
    with pytest.raises(InputError, match=r"one of one, two, or your own as 'module:name', but it is 'three'"):
        resolve("three", KNOWN, "empty.group", "number")


@pytest.mark.parametrize("name", ["no.such.module:Name", "math:no_such_name", ":pi", "math:"])
def test_what_cannot_be_imported_is_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=f"The number '{name}' must be importable, but it is not"):
        resolve(name, KNOWN, "some.group", "number")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["nonsense", "math:pi", f"{HERE}:Outer"])
def test_a_method_must_be_a_class_of_methods(name: str) -> None:
    with pytest.raises(InputError, match=f"The method '{name}' must be a subclass of fedbasis.Method"):
        find_method(name)


def test_a_reference_finds_the_same_object_again() -> None:
    for thing in (plain, Own, MODULE):
        assert resolve(reference_of(thing), {}, "some.group", "thing") is thing
    assert reference_of(plain) == f"{HERE}:plain"
    assert reference_of(MODULE) == f"{HERE}:MODULE"


def test_what_no_module_holds_is_named_by_its_class() -> None:
    assert reference_of(nn.Linear(1, 1)) == "torch.nn.modules.linear:Linear"
    assert reference_of(Outer.Inner()) == f"{HERE}:Outer.Inner"


def test_what_a_script_defines_is_named_by_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ModuleType("__main__")
    script.__file__ = "/home/somebody/my_script.py"

    class Scripted(FedAvg):
        pass

    Scripted.__module__, Scripted.__qualname__ = "__main__", "Scripted"
    script.Scripted = Scripted  # type: ignore[attr-defined]
    script.network = network = nn.Linear(1, 1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert reference_of(Scripted) == "my_script:Scripted"
    assert reference_of(network) == "my_script:network"


def test_names_of_methods_find_them_again() -> None:
    assert all(find_method(name_of(method)) is method for method in METHODS.values())
    assert name_of(FedAvg) == "fedavg"
    assert name_of(Own) == f"{HERE}:Own"  # whatever its ``about`` says
    assert find_method(name_of(Own)) is Own
