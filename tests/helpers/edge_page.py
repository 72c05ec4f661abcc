"""The page of ``fedbasis export --to page`` in a browser: built with changes, filled with files, and its functions."""

import base64
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedbasis.edge.page import WORKER_SCRIPTS, packed, source
from fedbasis.edge.runtime import cached, find_runtime
from helpers.browser import SECONDS, Tab
from pflbed.errors import InputError

RUNTIME = Path(os.environ.get("FEDBASIS_RUNTIME") or cached())
"""Where onnxruntime-web is: in the user's cache, as this is read before tests get a cache of their own."""
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
"""No name is found; this machine can be reached, so that a request which is not refused arrives."""
FUNCTIONS = """<!doctype html><meta charset="utf-8"><title>functions</title><script>{script}</script><script>
const given = (text) => fromBase64(text);
const returned = async (bytes) => {{
  const whole = new Uint8Array(bytes.buffer ?? bytes, bytes.byteOffset ?? 0, bytes.byteLength);
  return await new Promise((done) => {{
    const reader = new FileReader();
    reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.readAsDataURL(new Blob([whole]));
  }});
}};
</script>"""


def runtime_folder() -> Path:
    """Return a folder with the runtime; without one a test has nothing to say."""
    try:
        find_runtime(RUNTIME)
    except InputError as error:
        pytest.skip(f"no runtime for the page here ({error})")
    return RUNTIME


def functions_page(folder: Path) -> Path:
    """Write a page that has the functions of the worker and nothing else."""
    script = source([name for name in WORKER_SCRIPTS if name != "worker.js"])
    (folder / "functions.html").write_text(FUNCTIONS.format(script=script), encoding="utf-8")
    return folder / "functions.html"


def given(data: bytes) -> str:
    """Return an expression for bytes."""
    return f"given('{base64.b64encode(data).decode()}')"


def returned(tab: Tab, expression: str) -> bytes:
    """Evaluate an expression whose value is an array, or the promise of one, and return its bytes."""
    text: str = tab.run(f"(async () => returned(await ({expression})))()")
    return base64.b64decode(text)


def changed(page: Path, out: Path, name: str, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write a page whose embedded json file is another."""
    import gzip

    text = page.read_text(encoding="utf-8")
    block = re.compile(rf'(<script type="text/plain" data-file="{re.escape(name)}">)([^<]*)(</script>)')
    match = block.search(text)
    assert match is not None
    value = json.loads(gzip.decompress(base64.b64decode(match[2])))
    change(value)
    written = packed(json.dumps(value).encode())
    out.write_text(text[: match.start(2)] + written + text[match.end(2) :], encoding="utf-8")
    return out


def open_page(tab: Tab, page: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
    """Open the page and wait until it can be used."""
    tab.open(page, width, height, dark)
    tab.wait("!!self.app && (app.opened === true || !find('trouble').hidden)")


def start(tab: Tab, page: Path) -> None:
    """Have the page without images; opening it costs some seconds, so it is opened only if another is shown."""
    if tab.run("location.href") == page.resolve().as_uri():
        tab.run("app.clearAll()")
    else:
        open_page(tab, page)


def choose(tab: Tab, selector: str, paths: Sequence[Path]) -> None:
    """Give files to an input, as a user chooses them; a folder stands for all files in it."""
    before = tab.run("app.additions")
    give(tab, selector, paths)
    tab.wait(f"app.additions > {before}")  # a browser lists a folder in its own time


def give(tab: Tab, selector: str, paths: Sequence[Path]) -> None:
    """Give files to an input and do not wait."""
    root = tab.call("DOM.getDocument")["root"]["nodeId"]
    node = tab.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
    tab.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])


def fit(tab: Tab) -> dict[str, Any]:
    """Press the button and return what the result says."""
    assert not tab.run("find('fit').disabled"), tab.run("find('ready').textContent")
    tab.run("app.result = null; find('fit').click()")
    tab.wait("app.result !== null || !find('trouble').hidden")
    assert tab.run("find('trouble').hidden"), tab.run("find('trouble').textContent")
    tab.wait("!app.fitting")
    result: dict[str, Any] = tab.run("(({files, ...rest}) => rest)(app.result)")
    return result


def download(tab: Tab, name: str, folder: Path) -> Path:
    """Press a link and wait for the file."""
    tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    tab.run(f"document.querySelector('a[download=\"{name}\"]').click()")
    ends = time.monotonic() + SECONDS
    while not (folder / name).exists():
        assert time.monotonic() < ends
        time.sleep(0.02)
    return folder / name
