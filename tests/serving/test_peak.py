"""The peak of memory is that of one client: what earlier ones held and freed does not count, and bits stay the same."""

import sys

import pytest
import torch

from fedbasis.serving import peak
from fedbasis.serving.peak import PeakMemory

MEGABYTES = 2**18
"""Numbers of a float32 tensor of one megabyte."""
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux forgets a peak")


def held(megabytes: int) -> int:
    """Return the measured peak of holding so much for a moment, in tensors of one megabyte."""
    meter = PeakMemory()
    tensors = [torch.ones(MEGABYTES) for _ in range(megabytes)]
    del tensors
    meter.stop()
    assert meter.bytes is not None
    return meter.bytes


@linux
def test_the_peak_is_what_was_held_since_the_start() -> None:
    for megabytes in (40, 160, 40, 10):  # in any order
        assert held(megabytes) == pytest.approx(megabytes * 2**20, abs=6 * 2**20)


@linux
def test_what_comes_after_the_first_stop_does_not_count() -> None:
    meter = PeakMemory()
    meter.stop()
    first = meter.bytes
    tensor = torch.ones(64 * MEGABYTES)
    meter.stop()
    assert meter.bytes == first
    assert tensor.sum() > 0


def test_elsewhere_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "_malloc_trim", lambda: None)
    meter = PeakMemory()
    meter.stop()
    assert meter.bytes is None
    other = PeakMemory("meta")
    other.stop()
    assert other.bytes is None


def test_where_an_earlier_peak_cannot_be_forgotten_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "_malloc_trim", lambda: lambda size: 0)
    monkeypatch.setattr(peak, "reset_peak_memory", lambda: 123)
    meter = PeakMemory()
    meter.stop()
    assert meter.bytes is None
