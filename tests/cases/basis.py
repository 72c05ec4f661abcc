"""FedAvg and FedBasis in the battery."""

from typing import Any

from fedbasis.methods.base import Task

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "fedbasis": ("fedbasis", {"bases": 2}),
    "fedbasis-full": ("fedbasis", {"bases": 2, "upload": "full", "aggregation": "mean"}),
    "fedbasis-joint": (
        "fedbasis",
        {"bases": 2, "upload": "full", "aggregation": "mean", "rate": "per-basis", "coordinate_descent": False},
    ),
    "fedbasis-adam": ("fedbasis", {"bases": 2, "upload": "full", "aggregation": "mean", "basis_optimizer": "adam"}),
    "fedbasis-random": ("fedbasis", {"bases": 2, "init": "random", "warm_start": 0, "major": False}),
    "fedbasis-step": ("fedbasis", {"bases": 2, "communicate_every": "step", "cluster": "network"}),
    "fedbasis-sgd": ("fedbasis", {"bases": 2, "coefficient_optimizer": "sgd", "rate": "per-model", "tau": 1.0}),
}
"""Name in the tests -> (method, its settings)."""
HOLDS: set[str] = set()
"""Variants whose server needs all of a round's models at once (in one round, or in its state)."""
SLOW = {"fedbasis-adam"}
"""Variants that need more than three rounds of one epoch to show in the loss that they learn."""


def sent(variant: str, task: Task, round: int) -> dict[str, set[str]]:
    """What the paper says leaves a client: per group the names of the tensors."""
    model = {"model": set(task.layout.shapes)}
    if variant == "fedavg" or (variant != "fedbasis-random" and round == 0):
        return model  # FedBasis warms up as FedAvg
    if variant in ("fedbasis-full", "fedbasis-joint", "fedbasis-adam"):
        groups = {name: set(task.parameters) for name in ("basis_0", "basis_1", "major")}
        statistics = set(task.layout.shapes) - task.parameters
        return {**groups, "statistics": statistics, "coefficients": {"alpha", "a"}}
    return {**model, "coefficients": {"alpha", "a"}}
