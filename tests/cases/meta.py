"""Per-FedAvg, pFedMe and L2GD in the battery."""

from typing import Any

from fedbasis.methods.base import Task

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "per-fedavg-fo": ("per-fedavg-fo", {"inner_rate": 0.02}),
    "per-fedavg-fo-epochs": ("per-fedavg-fo", {"inner_rate": 0.02, "steps": "epochs"}),
    "per-fedavg-hf": ("per-fedavg-hf", {"inner_rate": 0.02}),
    "per-fedavg-hf-epochs": ("per-fedavg-hf", {"inner_rate": 0.02, "steps": "epochs"}),
    "pfedme": ("pfedme", {"inner_steps": 3}),
    "pfedme-beyond": ("pfedme", {"strength": 5.0, "inner_steps": 2, "beta": 1.5}),
    "l2gd": ("l2gd", {"probability": 0.2}),
    "l2gd-epochs": ("l2gd", {"pull": 0.3, "probability": None}),
}
HOLDS: set[str] = set()
SLOW: set[str] = set()


def sent(variant: str, task: Task, round: int) -> dict[str, set[str]]:
    """One model: the start of all (Per-FedAvg), the client's copy of it (pFedMe), the client's own (L2GD)."""
    return {"model": set(task.layout.shapes)}
