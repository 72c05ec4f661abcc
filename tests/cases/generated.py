"""Methods whose personal models are generated or remembered: pFedHN, kNN-Per and pFedGP in the battery."""

from typing import Any

from fedbasis.methods.base import Task

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "pfedhn": ("pfedhn", {"hidden": 8, "embedding": 3, "layers": 1}),
    "pfedhn-momentum": ("pfedhn", {"hidden": 8, "embedding": 3, "layers": 1, "rate": 0.1, "momentum": 0.9}),
    "pfedhn-round": ("pfedhn", {"hidden": 8, "embedding": 3, "layers": 1, "server_steps": "round", "rate": 0.1}),
    "knn-per": ("knn-per", {"k": 3}),
    "knn-per-tuned": ("knn-per", {"k": 3, "lam": "tuned"}),
    "pfedgp": ("pfedgp", {"gibbs": 2, "draws": 5, "draws_new": 5}),
    "pfedgp-marginal": ("pfedgp", {"objective": "marginal", "gibbs": 2, "draws": 5, "draws_new": 5}),
}
HOLDS: set[str] = set()
SLOW: set[str] = set()


def sent(variant: str, task: Task, round: int) -> dict[str, set[str]]:
    """What the papers say leaves a client: a change, a model, or its body."""
    if variant.startswith("pfedhn"):
        return {"change": set(task.parameters), "statistics": set(task.layout.shapes) - task.parameters}
    return {"model": set(task.body) if variant.startswith("pfedgp") else set(task.layout.shapes)}
