"""Drive a headless Chromium over two pipes with its DevTools protocol: real keys, downloads and sizes of windows."""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 600.0
"""Longer than anything takes that happens at all."""


def browser() -> str:
    """Return where a browser is; without one a test has nothing to say."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    pytest.skip(f"no browser here: install one of {', '.join(BROWSERS)}")


class Tab:
    """One page in a browser of its own, which ends with the block."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._requests, self._answers = os.pipe(), os.pipe()
        theirs = (self._requests[0], self._answers[1])
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", *options]
        # the protocol wants the pipes as descriptors 3 and 4; a shell moves them there
        moved = f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}'
        command = ["bash", "-c", moved, "bash", browser(), "--remote-debugging-pipe", *flags]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={folder / 'profile'}", "about:blank"], pass_fds=theirs,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "HOME": str(folder)},
        )  # fmt: skip
        for end in theirs:
            os.close(end)
        self._number, self._buffer, self._session = 0, b"", ""

    def __enter__(self) -> "Tab":
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(SECONDS)
        os.close(self._answers[0])
        os.close(self._requests[1])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        answer = self._ask(method, parameters)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _ask(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return what answers it; events on the way are dropped."""
        self._number += 1
        request: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._requests[1], json.dumps(request).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                assert select.select([self._answers[0]], [], [], SECONDS)[0], f"no answer to {method}"
                more = os.read(self._answers[0], 1 << 16)
                assert more, "the browser ended"
                self._buffer += more
            line, _, self._buffer = self._buffer.partition(b"\0")
            answer: dict[str, Any] = json.loads(line)
            if answer.get("id") == self._number:
                return answer

    def open(self, page: Path, width: int, height: int, dark: bool = False) -> None:
        """Show a page in a window of this size and wait until it is whole."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])
        self.run("window.old = true")
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait("!window.old && document.readyState === 'complete'")

    def run(self, expression: str) -> Any:
        """Evaluate JavaScript and return its value."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key, as a hand would."""
        about: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def wait(self, condition: str) -> None:
        """Wait until an expression is true; between two pages there is nothing to ask."""
        ends = time.monotonic() + SECONDS
        asked = {"expression": condition, "returnByValue": True}
        while self._ask("Runtime.evaluate", asked).get("result", {}).get("result", {}).get("value") is not True:
            assert time.monotonic() < ends, condition
            time.sleep(0.02)
