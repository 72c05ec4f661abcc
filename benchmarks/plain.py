"""Federated averaging as one writes it by hand for one experiment: what every ratio of speed is measured against.

No checks, no seeds, no records, no files: images lie in memory as normalized floats, and a round is two loops.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fedbasis.networks.models import sides
from pflbed import Images
from pflbed.images import Resolution

PIXELS = 28
RATE, MOMENTUM, DECAY = 0.01, 0.9, 1e-4


def logistic(classes: int) -> nn.Module:
    """The smallest network there is, so that everything around it shows."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * PIXELS * PIXELS, classes))


@dataclass(frozen=True)
class Variant:
    """What one may try to make the loop quicker."""

    channels_last: bool = False
    fused: bool = False


def random_images(count: int, size: Resolution, classes: int = 10) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw pixels [N, H, W, 3] and labels; no network learns them, and all work the same for it."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (count, *sides(size), 3), dtype=np.uint8)
    return pixels, generator.integers(0, classes, count)


def shared_out(pixels: NDArray[np.uint8], labels: NDArray[np.int64], clients: int) -> dict[str, Images]:
    """Give every client as many images, as fedbasis takes them."""
    rows = np.split(np.arange(len(labels)), clients)
    return {f"client-{i}": Images(pixels, mine, labels[mine]) for i, mine in enumerate(rows)}


def floats(images: Images) -> tuple[Tensor, Tensor]:
    """Normalize a client's images once and for all."""
    pixels = torch.from_numpy(images.pixels).permute(0, 3, 1, 2).float().div(255)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return ((pixels - mean) / std).contiguous(), torch.from_numpy(images.labels)


def channels_last(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Lay images out pixel by pixel."""
    return x.contiguous(memory_format=torch.channels_last), y


def picked(x: Tensor, rows: Tensor) -> Tensor:
    """Take some rows, quickly and in the layout that they have."""
    if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    return x.index_select(0, rows)


def fedavg_round(
    model: nn.Module, start: dict[str, Tensor], clients: Sequence[tuple[Tensor, Tensor]], batch: int, variant: Variant
) -> dict[str, Tensor]:
    """Train the model on every client for an epoch and return the mean."""
    mean = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    for x, y in clients:
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, fused=variant.fused
        )
        for rows in torch.split(torch.randperm(len(y)), batch):
            inputs = picked(x, rows) if variant.channels_last else x[rows]
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for name, tensor in model.state_dict().items():
            mean[name] += tensor / len(clients)
    return mean


def prepared(model: nn.Module, variant: Variant) -> tuple[nn.Module, dict[str, Tensor]]:
    """Lay a model out as the variant says; return it and a copy of its weights."""
    if variant.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, {name: tensor.clone() for name, tensor in model.state_dict().items()}
