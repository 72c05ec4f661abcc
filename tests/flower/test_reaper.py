"""When whoever started a deployment is gone, so are its processes."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedbasis.flower import reaper
from helpers.cli_trials import wait_until


def test_the_reaper_ends_everything_when_its_parent_is_killed(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    code = (
        "import subprocess, sys, time\n"
        f"reaper = subprocess.Popen([sys.executable, '-m', {reaper.__name__!r}, {mark!r}], stdin=-1)\n"
        "deaf = 'import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); print(1, flush=True); time.sleep(6000)'\n"
        f"child = subprocess.Popen([sys.executable, '-c', deaf], env={{'{reaper.MARK}': {mark!r}}}, stdout=-1)\n"
        "child.stdout.read(1)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(6000)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert reaper.marked(mark) == {child}
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not reaper.marked(mark))
