"""A worker process: replaced when it dies, deaf to Ctrl-C, gone with its parent, and never a second user's script."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from fedbasis.engines.processes import WorkerDiedError, WorkerProcess, WorkerStoppedError, worker_context
from fedbasis.engines.transport import dumps, loads
from helpers import MINUTES, gone, wait_until


def echo(connection: Connection, prefix: str) -> None:
    """Answer messages; a number is the exit code, or minus the signal, to end with."""
    while True:
        message = loads(connection.recv_bytes())
        if isinstance(message, int) and message < 0:
            os.kill(os.getpid(), -message)
        elif isinstance(message, int):
            sys.exit(message)  # unlike os._exit this closes the pipe before the process ends
        elif message == "threads":
            threading.Event().wait(10 * MINUTES)
        elif message == "main":
            connection.send_bytes(dumps(vars(sys.modules["__main__"]).get("__file__")))
        else:
            connection.send_bytes(dumps((prefix + message, os.getpid())))


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    made = WorkerProcess(worker_context([]), echo, ("heard ",))
    yield made
    made.stop()
    made.join()


def ask(worker: WorkerProcess, message: Any) -> Any:
    worker.send(message)
    return worker.receive()


@pytest.mark.parametrize("message", [7, -signal.SIGKILL])
def test_its_death_is_told_with_the_exit_code_and_it_is_replaced(worker: WorkerProcess, message: int) -> None:
    assert worker.pid is None  # it starts with the first message
    answer, first = ask(worker, "one")
    assert (answer, first) == ("heard one", worker.pid)
    with pytest.raises(WorkerDiedError, match=f"^exit code {message}$") as death:
        ask(worker, message)
    assert death.value.exit_code == message
    assert death.value.killed == (message == -signal.SIGKILL)
    answer, second = ask(worker, "two")
    assert answer == "heard two"
    assert second != first


def test_one_that_died_with_nothing_to_do_is_replaced_before_the_next_message(worker: WorkerProcess) -> None:
    _, first = ask(worker, "one")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: worker.connection is not None and worker.connection.poll())  # its last thread has ended
    assert ask(worker, "two")[0] == "heard two"


def test_ctrl_c_is_not_for_it(worker: WorkerProcess) -> None:
    _, pid = ask(worker, "one")
    os.kill(pid, signal.SIGINT)
    assert ask(worker, "two") == ("heard two", pid)


def test_stopped_from_another_thread_it_ends_at_once_and_stays_so(worker: WorkerProcess) -> None:
    _, pid = ask(worker, "one")
    worker.send("threads")
    threading.Timer(0.05, worker.stop).start()
    with pytest.raises(WorkerStoppedError):
        worker.receive()
    assert gone(pid)
    with pytest.raises(WorkerStoppedError):
        worker.send("two")


def test_it_does_not_import_the_script_of_its_parent(worker: WorkerProcess) -> None:
    main = sys.modules["__main__"]
    assert ask(worker, "main") != getattr(main, "__file__", "none")
    assert sys.modules["__main__"] is main


def test_what_cannot_be_sent_is_said_here_and_starts_nothing(worker: WorkerProcess) -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        worker.send(threading.Lock())
    assert worker.pid is None
