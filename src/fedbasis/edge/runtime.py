"""ONNX Runtime for browsers: two files of the npm package onnxruntime-web, of one version and with known digests.

They have 14 MB, so they are not part of FedBasis. They come from a folder that the user names, from the cache, or from
npm, and their digests are compared every time.
"""

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pflbed.cache import cache_dir
from pflbed.errors import InputError
from pflbed.files import replacing

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
CODE, BINARY = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
DIGESTS = {
    CODE: "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    BINARY: "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
"""The sha256 of the files in the folder dist of the package."""
PLACES = (".", "dist", "package/dist", f"node_modules/{PACKAGE}/dist")
"""Where the files may be in a folder that is named."""
SECONDS = 300
LICENCE = """MIT License

Copyright (c) Microsoft Corporation

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated \
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the \
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit \
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the \
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE \
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR \
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR \
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."""


@dataclass(frozen=True)
class BrowserRuntime:
    """The two files, as bytes."""

    code: bytes
    binary: bytes


def find_runtime(folder: Path | None = None, *, download: bool = True) -> BrowserRuntime:
    """Return the runtime: from ``folder`` if one is given, else from the cache, else from npm, which fills the cache.

    Args:
        folder: A folder with the two files, or with the package; nothing else is then tried.
        download: Whether npm may be asked.
    """
    if folder is not None:
        found = _read(folder)
        if found is None:
            raise InputError(
                f"The runtime of the page must be a folder with {CODE} and {BINARY} of {PACKAGE} {VERSION}, but "
                f"{folder} has not both; unpack 'npm pack {PACKAGE}@{VERSION}' there."
            )
        return _checked(found, str(folder))
    kept = cached()
    if (found := _read(kept)) is not None and not _wrong(found):
        return _checked(found, str(kept))
    if not download or shutil.which("npm") is None:
        why = "npm is not installed" if download else "npm may not be asked"
        raise InputError(
            f"The page needs {PACKAGE} {VERSION}, but the cache has no copy and {why}; install npm, or get the package "
            "on another machine and give its folder with --runtime."
        )
    runtime = _checked(_from_npm(), f"{PACKAGE} {VERSION} from npm")
    for name, data in ((CODE, runtime.code), (BINARY, runtime.binary)):
        with replacing(kept / name) as temporary:
            temporary.write_bytes(data)
    return runtime


def cached() -> Path:
    """Return the folder of the cache that holds the runtime, or will."""
    return cache_dir() / f"{PACKAGE}-{VERSION}"


def _read(folder: Path) -> dict[str, bytes] | None:
    for place in PLACES:
        if all((folder / place / name).is_file() for name in DIGESTS):
            return {name: (folder / place / name).read_bytes() for name in DIGESTS}
    return None


def _wrong(files: Mapping[str, bytes]) -> list[str]:
    return [name for name, digest in DIGESTS.items() if sha256(files[name]).hexdigest() != digest]


def _checked(files: Mapping[str, bytes], where: str) -> BrowserRuntime:
    if wrong := _wrong(files):
        raise InputError(
            f"The runtime of the page must be {PACKAGE} {VERSION} (by its sha256), but {wrong[0]} of {where} is "
            "another file; get the package again."
        )
    return BrowserRuntime(files[CODE], files[BINARY])


def _from_npm() -> dict[str, bytes]:
    """Let npm fetch the package, and read the two files out of it; nothing of it is run."""
    with tempfile.TemporaryDirectory() as scratch:
        command = ["npm", "pack", f"{PACKAGE}@{VERSION}", "--silent", "--ignore-scripts"]
        try:
            ended = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _no_answer(f"it was stopped ({type(error).__name__})") from error
        archives = list(Path(scratch).glob("*.tgz"))
        if ended.returncode or len(archives) != 1:
            said = ended.stderr.strip().splitlines()
            raise _no_answer(said[-1][:200] if said else f"it ended with code {ended.returncode}")
        files = {}
        try:
            with tarfile.open(archives[0]) as archive:
                for name in DIGESTS:
                    member = archive.extractfile(f"package/dist/{name}")
                    files[name] = b"" if member is None else member.read()
        except (KeyError, tarfile.TarError, EOFError, OSError) as error:
            raise _no_answer(f"its package lacks a file or is damaged: {error}") from error
    return files


def _no_answer(why: str) -> InputError:
    return InputError(
        f"The page needs {PACKAGE} {VERSION} from npm, but npm did not get it ({why}); check the network, or give a "
        "folder that has it with --runtime."
    )
