"""The paper's own figures, in percent, by dataset: what the tables put beside the measured ones, as another scale.

Keys are ``(run, way)`` as in the studies; the paper's FedBasis is the variant as printed. Where the paper prints one
number for Last and Best there is one.
"""

from collections.abc import Mapping

from fedbasis.studies.variants import PRINTED, Key

PrintedScores = Mapping[str, tuple[float, ...]]  # size -> (Last, Best), or the one number there is

OWN = "client-state"
"""The way of a client that took part and has a model of its own."""
FEDBASIS: Key = (PRINTED, "coefficients+classifier")


def _pairs(sizes: str, *numbers: float) -> dict[str, tuple[float, ...]]:
    return {size: numbers[2 * i : 2 * i + 2] for i, size in enumerate(sizes)}


def _single(sizes: str, *numbers: float) -> dict[str, tuple[float, ...]]:
    return {size: (number,) for size, number in zip(sizes, numbers, strict=True)}


NEW_CLIENTS: Mapping[str, Mapping[Key, PrintedScores]] = {
    "pacs": {
        ("fedrep", "lp"): _pairs("SM", 87.4, 87.4, 92.5, 92.4),
        ("fedrep", "ft"): _pairs("SM", 89.8, 89.8, 92.4, 92.5),
        ("fedbn", "bn"): _pairs("SM", 86.2, 88.2, 92.4, 92.4),
        ("fedbn", "lp"): _pairs("SM", 86.2, 88.2, 92.4, 92.4),
        ("fedbn", "ft"): _pairs("SM", 90.8, 92.1, 93.0, 93.1),
        ("pfedhn", "embedding"): _single("SM", 85.4, 85.5),
        ("pfedhn", "embedding+lp"): _pairs("SM", 90.4, 90.4, 90.6, 90.6),
        ("pfedhn", "embedding+ft"): _pairs("SM", 90.5, 91.2, 90.4, 91.4),
        ("per-fedavg-fo", "ft"): _pairs("SM", 95.4, 95.6, 96.2, 96.3),
        ("knn-per", "knn"): _single("SM", 71.6, 71.6),
        ("knn-per", "knn+ft"): _pairs("SM", 72.7, 72.7, 79.4, 79.7),
        ("fedavg", "none"): _single("SM", 88.1, 88.1),
        ("fedavg", "lp"): _pairs("SM", 88.2, 90.1, 90.5, 90.5),
        ("fedavg", "ft"): _pairs("SM", 86.1, 91.9, 90.5, 90.5),
        FEDBASIS: _pairs("SM", 95.2, 95.2, 96.2, 96.2),
    },
    "office-home": {
        ("fedrep", "lp"): _pairs("SM", 75.6, 75.6, 76.0, 76.1),
        ("fedrep", "ft"): _pairs("SM", 74.2, 76.1, 75.2, 76.4),
        ("fedbn", "bn"): _pairs("SM", 76.9, 77.0, 78.1, 78.1),
        ("fedbn", "lp"): _pairs("SM", 76.9, 77.0, 78.1, 78.1),
        ("fedbn", "ft"): _pairs("SM", 82.3, 82.5, 79.0, 79.2),
        ("pfedhn", "embedding"): _single("SM", 74.1, 74.3),
        ("pfedhn", "embedding+lp"): _pairs("SM", 75.1, 75.1, 77.4, 77.4),
        ("pfedhn", "embedding+ft"): _pairs("SM", 76.2, 77.2, 77.1, 77.6),
        ("per-fedavg-fo", "ft"): _pairs("SM", 84.3, 84.4, 86.1, 86.2),
        ("knn-per", "knn"): _single("SM", 50.4, 54.5),
        ("knn-per", "knn+ft"): _pairs("SM", 51.6, 52.4, 54.2, 54.4),
        ("fedavg", "none"): _single("SM", 73.1, 73.1),
        ("fedavg", "lp"): _pairs("SM", 76.6, 76.6, 77.0, 77.0),
        ("fedavg", "ft"): _pairs("SM", 76.1, 77.4, 78.2, 78.5),
        FEDBASIS: _pairs("SM", 87.4, 87.5, 87.5, 87.7),
    },
    "gld23k": {
        ("fedrep", "lp"): _pairs("SML", 75.7, 77.6, 78.8, 78.8, 80.1, 80.8),
        ("fedrep", "ft"): _pairs("SML", 79.2, 79.9, 81.5, 82.5, 81.5, 83.5),
        ("fedbn", "bn"): _pairs("SML", 74.1, 74.5, 76.6, 76.6, 76.4, 76.5),
        ("fedbn", "lp"): _pairs("SML", 74.1, 74.5, 76.6, 76.6, 76.4, 76.5),
        ("fedbn", "ft"): _pairs("SML", 68.1, 70.5, 77.8, 81.8, 80.5, 83.9),
        ("pfedhn", "embedding"): _single("SML", 74.5, 75.6, 77.2),
        ("pfedhn", "embedding+lp"): _pairs("SML", 77.0, 77.6, 78.5, 78.5, 79.1, 79.5),
        ("pfedhn", "embedding+ft"): _pairs("SML", 77.6, 81.4, 78.6, 81.6, 80.2, 82.2),
        ("per-fedavg-fo", "ft"): _pairs("SML", 78.5, 85.3, 79.9, 85.2, 82.2, 86.1),
        ("knn-per", "knn"): _single("SML", 54.0, 57.4, 69.2),
        ("knn-per", "knn+ft"): _pairs("SML", 54.2, 54.5, 57.1, 57.8, 69.5, 70.2),
        ("fedavg", "none"): _single("SML", 45.4, 45.4, 45.4),
        ("fedavg", "lp"): _pairs("SML", 80.8, 81.5, 80.9, 81.8, 83.3, 83.3),
        ("fedavg", "ft"): _pairs("SML", 81.5, 84.2, 81.6, 84.5, 84.1, 86.1),
        FEDBASIS: _pairs("SML", 87.4, 87.4, 87.6, 87.6, 89.0, 89.1),
    },
}
"""Tables 2 and C. FedBN's row of table 2 has the numbers of FedBN + LP in table C."""

