"""Named tensors: means, differences, sizes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbasis.tensors.params import StreamingMean, nbytes, require_finite, require_same
from fedbasis.tensors.seeding import torch_generator
from pflbed.errors import InputError


@given(st.lists(st.tuples(st.floats(0.1, 10), st.integers(0, 1000)), min_size=1, max_size=6))
def test_streaming_mean_is_the_weighted_mean(parts: list[tuple[float, int]]) -> None:
    tensors = [torch.randn(4, 3, generator=torch_generator(seed)) for _, seed in parts]
    mean = StreamingMean()
    for (weight, _), tensor in zip(parts, tensors, strict=True):
        mean.add({"w": tensor}, weight)
    wanted = np.average([t.double().numpy() for t in tensors], axis=0, weights=[weight for weight, _ in parts])
    np.testing.assert_allclose(mean.result()["w"].numpy(), wanted, rtol=1e-6, atol=1e-7)


def test_differences_are_named() -> None:
    shapes = {"a": torch.Size([2]), "b": torch.Size([3])}
    with pytest.raises(InputError, match="'b' is missing; 'c' is not expected; 'a' has shape"):
        require_same({"a": torch.zeros(1), "c": torch.zeros(1)}, shapes, "It")


def test_not_finite_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="g/w"):
        require_finite({"g": {"w": torch.tensor([1.0, math.nan])}}, "It")


def test_nothing_to_average() -> None:
    with pytest.raises(InputError, match="at least one update"):
        StreamingMean().result()


def test_bytes() -> None:
    assert nbytes({"a": {"x": torch.zeros(3)}, "b": {"y": torch.zeros(2, dtype=torch.float64)}}) == 28
