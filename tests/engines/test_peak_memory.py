"""The peak of memory is a process's own: not that of whoever started it, and not that of what it did before."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedbasis.engines.processes import peak_memory, reset_peak_memory

ASK = "from fedbasis.engines.processes import peak_memory; print(peak_memory())"
MEGABYTES = 300
linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="no /proc here")


@linux
def test_a_small_process_of_a_large_one_is_small() -> None:
    large = np.ones(MEGABYTES * 10**6 // 8)
    assert peak_memory() > large.nbytes
    child = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    assert int(child.stdout) < large.nbytes


@linux
def test_a_peak_can_be_forgotten() -> None:
    large = np.ones(MEGABYTES * 10**6 // 8)
    before = peak_memory()
    del large
    assert reset_peak_memory() == 0
    assert peak_memory() < before - MEGABYTES * 10**6 / 2
