"""Combination coefficients: sharpening, entropy, gradients."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbasis.methods.fedbasis import coefficients
from fedbasis.tensors.seeding import torch_generator


def test_sharpening_and_entropy() -> None:
    psi = torch.tensor([[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    entropy = coefficients.entropy(coefficients.alpha(psi))
    assert entropy[0] == pytest.approx(math.log(4))
    assert coefficients.entropy(coefficients.alpha(psi, 0.1))[1] < 0.01 < entropy[1]
    c = coefficients.combination(coefficients.alpha(psi), True)
    assert torch.allclose(c.sum(1), torch.ones(2))
    assert torch.allclose(c[:, 0], torch.full((2,), 0.5))


@given(st.integers(1, 6), st.booleans(), st.floats(0.1, 1), st.integers(0, 999))
def test_pull_back_equals_autograd(bases: int, major: bool, tau: float, seed: int) -> None:
    psi = torch.randn(3, bases, generator=torch_generator(seed), dtype=torch.float64).requires_grad_()
    direction = torch.randn(3, bases + major, generator=torch_generator(seed + 1), dtype=torch.float64)
    (coefficients.combination(coefficients.alpha(psi, tau), major) * direction).sum().backward()  # type: ignore[no-untyped-call]
    assert psi.grad is not None
    torch.testing.assert_close(coefficients.pull_back(psi.detach(), direction, major, tau), psi.grad)
