"""Damage files that the packages read, call the reader, and count: read, refused with a sentence, or a traceback.

``python -m fuzz --count 1000 --seed 0`` with ``tests`` on the path runs every target in a child process of its own. To
add a target, write a function with ``@target`` in a module that ``TARGET_MODULES`` names.
"""

import importlib

from fuzz.runner import TARGETS, Outcome, Target, run_target, target

TARGET_MODULES = ("fuzz.pflbed_targets", "fuzz.fedbasis_targets", "fuzz.edge_targets")
"""Modules with targets."""

__all__ = ["TARGETS", "TARGET_MODULES", "Outcome", "Target", "load_targets", "run_target", "target"]


def load_targets(only: str = "") -> list[Target]:
    """All targets whose name begins with ``only``."""
    for name in TARGET_MODULES:
        importlib.import_module(name)
    return [found for name, found in TARGETS.items() if name.startswith(only)]
