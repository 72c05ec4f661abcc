"""The examples in docstrings run, and every public class and function has one."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import fedbasis as fb

SOURCE = Path(__file__).parents[1] / "src"
WITH_EXAMPLES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((SOURCE / "fedbasis").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name: str) -> None:
    ran = doctest.testmod(importlib.import_module(name))
    assert ran.attempted > 0
    assert ran.failed == 0


@pytest.mark.parametrize("name", sorted(set(fb.__all__) - {"METHODS"}))
def test_public_names_have_an_example(name: str) -> None:
    assert "Example:\n    >>> " in (inspect.getdoc(getattr(fb, name)) or "")
