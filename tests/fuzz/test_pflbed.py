"""Damaged files are read or refused with a sentence: a few hundred mutants of everything that pflbed reads."""

import signal
from pathlib import Path
from random import Random

import pytest

from fuzz import load_targets, run_target
from fuzz.mutators import bytes_mutant, json_mutant
from fuzz.runner import HangError, Target, target, time_limit
from pflbed import InputError

EACH = {"pflbed folder": 30, "pflbed command line": 30}
MUTANTS = 60


@pytest.mark.parametrize("chosen", load_targets("pflbed"), ids=lambda chosen: chosen.name)
def test_no_mutant_is_a_traceback(chosen: Target) -> None:
    outcome = run_target(chosen, EACH.get(chosen.name, MUTANTS), seed=0)
    assert not outcome.tracebacks, outcome.tracebacks[0]
    assert outcome.mutants == EACH.get(chosen.name, MUTANTS)


def test_there_are_enough_mutants() -> None:
    assert sum(EACH.get(chosen.name, MUTANTS) for chosen in load_targets("pflbed")) >= 400


def test_mutants_are_the_same_every_time() -> None:
    for seed in range(50):
        assert bytes_mutant(b"abcdef" * 9, Random(seed)) == bytes_mutant(b"abcdef" * 9, Random(seed))
        value = {"a": [1, 2, {"b": None}]}
        assert json_mutant(value, Random(seed)) == json_mutant(value, Random(seed))
        assert value == {"a": [1, 2, {"b": None}]}


def test_a_traceback_is_counted(tmp_path: Path) -> None:
    def explode(number: int) -> None:
        if number % 3 == 0:
            raise InputError("refused")
        if number % 3 == 1:
            raise KeyError(number)

    calls = iter(range(9))
    outcome = run_target(Target("x", lambda _: lambda _: lambda: explode(next(calls))), 9, 0)
    assert outcome.counts == {"ok": 3, "refused": 3, "traceback": 3}
    assert len(outcome.tracebacks) == 1
    assert "KeyError: 1" in outcome.tracebacks[0]
    assert callable(target("y"))


def test_what_takes_too_long_is_a_hang() -> None:
    with pytest.raises(HangError), time_limit(1):
        signal.pause()
    with time_limit(0):
        pass
