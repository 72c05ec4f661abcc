"""torch's permutations without torch."""

import pytest
import torch

from fedbasis.networks.batches import batches as torch_batches
from fedbasis_edge.randomness import TorchGenerator, batches


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**32 + 7, 2**62 + 11])
def test_permutations_are_those_of_torch(seed: int) -> None:
    theirs, ours = torch.Generator().manual_seed(seed), TorchGenerator(seed)
    for count in (40, 7, 2, 1, 700, 40):  # more draws than the twister's state has words
        assert ours.permutation(count).tolist() == torch.randperm(count, generator=theirs).tolist()


@pytest.mark.parametrize(("count", "batch"), [(40, 16), (33, 16), (17, 16), (5, 16), (2, 2)])
def test_batches_are_those_of_personalize(count: int, batch: int) -> None:
    theirs, ours = torch.Generator().manual_seed(3), TorchGenerator(3)
    for _ in range(3):
        expected = [rows.tolist() for rows in torch_batches(count, batch, theirs)]
        assert [rows.tolist() for rows in batches(count, batch, ours)] == expected
