"""Activations of a network's lower blocks for a whole dataset, computed once, as bytes that an upper part learns from.

The lower blocks are frozen, for every method alike: with pretrained weights, in evaluation mode. Their output is stored
as 8 bits a number, with a range per channel that follows from the weights alone: the mean plus and minus ``REACH``
deviations that the last normalization layers give. So the bytes of an image depend on that image and on the weights,
and on no other image. What lies outside of the range is cut off; the card says how much.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbasis.networks.efficientnet import EfficientNetLite0
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.networks.weights import weights_path
from fedbasis.tensors.files import load_weights
from pflbed.errors import InputError
from pflbed.files import sha256_of
from pflbed.normalization import Normalization

REACH = 6.0
"""Deviations on either side of the mean that 8 bits cover."""
BATCH = 32


@dataclass(frozen=True)
class LowerBlocks:
    """The frozen lower blocks of a network, and how their output becomes bytes.

    Args:
        network: The name of the network.
        blocks: How many blocks are frozen; with the stem.
        resolution: Pixels of a square image.
        module: The network with its weights, in evaluation mode.
        weights: The sha256 of the file of weights.
    """

    network: str
    blocks: int
    resolution: int
    module: EfficientNetLite0
    weights: str

    @classmethod
    def load(cls, network: str, weights: str, blocks: int, resolution: int) -> "LowerBlocks":
        """Build a network, load its weights, and keep its lower blocks."""
        built = Network(network, 2, resolution)
        module = built.build().eval()
        if not isinstance(module, EfficientNetLite0):
            raise InputError(
                f"The network must have blocks whose activations can be stored, but '{network}' has none; use "
                "efficientnet-lite0."
            )
        if not 0 < blocks < len(module._blocks):
            raise InputError(f"The blocks must be from 1 to {len(module._blocks) - 1}, but they are {blocks}.")
        path = weights_path(weights)
        module.load_state_dict(load_weights(path, built.layout(module).shapes), strict=False)
        return cls(network, blocks, resolution, module, sha256_of(path))

    @property
    def normalization(self) -> Normalization:
        """How stored bytes become activations."""
        mean, deviation = (values.double() for values in self.module.expected(self.blocks))
        std = 1 / (2 * REACH * deviation)
        return Normalization(tuple((0.5 - mean * std).tolist()), tuple(std.tolist()))

    @property
    def about(self) -> dict[str, Any]:
        """What a card says about the activations."""
        return {
            "network": self.network, "blocks": self.blocks, "resolution": self.resolution, "weights": self.weights
        }  # fmt: skip

    @torch.no_grad()
    def activations(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Return the activations of images [N, H, W, 3], float [N, C, h, w]."""
        inputs = Preprocessing.of(self.resolution, 3)(torch.from_numpy(np.array(pixels)))
        return self.module.activations(inputs, self.blocks)

    @torch.no_grad()
    def as_bytes(self, activations: Tensor) -> tuple[NDArray[np.uint8], int]:
        """Return activations as bytes [N, h, w, C], and how many numbers were cut off."""
        by = self.normalization
        mean, std = (torch.tensor(values)[:, None, None] for values in (by.mean, by.std))
        exact = (activations * std + mean) * 255
        cut = int(((exact < -0.5) | (exact > 255.5)).sum())
        return exact.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy(), cut


def stored(
    lower: LowerBlocks, images: NDArray[np.uint8], progress: Callable[[int, int], None] | None = None
) -> tuple[NDArray[np.uint8], float]:
    """Compute the bytes of a whole dataset.

    Args:
        lower: The frozen blocks.
        images: All images, uint8 [N, H, W, 3].
        progress: Called with (images done, images in all).

    Returns:
        The bytes [N, h, w, C], and the share of numbers that were cut off.
    """
    made, cut = [], 0
    for first in range(0, len(images), BATCH):
        part, lost = lower.as_bytes(lower.activations(images[first : first + BATCH]))
        made.append(part)
        cut += lost
        if progress is not None:
            progress(min(first + BATCH, len(images)), len(images))
    whole = np.concatenate(made)
    return whole, cut / whole.size


def require_network(
    about: Mapping[str, Any], name: str, options: Mapping[str, Any], weights: str | None, where: Path | str
) -> None:
    """Refuse a network that does not continue where stored activations end.

    Args:
        about: What the card of an array says; an array that is not of activations says nothing of a network.
        name: The network that is trained.
        options: Its options.
        weights: Its pretrained weights; None: they are not compared.
        where: The folder of the activations.
    """
    if "network" not in about:
        return
    wanted, got = (about["network"], about.get("blocks")), (name, options.get("first_block", 0))
    if wanted != got:
        raise InputError(
            f"The activations in {where} are those before block {wanted[1]} of {wanted[0]}, so model.name and the "
            f"option first_block must be these, but they are {got[0]} and {got[1]}."
        )
    if weights is not None and sha256_of(weights_path(weights)) != about.get("weights"):
        raise InputError(
            f"The activations in {where} were made with other weights than {weights} (by their sha256), but the lower "
            "and the upper blocks must be of one network; give the same file, or make them again with 'fedbasis "
            "features'."
        )
