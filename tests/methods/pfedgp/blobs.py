"""Points around one centre for every class."""

import torch
from torch import Tensor

from fedbasis.tensors.seeding import torch_generator


def blobs(count: int, classes: int, seed: int = 0, spread: float = 0.3, width: int = 4) -> tuple[Tensor, Tensor]:
    centres = 3 * torch.randn(classes, width, generator=torch_generator("centres"))
    labels = torch.arange(count) % classes
    noise = spread * torch.randn(count, width, generator=torch_generator("blobs", seed))
    return (centres[labels] + noise).double(), labels
