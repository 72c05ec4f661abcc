"""PCA-k, k-means-k, IFCA and FedEM in the battery."""

from typing import Any

from fedbasis.methods.base import Task

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "pca-k": ("pca-k", {"components": 2}),
    "kmeans-k": ("kmeans-k", {"centroids": 2}),
    "ifca": ("ifca", {"clusters": 2}),
    "ifca-noise": ("ifca", {"clusters": 2, "start": "noise"}),
    "fedem": ("fedem", {"components": 2}),
    "fedem-noise": ("fedem", {"components": 2, "start": "noise"}),
}
HOLDS: set[str] = set()
"""Both need the last round's models at once; in the rounds before they do not."""
SLOW: set[str] = set()


def sent(variant: str, task: Task, round: int) -> dict[str, set[str]]:
    """FedEM sends its components and never its mixture weights; IFCA sends which model it trained."""
    whole = set(task.layout.shapes)
    if variant in ("ifca", "fedem") and round == 0:
        return {"model": whole}  # both warm up as FedAvg
    if variant.startswith("fedem"):
        return {"component_0": whole, "component_1": whole}
    if variant.startswith("ifca"):
        return {"model": whole, "choice": {"cluster"}}
    return {"model": whole}