VARIANCE: Mapping[str, Mapping[Key, PrintedScores]] = {
    "pacs": {
        ("fedrep", "lp"): _pairs("SM", 0.22, 0.16, 0.21, 0.22),
        ("fedrep", "ft"): _pairs("SM", 0.36, 0.29, 0.41, 0.38),
        ("fedbn", "lp"): _pairs("SM", 0.15, 0.16, 0.31, 0.15),
        ("fedbn", "ft"): _pairs("SM", 0.33, 0.45, 0.41, 0.42),
        ("pfedhn", "embedding"): _pairs("SM", 0.78, 0.64, 0.56, 0.57),
        ("pfedhn", "embedding+lp"): _pairs("SM", 0.36, 0.44, 0.29, 0.36),
        ("pfedhn", "embedding+ft"): _pairs("SM", 0.85, 0.97, 0.56, 0.77),
        ("per-fedavg-fo", "ft"): _pairs("SM", 0.51, 0.46, 0.37, 0.41),
        ("knn-per", "knn"): _pairs("SM", 0.30, 0.34, 0.19, 0.38),
        ("knn-per", "knn+ft"): _pairs("SM", 1.75, 1.41, 1.25, 1.39),
        ("fedavg", "none"): _pairs("SM", 0.23, 0.25, 0.29, 0.24),
        ("fedavg", "lp"): _pairs("SM", 0.15, 0.21, 0.20, 0.17),
        ("fedavg", "ft"): _pairs("SM", 0.52, 0.39, 0.44, 0.51),
        FEDBASIS: _pairs("SM", 0.52, 0.56, 0.45, 0.50),
    },
    "office-home": {
        ("fedrep", "lp"): _pairs("SM", 0.31, 0.26, 0.33, 0.25),
        ("fedrep", "ft"): _pairs("SM", 0.66, 0.56, 0.71, 0.39),
        ("fedbn", "lp"): _pairs("SM", 0.12, 0.23, 0.28, 0.19),
        ("fedbn", "ft"): _pairs("SM", 0.67, 0.59, 0.55, 0.62),
        ("pfedhn", "embedding"): _pairs("SM", 0.46, 0.51, 0.48, 0.55),
        ("pfedhn", "embedding+lp"): _pairs("SM", 0.27, 0.31, 0.28, 0.25),
        ("pfedhn", "embedding+ft"): _pairs("SM", 0.77, 0.75, 0.64, 0.70),
        ("per-fedavg-fo", "ft"): _pairs("SM", 0.70, 0.61, 0.63, 0.66),
        ("knn-per", "knn"): _pairs("SM", 0.56, 0.58, 0.52, 0.57),
        ("knn-per", "knn+ft"): _pairs("SM", 0.57, 0.60, 0.78, 0.69),
        ("fedavg", "none"): _pairs("SM", 0.38, 0.41, 0.50, 0.42),
        ("fedavg", "lp"): _pairs("SM", 0.29, 0.22, 0.31, 0.44),
        ("fedavg", "ft"): _pairs("SM", 0.57, 0.46, 0.60, 0.58),
        FEDBASIS: _pairs("SM", 0.38, 0.39, 0.42, 0.45),
    },
    "gld23k": {
        ("fedrep", "lp"): _pairs("SML", 0.55, 0.56, 0.47, 0.52, 0.44, 0.29),
        ("fedrep", "ft"): _pairs("SML", 0.78, 0.89, 0.88, 0.75, 0.74, 0.71),
        ("fedbn", "lp"): _pairs("SML", 0.36, 0.41, 0.29, 0.21, 0.51, 0.39),
        ("fedbn", "ft"): _pairs("SML", 0.68, 0.66, 0.56, 0.48, 0.65, 0.62),
        ("pfedhn", "embedding"): _pairs("SML", 0.41, 0.28, 0.55, 0.56, 0.39, 0.28),
        ("pfedhn", "embedding+lp"): _pairs("SML", 0.87, 0.86, 0.82, 0.75, 0.78, 0.58),
        ("pfedhn", "embedding+ft"): _pairs("SML", 1.01, 1.12, 0.89, 0.88, 0.91, 1.15),
        ("per-fedavg-fo", "ft"): _pairs("SML", 0.51, 0.25, 0.48, 0.45, 0.34, 0.38),
        ("knn-per", "knn"): _pairs("SML", 1.14, 1.56, 1.28, 0.85, 0.95, 0.95),
        ("knn-per", "knn+ft"): _pairs("SML", 0.27, 0.56, 0.48, 0.71, 0.55, 0.61),
        ("fedavg", "none"): _pairs("SML", 0.54, 0.39, 0.55, 0.56, 0.54, 0.27),
        ("fedavg", "lp"): _pairs("SML", 0.63, 0.65, 0.48, 0.59, 0.64, 0.59),
        ("fedavg", "ft"): _pairs("SML", 0.68, 0.71, 0.59, 0.58, 0.61, 0.48),
        FEDBASIS: _pairs("SML", 0.52, 0.66, 0.47, 0.68, 0.29, 0.45),
    },
}
"""Table D: variances over three seeds."""

