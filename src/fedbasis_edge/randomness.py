"""torch's permutations without torch, so that a client sees the batches of ``fedbasis personalize``."""

import numpy as np
from numpy.typing import NDArray


class TorchGenerator:
    """The Mersenne twister, seeded as ``torch.Generator().manual_seed`` does."""

    def __init__(self, seed: int) -> None:
        self._twister = np.random.MT19937()
        self._twister._legacy_seeding(seed & 0xFFFFFFFF)

    def permutation(self, count: int) -> NDArray[np.int64]:
        """Return what ``torch.randperm`` returns."""
        rows = np.arange(count)
        for place, raw in enumerate(self._twister.random_raw(max(0, count - 1))):
            other = place + int(raw) % (count - place)
            rows[place], rows[other] = rows[other], rows[place]
        return rows


def batches(count: int, batch: int, generator: TorchGenerator) -> list[NDArray[np.int64]]:
    """Shuffle row numbers into batches; a last batch of one is merged into the one before it."""
    rows = generator.permutation(count)
    parts = [rows[start : start + batch] for start in range(0, count, batch)]
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [np.concatenate(parts[-2:])]
    return parts
