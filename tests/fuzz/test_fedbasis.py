"""Damaged files are read or refused with a sentence: a few hundred mutants of everything that fedbasis reads."""

import pytest

from fuzz import load_targets, run_target
from fuzz.runner import Target

EACH = {"fedbasis run folder": 10, "fedbasis-edge bundle": 25, "fedbasis-edge model": 25}
MUTANTS = 60


@pytest.mark.parametrize("chosen", load_targets("fedbasis"), ids=lambda chosen: chosen.name)
def test_no_mutant_is_a_traceback(chosen: Target) -> None:
    outcome = run_target(chosen, EACH.get(chosen.name, MUTANTS), seed=0)
    assert not outcome.tracebacks, outcome.tracebacks[0]


def test_there_are_enough_mutants() -> None:
    counts = [EACH.get(chosen.name, MUTANTS) for chosen in load_targets()]
    assert sum(counts) >= 1000
