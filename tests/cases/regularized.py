"""Training alone, and the methods that pull or correct FedAvg's local training, in the battery."""

from typing import Any

from fedbasis.methods.base import Task

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "local": ("local", {}),
    "fedprox": ("fedprox", {"mu": 0.1}),
    "scaffold": ("scaffold", {}),
    "scaffold-population": ("scaffold", {"population": 8}),
    "ditto": ("ditto", {}),
    "apfl": ("apfl", {}),
    "apfl-adaptive": ("apfl", {"alpha": 0.3, "adaptive": True, "alpha_rate": 0.1}),
}
"""Name in the tests -> (method, its settings)."""
HOLDS: set[str] = set()
"""Variants whose server needs all of a round's models at once (in one round, or in its state)."""
SLOW = {"scaffold-population"}
"""Variants that need more than three rounds of one epoch to show in the loss that they learn."""


def sent(variant: str, task: Task, round: int) -> dict[str, set[str]]:
    """What the paper says leaves a client: per group the names of the tensors."""
    if variant == "local":
        return {}
    model = {"model": set(task.layout.shapes)}
    return {**model, "control": set(task.parameters)} if variant.startswith("scaffold") else model
