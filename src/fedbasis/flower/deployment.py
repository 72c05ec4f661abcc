"""Start a SuperLink and SuperNodes on this host, run a federation's app on them, and stop all processes at the end.

The connection uses TLS and node authentication, unless ``insecure`` is set. Flower's usage statistics, update checks
and package installation are turned off. A reaper process stops all processes when this one closes the deployment, is
stopped or is killed.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedbasis.flower import keys, prefork, reaper
from fedbasis.flower.project import LOOPBACK, NodeEntry, Project
from pflbed.errors import InputError
from pflbed.foreign import read_json_object

PRIVATE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
}
START_SECONDS = 300.0
STOP_SECONDS = 20.0
LINK, OUTCOME = "federation", "outcome.json"


class Deployment:
    """The processes of a federation on this host, as a context manager.

    Args:
        project: The federation's folder.
        insecure: Whether to use neither TLS nor node authentication.
        port: The port of the SuperLink; None: a free one.
    """

    def __init__(self, project: Project, insecure: bool = False, port: int | None = None) -> None:
        self._project, self._insecure, self.port = project, insecure, port or free_port()
        self.mark = uuid.uuid4().hex
        self.logs = project.folder.absolute() / ".flower" / "logs"
        self.superlink: subprocess.Popen[bytes] | None = None
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._reaper: subprocess.Popen[str] | None = None
        self._prefork = Path()

    def __enter__(self) -> Self:
        self._prefork = Path(tempfile.mkdtemp(prefix="fedbasis-"))
        self.logs.mkdir(parents=True, exist_ok=True)
        self._reaper = subprocess.Popen(
            [sys.executable, "-m", reaper.__name__, self.mark], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            self._start_superlink()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop all processes."""
        if self._reaper is not None and self._reaper.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._reaper.stdin.close()
            self._reaper.wait()
        for process in self._started:
            process.wait()
        self._reaper = None
        shutil.rmtree(self._prefork, ignore_errors=True)

    def register(self, nodes: Sequence[NodeEntry]) -> None:
        """Register the nodes' public keys and names at the SuperLink."""
        if self._insecure:
            return
        commands = [
            ["flwr", "supernode", "register", str(self._key(node).with_suffix(".pub")), LINK, "--name", node.name]
            for node in nodes
        ]
        started = [(node, self._start(command, "register")) for node, command in zip(nodes, commands, strict=True)]
        for node, process in started:
            if process.wait():
                raise InputError(
                    f"The SuperLink must accept the key of node {node.name}, but it did not{self._why('register')}."
                )

    def superlink_port(self) -> int:
        """Return the port by which the next node connects to the SuperLink."""
        return self.port

    def start_node(self, node: NodeEntry) -> subprocess.Popen[bytes]:
        """Start a SuperNode with its name, data and state folder."""
        own = {"name": node.name, "data": str(self._project.place(node.data)), "state": str(self._project.state(node))}
        settings = " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in own.items())
        command = ["flower-supernode", "--superlink", f"{LOOPBACK}:{self.superlink_port()}", "--port", str(free_port())]
        command += ["--node-config", settings]
        if self._insecure:
            command += ["--insecure"]
        else:
            command += ["--root-certificates", str(self._keys / keys.AUTHORITY)]
            command += ["--auth-supernode-private-key", str(self._key(node))]
        self._project.state(node).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.nodes[node.name] = self._start(command, self._key(node).stem)
        return self.nodes[node.name]

    def run(self, out: Path, watch: Callable[[], None] | None = None, **settings: str) -> dict[str, Any]:
        """Run the app to its end.

        Args:
            out: The folder of run folders.
            watch: Called repeatedly while the app runs.
            **settings: Other values of the app's run config.

        Returns:
            The content of ``outcome.json``.
        """
        out.mkdir(parents=True, exist_ok=True)
        outcome = out.absolute() / OUTCOME
        outcome.unlink(missing_ok=True)
        values = {"out": str(out.absolute()), **settings}
        run_config = " ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
        app = str(self._project.app.absolute())
        before = self._log("run")
        process = self._start(["flwr", "run", app, LINK, "--stream", "--run-config", run_config], "run")
        try:
            while process.poll() is None and not outcome.exists():
                self._require_alive()
                if watch is not None:
                    watch()
                time.sleep(0.1)
        finally:
            process.terminate()  # it only streams the app's log
            if not outcome.exists():
                self._give_up(self._log("run").removeprefix(before))
        if not outcome.exists():
            raise InputError(f"The server's app must write {OUTCOME}, but it did not{self._why('run')}.")
        found = read_json_object(outcome, "The outcome")
        if "error" in found:
            raise InputError(found["error"])
        return found

    def _give_up(self, log: str) -> None:
        """Stop a run whose app ended without an outcome; the nodes would wait for it up to a minute."""
        if self.superlink is None or self.superlink.poll() is not None:
            return  # without a SuperLink, flwr would retry for long
        for number in re.findall(r"started run (\d+)", log)[-1:]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._start(["flwr", "stop", number, LINK], "stop").wait(STOP_SECONDS)

    @property
    def _keys(self) -> Path:
        return self._project.keys.absolute()

    def _key(self, node: NodeEntry) -> Path:
        return self._project.place(node.key)

    def _start_superlink(self) -> None:
        command = [sys.executable, "-m", prefork.__name__, "--folder", str(self._prefork)]
        command += ["flower-superlink", "--host", LOOPBACK, "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation"]
        link = {"address": f"{LOOPBACK}:{self.port}"}
        if self._insecure:
            command += ["--insecure"]
            connection = "insecure = true\n"
        else:
            for option, name in (("ca-certfile", keys.AUTHORITY), ("certfile", keys.CERTIFICATE)):
                command += [f"--ssl-{option}", str(self._keys / name)]
            command += ["--ssl-keyfile", str(self._keys / keys.SERVER_KEY), "--enable-supernode-auth"]
            connection = f"root-certificates = {json.dumps(str(self._keys / keys.AUTHORITY))}\n"
        for name in ("run", "register", "stop"):
            self._home(name).mkdir(parents=True, exist_ok=True)
            text = f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{link["address"]}"\n{connection}'
            (self._home(name) / "config.toml").write_text(text, encoding="utf-8")
        self.superlink = self._start(command, "superlink")
        ends = time.monotonic() + START_SECONDS
        while time.monotonic() < ends:
            self._require_alive()
            with contextlib.suppress(OSError):
                socket.create_connection((LOOPBACK, self.port), timeout=1).close()
                return
            time.sleep(0.05)
        raise InputError(f"The SuperLink must answer at port {self.port} within five minutes, but it does not.")

    def _require_alive(self) -> None:
        if self.superlink is not None and self.superlink.poll() is not None:
            raise InputError(f"The SuperLink must run, but it ended{self._why('superlink')}.")

    def _home(self, name: str) -> Path:
        return self._project.folder.absolute() / ".flower" / name

    def _start(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        """Start a program of Flower, which does not receive Ctrl-C, with its own home and log."""
        places = [prefork.programs_of(self._prefork), Path(sys.executable).parent, os.environ.get("PATH", "")]
        path = os.pathsep.join(map(str, places))
        own = {reaper.MARK: self.mark, "FLWR_HOME": str(self._home(name)), "PATH": path}
        with (self.logs / f"{name}.log").open("ab") as log:
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                    env={**os.environ, **PRIVATE, **own},
                )  # fmt: skip
            except FileNotFoundError:
                raise InputError(
                    f"A federation needs Flower's programs, but there is no {command[0]}; run pip install -e "
                    "'.[flower]' in the checkout."
                ) from None
        self._started.append(process)
        if self._reaper is not None and self._reaper.stdin is not None:
            print(process.pid, file=self._reaper.stdin, flush=True)
        return process

    def _log(self, name: str) -> str:
        log = self.logs / f"{name}.log"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def _why(self, name: str) -> str:
        lines = (line.strip(" │") for line in self._log(name).split("\n"))  # flwr draws boxes around messages
        last = [line for line in lines if any(letter.isalnum() for letter in line)][-1:]
        return f" ({last[0][:200]}; see {self.logs / name}.log)" if last else ""


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])