REGULARIZED: Mapping[str, tuple[float, float | None]] = {
    "per-fedavg-fo": (84.3, 84.5), "pfedme": (77.5, 77.8), PRINTED: (87.5, None)
}  # fmt: skip
"""Table 3, Office-Home: weight decay, and equation 2 of pFedMe."""

ABLATION: Mapping[str, Mapping[str, float]] = {
    "office-home": {"joint": 83.5, "no major basis": 87.2, "tau = 1": 87.1, "FedBasis": 87.5},
    "gld23k": {"joint": 85.8, "no major basis": 83.3, "tau = 1": 85.5, "FedBasis": 87.6},
}
"""Tables 4 and F."""

BASES: Mapping[str, Mapping[int, float]] = {
    "pacs": {1: 91.9, 2: 93.4, 4: 95.2, 6: 94.7, 8: 95.0},
    "office-home": {1: 77.4, 2: 84.5, 4: 87.5, 6: 87.6, 8: 87.4},
}
"""Table E: Best, size S."""

META_RATES: Mapping[Key, Mapping[float, tuple[float, float]]] = {
    ("fedavg", "ft"): {
        0.001: (78.1, 78.1), 0.005: (78.2, 78.5), 0.01: (70.5, 76.6), 0.05: (65.4, 75.6), 0.1: (38.1, 73.1)
    },
    ("per-fedavg-fo", "ft"): {
        0.001: (86.1, 86.1), 0.005: (86.1, 86.2), 0.01: (65.3, 85.4), 0.05: (60.5, 83.4), 0.1: (40.1, 82.6)
    },
    ("per-fedavg-hf", "ft"): {
        0.001: (85.3, 85.3), 0.005: (85.5, 85.5), 0.01: (63.4, 83.6), 0.05: (43.7, 81.6), 0.1: (34.8, 80.7)
    },
    FEDBASIS: {0.001: (87.6, 87.6), 0.005: (87.5, 87.7), 0.01: (87.6, 87.7), 0.05: (87.6, 87.6), 0.1: (87.5, 87.6)},
}  # fmt: skip
"""Table B, Office-Home, size M: Last and Best."""

