"""The examples in docstrings run, and every public name has one."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import pflbed

MODULES = [info.name for info in pkgutil.walk_packages(pflbed.__path__, "pflbed.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    if name == "pflbed.flower":
        pytest.importorskip("flwr_datasets")
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", sorted(set(pflbed.__all__) - {"InputError"}))
def test_public_names_are_documented(name: str) -> None:
    public = getattr(pflbed, name)
    text = inspect.getdoc(public) or ""
    if inspect.isfunction(public):
        assert "Args:" in text
        assert "Returns:" in text or inspect.signature(public).return_annotation in (None, "None")
    if name != "ClientView":  # made by Clients, whose example shows it
        assert "Example:\n    >>>" in text
