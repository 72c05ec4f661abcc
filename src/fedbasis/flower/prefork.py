"""Fork Flower's app processes from one that has imported torch already.

Flower starts the program ``flwr-clientapp`` for every message to a node, and ``flwr-serverapp`` for every run. Each
imports torch and Flower, which takes longer than a small round. Flower 1.41 cannot keep such a process, but it looks
for these programs on the PATH. ``python -m fedbasis.flower.prefork COMMAND ...`` runs a command, such as
``flower-supernode``, with programs of these names first on its PATH: they ask this process for a fork that does the
same as the original program, with the same arguments, environment and output. Every message still has a process of its
own. If this process cannot be reached, they run the original.
"""

import contextlib
import ctypes
import importlib
import os
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedbasis.flower import prefork_request

PROGRAMS = {"flwr-clientapp": "flwr.supernode.cli", "flwr-serverapp": "flwr.superlink.cli"}
"""The programs that are forked, and the modules that have their functions."""
PRELOADED = ("fedbasis.flower.client", "fedbasis.flower.server", "fedbasis.serving.new_client", "fedbasis.methods")
LARGEST_REQUEST = 2**22
SUPPORTED = sys.platform == "linux"
"""Elsewhere, a fork of a process that has loaded system libraries is not safe."""


def programs_of(folder: Path) -> Path:
    """Return the folder of the programs, which a command that shall use them has first on its PATH."""
    return folder / "bin"


def install(folder: Path) -> None:
    """Write the programs."""
    programs = programs_of(folder)
    programs.mkdir(exist_ok=True)
    asking = [sys.executable, "-IS", prefork_request.__file__, str(folder / prefork_request.SOCKET)]
    for name in PROGRAMS:
        original = Path(sys.executable).parent / name
        line = shlex.join([*asking, str(original)])
        (programs / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n', encoding="utf-8")
        (programs / name).chmod(0o700)


class Server:
    """The process that is forked; it must have no threads."""

    def __init__(self, folder: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / prefork_request.SOCKET))
        self._listener.listen(128)
        for name in (*PROGRAMS.values(), *PRELOADED):
            importlib.import_module(name)

    def serve(self, over: Callable[[], bool]) -> None:
        """Answer requests until ``over()``, which is asked twice a second."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not over():
                if selector.select(0.5):
                    connection, _ = self._listener.accept()
                    with connection, contextlib.suppress(OSError, ValueError, KeyError):
                        self._fork(connection)

    def _fork(self, connection: socket.socket) -> None:
        connection.settimeout(30)
        request, outputs = prefork_request.receive(connection, LARGEST_REQUEST)
        try:
            name = Path(request["command"][0]).name
            start = getattr(importlib.import_module(PROGRAMS[name]), name.replace("-", "_"))
            if os.fork() == 0:
                self._listener.close()
                _become(start, request, outputs)
            connection.sendall(b"1")
        finally:
            for output in outputs:
                os.close(output)


def _become(start: Callable[[], object], request: Mapping[str, object], outputs: Sequence[int]) -> None:
    """Be the process of a program, in a fork."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for target, output in enumerate(outputs, 1):
            os.dup2(output, target)
        command, environment, place = request["command"], request["environment"], request["place"]
        assert isinstance(command, list)
        assert isinstance(environment, Mapping)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(str(place))
        sys.argv = list(command)
        _name_process(Path(command[0]).name)
        _draw_anew()
        start()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001  what a program prints that fails
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _name_process(name: str) -> None:
    """Set the name that ``ps -o comm`` shows."""
    with contextlib.suppress(OSError, AttributeError):
        set_name = 15  # PR_SET_NAME
        ctypes.CDLL(None).prctl(set_name, name.encode(), 0, 0, 0)


def _draw_anew() -> None:
    """Forks must not draw the same numbers from numpy's global generator; Python's own is seeded anew by itself."""
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


def run(command: Sequence[str], folder: Path) -> int:
    """Run a command and serve its requests until it ends.

    Args:
        command: The program and its arguments.
        folder: A private folder for the socket and the programs.

    Returns:
        The command's exit code.
    """
    if SUPPORTED:
        install(folder)
    path = os.pathsep.join([str(programs_of(folder)), os.environ.get("PATH", "")])
    child = subprocess.Popen(list(command), env={**os.environ, "PATH": path})
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, frame: child.send_signal(got))
    if SUPPORTED:
        Server(folder).serve(lambda: child.poll() is not None or _collect(child))
    return child.wait()


def _collect(child: "subprocess.Popen[bytes]") -> bool:
    """Collect forks that have ended, so that they do not stay as zombies."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == child.pid:
                break
            os.waitpid(ended.si_pid, 0)
    return child.poll() is not None


def main() -> int:
    """Run the command of the arguments, with ``--folder DIR`` before it if the folder is made already."""
    command = sys.argv[1:]
    if command[:1] == ["--folder"] and len(command) > 2:
        return run(command[2:], Path(command[1]))
    if not command:
        sys.stderr.write("usage: python -m fedbasis.flower.prefork COMMAND [ARGUMENT ...]\n")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="fedbasis-"))
    try:
        return run(command, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