PARTICIPATING: Mapping[str, Mapping[Key, float]] = {
    "cifar10": {
        ("fedavg", "none"): 51.8, ("fedavg", "ft"): 73.7, ("fedprox", "none"): 51.0, ("fedprox", "ft"): 72.8,
        ("scaffold", "none"): 47.3, ("scaffold", "ft"): 68.2, ("fed-mtl", OWN): 58.3, ("per-fedavg-fo", "ft"): 67.2,
        ("lg-fedavg", OWN): 63.0, ("l2gd", OWN): 60.0, ("apfl", OWN): 72.2, ("ditto", OWN): 70.3,
        ("fedper", OWN): 73.8, ("fedrep", OWN): 75.7, FEDBASIS: 75.5,
    },
    "cifar100": {
        ("fedavg", "none"): 23.9, ("fedavg", "ft"): 79.3, ("fedprox", "none"): 20.2, ("fedprox", "ft"): 78.5,
        ("scaffold", "none"): 20.3, ("scaffold", "ft"): 78.9, ("fed-mtl", OWN): 71.5, ("per-fedavg-fo", "ft"): 72.1,
        ("lg-fedavg", OWN): 72.4, ("l2gd", OWN): 72.1, ("apfl", OWN): 78.2, ("ditto", OWN): 78.9,
        ("fedper", OWN): 76.0, ("fedrep", OWN): 79.1, FEDBASIS: 80.8,
    },
}  # fmt: skip
"""Table 5."""

CIFAR_NEW: Mapping[str, Mapping[Key, float]] = {
    "cifar10": {("fedavg", "ft"): 72.7, ("per-fedavg-fo", "ft"): 74.8, FEDBASIS: 76.5},
    "cifar100": {("fedavg", "ft"): 78.1, ("per-fedavg-fo", "ft"): 78.4, FEDBASIS: 79.2},
}
"""Table 6."""

COMMUNICATION: tuple[tuple[float, float], tuple[float, float]] = (90.2, 66.0), (69.0, 68.8)
"""Table A: personalized and global accuracy, aggregated after every step and every 5 epochs."""

DATASETS: Mapping[str, tuple[str, str, str, str, str]] = {
    "pacs": ("9K", "7", "224²", "Styles", "PFLBed"),
    "office-home": ("16K", "65", "224²", "Styles", "PFLBed"),
    "gld23k": ("23K", "203", "224²", "Natural", "User ID"),
    "cifar10": ("60K", "10/100", "32²", "None", "Dirichlet"),
    "cifar100": ("60K", "10/100", "32²", "None", "Dirichlet"),
}
"""Table 1 as it is printed: size, classes, resolution, domain, client split. It has one row for both CIFARs."""

MISMATCH_FEMNIST = 0.77
"""Section 4: LEAF's FEMNIST, each client's images halved."""
PCA_DROP, KMEANS_DROP = 18.1, 21.4
"""Appendix D: points lost by the top four components, and by four centroids, on PACS."""
