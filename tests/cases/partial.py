"""The methods that personalize some layers, in the battery."""

from typing import Any

from fedbasis.methods.base import Task

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "lg-fedavg": ("lg-fedavg", {}),
    "lg-fedavg-half": ("lg-fedavg", {"local_blocks": 2}),
    "fedper": ("fedper", {}),
    "fedper-half": ("fedper", {"personal_blocks": 2}),
    "fedrep": ("fedrep", {"head_epochs": 2}),
    "fedbn": ("fedbn", {}),
    "fedbn-closed": ("fedbn", {"share_normalization_for_new_clients": False}),
    "fedrod": ("fedrod", {}),
}
"""Name in the tests -> (method, its settings)."""
HOLDS: set[str] = set()
"""Variants whose server needs all of a round's models at once (in one round, or in its state)."""
SLOW: set[str] = set()
"""Variants that need more than three rounds of one epoch to show in the loss that they learn."""
UPPER = {"lg-fedavg": ("fc.",), "lg-fedavg-half": ("conv3.", "fc.")}
LOWER = {
    "fedper": ("conv1.", "conv2.", "conv3."),
    "fedper-half": ("conv1.", "conv2."),
    "fedrep": ("conv1.", "conv2.", "conv3."),
}


def sent(variant: str, task: Task, round: int) -> dict[str, set[str]]:
    """What the paper says leaves a client: per group the names of the tensors."""
    names = set(task.layout.shapes)
    if variant == "fedrod":
        return {"model": names}
    if not variant.startswith("fedbn"):
        return {"model": {name for name in names if name.startswith((UPPER | LOWER)[variant])}}
    norm = {name for name in names if name.split(".")[1] == "1"}  # the second layer of every stage, if it has tensors
    shared = {"normalization": norm} if variant == "fedbn" and norm else {}
    return {"model": names - norm, **shared}
