"""Fed-MTL, FedAMP and FedFomo in the battery."""

from typing import Any

from fedbasis.methods.base import Task

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fed-mtl": ("fed-mtl", {}),
    "fed-mtl-strong": ("fed-mtl", {"l1": 0.01, "l2": 0.001, "epsilon": 1e-2}),
    "fedamp": ("fedamp", {}),
    "fedamp-near": ("fedamp", {"alpha": 1.0, "sigma": 4.0, "start": "own", "alpha_decay": 0.5, "decay_every": 2}),
    "fedamp-cosine": ("fedamp", {"attention": "cosine", "self_weight": 0.5}),
    "fedfomo": ("fedfomo", {}),
    "fedfomo-own": ("fedfomo", {"models": 2, "epsilon": 0.5, "epsilon_decay": 0.1, "compare": "own"}),
}
"""Name in the tests -> (method, its settings)."""
HOLDS = set(VARIANTS)
"""Variants whose server needs all of a round's models at once (in one round, or in its state)."""
SLOW: set[str] = set()
"""Variants that need more than three rounds of one epoch to show in the loss that they learn."""


def sent(variant: str, task: Task, round: int) -> dict[str, set[str]]:
    """What the paper says leaves a client: per group the names of the tensors."""
    model = {"model": set(task.layout.shapes)}
    return {**model, "affinity": {"weights"}} if variant.startswith("fedfomo") else model
