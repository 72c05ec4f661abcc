"""What the page is made of: the runtime by its digest, a policy that names every script, text that stays text."""

import base64
import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from fedbasis import cli
from fedbasis.edge import page as page_module
from fedbasis.edge import runtime
from fedbasis.edge.bundle import ABOUT, APPLY, MEASURE, SKELETON, STEP
from fedbasis.edge.page import header_bytes, packed, published_graphs, render, write_page
from fedbasis.networks.models import Network
from fedbasis.serving import artifact
from helpers.cli_running import run_command
from pflbed.errors import InputError
from pflbed.files import sha256_of
from serving.artifacts import bases_of, card_of
from shapes import write_images

FILES = {runtime.CODE: b"export default 1;", runtime.BINARY: b"\0asm"}


@pytest.fixture
def small_runtime(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Two small files with their digests, in place of 14 MB."""
    monkeypatch.setattr(runtime, "DIGESTS", {name: sha256(data).hexdigest() for name, data in FILES.items()})
    return FILES


def unpack(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("place", runtime.PLACES)
def test_the_runtime_of_a_folder(tmp_path: Path, small_runtime: dict[str, bytes], place: str) -> None:
    unpack(tmp_path / "given" / place, small_runtime)
    found = runtime.find_runtime(tmp_path / "given")
    assert (found.code, found.binary) == tuple(small_runtime.values())


def test_another_runtime_is_refused(tmp_path: Path, small_runtime: dict[str, bytes]) -> None:
    with pytest.raises(InputError, match="has not both; unpack 'npm pack onnxruntime-web@"):
        runtime.find_runtime(tmp_path)
    unpack(tmp_path / "other", {**small_runtime, runtime.BINARY: b"other"})
    with pytest.raises(InputError, match=r"\(by its sha256\), but ort-wasm-simd-threaded.wasm of .* is another file"):
        runtime.find_runtime(tmp_path / "other")


@pytest.fixture
def npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[dict[str, bytes] | None], list[Any]]:
    """Put a program in place of npm, which packs these files, or fails."""
    monkeypatch.setenv("FEDBASIS_CACHE", str(tmp_path / "cache"))

    def install(files: dict[str, bytes] | None) -> list[Any]:
        calls: list[Any] = []

        def run(command: list[str], cwd: str, **_: Any) -> "subprocess.CompletedProcess[str]":
            calls.append(command)
            if files is None:
                return subprocess.CompletedProcess(command, 1, "", "npm error code ENOTFOUND")
            with tarfile.open(Path(cwd) / "package.tgz", "w:gz") as archive:
                for name, data in files.items():
                    member = tarfile.TarInfo(f"package/dist/{name}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(shutil, "which", lambda name: "npm")
        monkeypatch.setattr(subprocess, "run", run)
        return calls

    return install


def test_npm_is_asked_once(
    small_runtime: dict[str, bytes], npm: Callable[[dict[str, bytes] | None], list[Any]]
) -> None:
    calls = npm(small_runtime)
    assert runtime.find_runtime().binary == small_runtime[runtime.BINARY]
    assert runtime.find_runtime().code == small_runtime[runtime.CODE]  # from the cache
    assert len(calls) == 1
    assert f"onnxruntime-web@{runtime.VERSION}" in calls[0]
    (runtime.cached() / runtime.CODE).write_bytes(b"changed")
    assert runtime.find_runtime().code == small_runtime[runtime.CODE]  # what was changed is fetched again
    assert len(calls) == 2


def test_npm_cannot_be_trusted_either(
    small_runtime: dict[str, bytes], npm: Callable[[dict[str, bytes] | None], list[Any]]
) -> None:
    npm({**small_runtime, runtime.CODE: b"other"})
    with pytest.raises(InputError, match="from npm is another file"):
        runtime.find_runtime()
    assert not runtime.cached().exists()
    npm({runtime.CODE: b"alone"})
    with pytest.raises(InputError, match="lacks a file or is damaged"):
        runtime.find_runtime()
    npm(None)
    with pytest.raises(InputError, match=r"npm did not get it \(npm error code ENOTFOUND\); check the network"):
        runtime.find_runtime()


def test_without_npm_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDBASIS_CACHE", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(InputError, match=r"npm is not installed; install npm, or get .* with --runtime"):
        runtime.find_runtime()
    with pytest.raises(InputError, match="npm may not be asked"):
        runtime.find_runtime(download=False)


def test_the_policy_names_the_only_script_and_the_only_style() -> None:
    text = render({"card.json": packed(b"{}")}, "Title", "0" * 64)
    policy = unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', text)[0])
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe-inline" not in policy
    assert "'unsafe-eval'" not in policy
    for tag in ("script", "style"):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.findall(r"\b(?:src|href)=[\"']?http", text)
    addresses = set(re.findall(r"https?://[^\s\"'`)<]+", text))
    assert addresses == {"https://example.invalid/", "http://www.w3.org/2000/svg"}  # no request goes to either


def test_a_title_cannot_end_its_element() -> None:
    text = render({}, "</title></h1><script>alert(1)</script>", "0" * 64)
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def publish(folder: Path) -> Path:
    network = Network("cnn-small", 3, 8, {"norm": "batch", "width": 8})
    artifact.save(folder, bases_of(network), card_of(network))
    return folder


def pretend_export(folder: Path, **_: Any) -> None:
    """Write files in place of graphs, which takes no time."""
    names = (STEP, APPLY, MEASURE, SKELETON)
    for name in names:
        (folder / name).write_bytes(name.encode())
    digests = {name: sha256_of(folder / name) for name in (*names, artifact.TENSORS)}
    (folder / ABOUT).write_text(json.dumps({"files": digests, "card": {}}), encoding="utf-8")


def embedded(page: Path) -> dict[str, bytes]:
    blocks = re.findall(r'data-file="([^"]+)">([^<]*)</script>', page.read_text(encoding="utf-8"))
    return {name: base64.b64decode(text) for name, text in blocks if name != "worker.js"}


@pytest.mark.parametrize("bits", [3, 4, 8, None])
def test_what_is_embedded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_runtime: dict[str, bytes], bits: Any
) -> None:
    import gzip

    monkeypatch.setattr(page_module, "export_edge", pretend_export)
    bases = publish(tmp_path / "bases")
    given = unpack(tmp_path / "runtime", small_runtime)
    made = write_page(bases, tmp_path / "fit.html", bits=bits, runtime_folder=given)
    again = write_page(bases, tmp_path / "again.html", bits=bits, runtime_folder=given)
    assert made.path.read_bytes() == again.path.read_bytes()  # the same bytes from the same bases
    assert made.size == made.path.stat().st_size
    files = {name: gzip.decompress(data) for name, data in embedded(made.path).items()}
    assert files["runtime.wasm"] == small_runtime[runtime.BINARY]
    assert files[STEP] == STEP.encode()
    card = json.loads(files["card.json"])
    assert "coding" not in card
    assert card["sha256"] == sha256(files["bases"]).hexdigest()
    assert ("header" in files) == (bits is not None)
    if bits is None:
        assert files["bases"] == (bases / artifact.TENSORS).read_bytes()
    else:
        assert len(files["bases"]) < (bases / artifact.TENSORS).stat().st_size
    text = made.path.read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    assert str(Path.home()) not in text


def test_graphs_beside_the_bases_are_used_if_they_are_whole(tmp_path: Path) -> None:
    bases, other = publish(tmp_path / "bases"), publish(tmp_path / "other")
    assert published_graphs(bases, other) is None
    pretend_export(bases)
    found = published_graphs(bases, other)
    assert found is not None
    assert set(found) == {ABOUT, STEP, APPLY, MEASURE, SKELETON}
    assert header_bytes(bases / artifact.TENSORS) == header_bytes(other / artifact.TENSORS)
    (bases / STEP).write_bytes(b"changed")
    assert published_graphs(bases, other) is None
    (bases / ABOUT).write_text("{}")
    assert published_graphs(bases, other) is None


def test_examples_are_bounded_and_named(tmp_path: Path, small_runtime: dict[str, bytes]) -> None:
    bases, given = publish(tmp_path / "bases"), unpack(tmp_path / "runtime", small_runtime)
    images = write_images(tmp_path / "images", 2)
    (images / "circle").rename(images / "zebra")
    with pytest.raises(InputError, match=r"but 'zebra' is not .*; rename it"):
        write_page(bases, tmp_path / "fit.html", examples=images, runtime_folder=given)
    many = write_images(tmp_path / "many", page_module.MOST_EXAMPLES // 3 + 1)
    with pytest.raises(InputError, match="at most 500 images of 20 MB in all"):
        write_page(bases, tmp_path / "fit.html", examples=many, runtime_folder=given)
    with pytest.raises(InputError, match=r"is a folder; add a name such as fit\.html"):
        write_page(bases, tmp_path, runtime_folder=given)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--to", "page"), "--to page needs --out"),
        (("--to", "edge", "--bits", "8"), "--bits is for --to page; leave it out."),
        (("--to", "page", "--out", "fit.html", "--statistics", "own"), "--statistics is for --to edge"),
        (("--to", "page", "--out", "there.html"), "must not exist yet, but it does; replace it with --overwrite."),
        (("--to", "page", "--out", "fit.html", "--runtime", "nowhere"), "nowhere has not both"),
    ],
)
def test_the_command_refuses_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    publish(tmp_path / "bases")
    (tmp_path / "there.html").touch()
    ended = run_command("export", "bases", *argv)
    assert ended.code == 2
    assert said in " ".join(ended.errors.split())
    assert not (tmp_path / "fit.html").exists()


def test_the_demo_writes_the_page_or_says_in_a_line_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(page_module, "write_page", lambda run, path, **options: asked.append(options["examples"]))
    cli._page(tmp_path / "run", tmp_path / "client", tmp_path / "fit.html")
    assert asked == [tmp_path / "client"]
    assert f"Page: {tmp_path / 'fit.html'}" in capsys.readouterr().out

    def refuse(*_: Any, **__: Any) -> None:
        raise InputError("The page needs onnxruntime-web, but npm is not installed; install npm.")

    monkeypatch.setattr(page_module, "write_page", refuse)
    cli._page(tmp_path / "run", tmp_path / "client", tmp_path / "fit.html")
    _, line = capsys.readouterr().out.splitlines()
    assert line.startswith("No page: The page needs onnxruntime-web, but npm is not installed; install npm. Then run: ")
    assert line.endswith(f"fedbasis export {tmp_path / 'run'} --to page --out {tmp_path / 'fit.html'}")
