"""Requests to fork a program; that real federations work with forks is shown in test_federation."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedbasis.flower import prefork, prefork_request


def test_a_request_carries_arguments_environment_place_and_outputs(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        there.sendall(b"1")
        os._exit(0 if prefork_request.send(here, ["program", "ü", "--token", "x"]) else 1)
    assert there.recv(0) == b""
    with there, here:
        request, outputs = prefork_request.receive(there, 2**20)
    os.waitpid(child, 0)
    assert request["command"] == ["program", "ü", "--token", "x"]
    assert request["environment"] == dict(os.environ)
    assert Path(request["place"]) == Path.cwd()
    assert len(outputs) == 2
    for output in outputs:
        os.close(output)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((2**40).to_bytes(8, "little"), "at most"),
        ((9).to_bytes(8, "little") + b"{}", "cut short"),
        (b"\x01", "at most"),
    ],
)
def test_a_request_is_bounded(data: bytes, message: str) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(data)
        here.shutdown(socket.SHUT_WR)
        with pytest.raises(ValueError, match=message):
            prefork_request.receive(there, 1000)


def test_without_a_server_the_original_program_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-IS", prefork_request.__file__, str(tmp_path / "nobody"), "/bin/echo", "it", "ran"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "it ran\n"


def test_the_programs_are_found_before_flowers_own(tmp_path: Path) -> None:
    prefork.install(tmp_path)
    for name in prefork.PROGRAMS:
        text = (prefork.programs_of(tmp_path) / name).read_text()
        assert str(tmp_path / prefork_request.SOCKET) in text
        assert str(Path(sys.executable).parent / name) in text
        assert (prefork.programs_of(tmp_path) / name).stat().st_mode & 0o777 == 0o700


def test_a_fork_is_the_program_that_was_asked_for(tmp_path: Path) -> None:
    """It has the arguments, the environment, the folder and the outputs of whoever asked, and its exit code."""
    seen = tmp_path / "seen"

    def start() -> None:
        seen.write_text(json.dumps([sys.argv, os.environ["ONLY"], str(Path.cwd()), len(os.environ)]))
        os.write(1, b"said")
        raise SystemExit(3)

    with (tmp_path / "out").open("wb") as out:
        child = os.fork()
        if child == 0:
            request = {"command": ["/x/flwr-clientapp", "--a"], "environment": {"ONLY": "1"}, "place": str(tmp_path)}
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            prefork._become(start, request, [out.fileno(), out.fileno()])
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 3
    assert json.loads(seen.read_text()) == [["/x/flwr-clientapp", "--a"], "1", str(tmp_path), 1]
    assert "said" in (tmp_path / "out").read_text()


def test_a_command_ends_with_its_own_exit_code() -> None:
    """Without a command there is a line about its use."""
    ended = subprocess.run([sys.executable, "-m", prefork.__name__], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.startswith("usage: ")) == (2, True)
