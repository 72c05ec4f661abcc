"""Ask a prefork process to run a program: ``python prefork_request.py SOCKET PROGRAM [ARGUMENT ...]``.

It uses the standard library alone, so that it starts in milliseconds.
"""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

SOCKET = "socket"


def receive(connection: socket.socket, largest: int) -> tuple[dict[str, Any], list[int]]:
    """Read a request: its length, the text, and the descriptors of the outputs."""
    head, outputs, _, _ = socket.recv_fds(connection, 8, 2)
    try:
        length, text = int.from_bytes(head, "little"), b""
        if len(head) != 8 or length > largest:
            raise ValueError(f"A request must have at most {largest} bytes.")
        while len(text) < length:
            piece = connection.recv(length - len(text))
            if not piece:
                raise ValueError("A request was cut short.")
            text += piece
        return json.loads(text), outputs
    except BaseException:
        for output in outputs:
            os.close(output)
        raise


def send(connection: socket.socket, command: list[str]) -> bool:
    """Send a request; return whether the process was forked."""
    request = {"command": command, "environment": dict(os.environ), "place": str(Path.cwd())}
    text = json.dumps(request).encode()
    socket.send_fds(connection, [len(text).to_bytes(8, "little")], [1, 2])
    connection.sendall(text)
    return connection.recv(1) == b"1"


def main() -> None:
    """Ask; if nobody answers, run the program."""
    path, *command = sys.argv[1:]
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            done = send(connection, command)
    except OSError:
        done = False
    if not done:
        os.execv(command[0], command)


if __name__ == "__main__":
    main()
