"""One HTML file that personalizes in a browser, offline: ``fedbasis export BASES --to page --out fit.html``.

The file holds the page, the graphs of a new client (``edge.bundle``), the bases in the compact coding, and ONNX Runtime
for browsers. Nothing in it is loaded from anywhere, and its Content-Security-Policy forbids its scripts every request.
What is embedded is base64, so that nothing in strangers' files, such as the name of a class, can end an element.
"""

import base64
import gzip
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedbasis import __version__
from fedbasis.edge import runtime
from fedbasis.edge.bundle import ABOUT, APPLY, MEASURE, SKELETON, STEP, export_edge
from fedbasis.networks.models import NetworkSource
from fedbasis.serving import artifact
from fedbasis.serving.new_client import ENOUGH, HELD_OUT, bases_at, method_of, require_fit
from fedbasis.tensors.compact import Bits
from fedbasis.tensors.seeding import numpy_generator, seed_for
from pflbed import scan_client
from pflbed.errors import InputError, did_you_mean
from pflbed.files import replacing, sha256_of
from pflbed.foreign import parse_json, read_json_object

TITLE = "Fit a model to your images"
GRAPHS = (STEP, APPLY, MEASURE, SKELETON)
PAGE_SCRIPTS = ("bytes.js", "policy.js", "draw.js", "show.js", "app.js")
WORKER_SCRIPTS = ("bytes.js", "policy.js", "random.js", "pixels.js", "tensors.js", "fit.js", "files.js", "worker.js")
DRAWN = 28
"""Images of at most this many pixels a side are small enough to be drawn by hand."""
DRAWN_GRAY = 64
"""The same for gray images."""
LONGEST_NAME = 2
"""Letters of a class whose images are drawn: digits, letters."""
MOST_EXAMPLES = 500
MOST_EXAMPLE_BYTES = 20 * 2**20
NEW_PILLOW = int(PIL.__version__.partition(".")[0]) >= 13
"""Whether Pillow scales some images along their columns first, which rounds otherwise; the page does as Pillow here."""
MAX_ABOUT = 64 * 2**20
"""Bytes of edge.json."""


@dataclass(frozen=True, kw_only=True)
class WrittenPage:
    """What was written.

    Args:
        path: The page.
        size: Its bytes.
        parts: Bytes of the embedded parts, as they are in the page.
    """

    path: Path
    size: int
    parts: Mapping[str, int]


def write_page(
    bases: Path,
    out: Path,
    *,
    bits: Bits | None = 3,
    title: str = TITLE,
    draw: bool | None = None,
    examples: Path | None = None,
    seed: int = 0,
    runtime_folder: Path | None = None,
    trust: bool = False,
    network: NetworkSource | None = None,
) -> WrittenPage:
    """Write a page that personalizes published bases in a browser.

    Args:
        bases: The artifact, coded or not, or a run folder that holds one.
        out: The file to write; one that exists is replaced.
        bits: Code the bases with differences of this many bits; None: embed them as they are. Bases that are coded
            already are embedded as they are.
        title: The heading of the page.
        draw: Whether images can be drawn; None: if the bases are for small images of classes with short names.
        examples: A folder ``<class>/<image>`` whose images the page offers as an example.
        seed: Decides the order of the images and which are held out, as in ``fedbasis personalize``.
        runtime_folder: A folder with the files of onnxruntime-web; None: the cache, or npm.
        trust: Whether code that the folder names may be run.
        network: Your own network, in place of the one that the card names.
    """
    if out.is_dir():
        raise InputError(f"The page must be a file, but {out} is a folder; add a name such as fit.html.")
    found = runtime.find_runtime(runtime_folder)  # before anything takes time
    shown = _examples(examples, artifact.read_card(bases_at(bases)).classes) if examples is not None else []
    with tempfile.TemporaryDirectory() as scratch:
        embedded = _bases(bases_at(bases), Path(scratch), bits, trust, network)
    card, about = embedded.card, parse_json(embedded.files[ABOUT], ABOUT)
    page: dict[str, Any] = {
        "draw": _drawable(card) if draw is None else draw,
        "seed": seed,
        "adapt": seed_for(seed, "client", "new client", 0, "adapt") & 0xFFFFFFFF,
        "hold_out": {"enough": ENOUGH, "share": HELD_OUT, "state": _numpy_state(seed)},
        "new_pillow": NEW_PILLOW,
        "examples": len(shown),
    }
    about.pop("card", None)  # it is embedded on its own, as that of the coded bases
    files = {
        "card.json": _json(card.as_json()),
        ABOUT: _json(about),
        "page.json": _json(page),
        **({"examples.json": _json(shown)} if shown else {}),
        **{name: data for name, data in embedded.files.items() if name != ABOUT},
        "runtime.mjs": found.code,
        "runtime.wasm": found.binary,
    }
    texts = {name: packed(data) for name, data in files.items()}
    with replacing(out) as temporary:
        temporary.write_text(render(texts, title, card.sha256), encoding="utf-8", newline="\n")
    return WrittenPage(path=out, size=out.stat().st_size, parts={name: len(text) for name, text in texts.items()})


def render(files: Mapping[str, str], title: str, digest: str) -> str:
    """Return the page.

    Args:
        files: What is embedded, by name, as ``packed`` returned it.
        title: The heading.
        digest: The sha256 of the bases, which the page prints.
    """
    style, script, worker = source(("style.css",)), source(PAGE_SCRIPTS), source(WORKER_SCRIPTS)
    environment = Environment(
        loader=PackageLoader("fedbasis.edge", "page"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    blocks = [("worker.js", _inline(worker)), *((name, _inline(text)) for name, text in files.items())]
    return environment.get_template("page.html.j2").render(
        policy=policy(style, script), title=title, style=_inline(style), script=_inline(script), files=blocks,
        version=__version__, digest=digest[:16], runtime=runtime.VERSION, licence=runtime.LICENCE,
    )  # fmt: skip


def policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy: no request at all, and no script or style but the page's own."""

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"

    rules = {
        "default-src": "'none'",
        "script-src": f"{digest(script)} 'wasm-unsafe-eval' blob:",  # blob: is the embedded runtime
        "worker-src": "blob:",
        "style-src": digest(style),
        "img-src": "blob:",
        "connect-src": "'none'",
        "form-action": "'none'",
        "base-uri": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def source(names: Sequence[str]) -> str:
    """Return some files of the folder ``page`` as one text."""
    folder = Path(__file__).with_suffix("")
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def packed(data: bytes) -> str:
    """Compress bytes and write them as text; the same bytes give the same text."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def _inline(text: str) -> Markup:
    """Mark text that is written into a script or style element as it is, and that must not end it."""
    for end in ("</script", "</style", "<!--"):
        assert end not in text.lower(), end
    return Markup(text)


@dataclass(frozen=True)
class EmbeddedBases:
    """The card of the bases without its coding, and the files that the worker unpacks."""

    card: artifact.Card
    files: Mapping[str, bytes]


def _bases(folder: Path, scratch: Path, bits: Bits | None, trust: bool, network: NetworkSource | None) -> EmbeddedBases:
    """Code the bases if they are not, and find or make the graphs for what decoding gives."""
    card, state = artifact.load(folder, "bases", trust, network)
    method = method_of(card, network)
    require_fit(method, state, str(folder))
    coded = folder if artifact.read_card(folder).coding is not None else None
    if coded is None and bits is not None:
        written, coded_card = artifact.code(state, method.serving.alike_models(state), card, bits)
        coded = scratch / "coded"
        artifact.save(coded, written, coded_card)
        card, state = artifact.load(coded, "bases", trust, network)
    plain = scratch / "plain"  # as the worker will have them; nothing is added to the published folder
    artifact.save(plain, state, card)
    graphs = published_graphs(folder, plain)
    if graphs is None:
        export_edge(plain, trust=trust, network=network)
        graphs = published_graphs(plain, plain)
        assert graphs is not None
    tensors = plain / artifact.TENSORS
    if coded is None:
        return EmbeddedBases(card, {**graphs, "bases": tensors.read_bytes()})
    coded_tensors = (coded / artifact.TENSORS).read_bytes()
    return EmbeddedBases(card, {**graphs, "bases": coded_tensors, "header": header_bytes(tensors)})


def published_graphs(folder: Path, plain: Path) -> dict[str, bytes] | None:
    """Return the graphs and edge.json beside published bases, if they also fit the tensors of ``plain``.

    A graph refers to places in a file of tensors, so it fits every file with the same header.
    """
    if not (folder / ABOUT).is_file():
        return None
    about = read_json_object(folder / ABOUT, "The description of the graphs", MAX_ABOUT)
    digests = about.get("files")
    if not isinstance(digests, dict) or not digests.keys() >= {STEP, APPLY, SKELETON, artifact.TENSORS}:
        return None
    names = [name for name in (*GRAPHS, artifact.TENSORS) if name in digests]
    if any(not (folder / name).is_file() or sha256_of(folder / name) != digests[name] for name in names):
        return None
    if header_bytes(folder / artifact.TENSORS) != header_bytes(plain / artifact.TENSORS):
        return None
    return {name: (folder / name).read_bytes() for name in (ABOUT, *names) if name != artifact.TENSORS}


def header_bytes(tensors: Path) -> bytes:
    """Return the first bytes of a safetensors file, which say what it holds and where."""
    with tensors.open("rb") as file:
        length = file.read(8)
        return length + file.read(int.from_bytes(length, "little"))


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def _numpy_state(seed: int) -> dict[str, str]:
    """Return where the generator that holds images out starts, as texts: the numbers have 128 bits."""
    generator = numpy_generator(seed, "hold out").bit_generator
    assert isinstance(generator, np.random.PCG64)
    return {name: str(number) for name, number in generator.state["state"].items()}


def _drawable(card: artifact.Card) -> bool:
    """Return whether images can well be drawn by hand: digits, letters."""
    most = DRAWN_GRAY if card.architecture.channels == 1 else DRAWN
    sides = card.preprocessing.resolution
    largest = sides if isinstance(sides, int) else max(sides)
    return largest <= most and all(len(name) <= LONGEST_NAME for name in card.classes)


def _examples(folder: Path, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Read the files of ``<class>/<image>``, to be embedded as they are."""
    table = scan_client(folder)
    if unknown := [name for name in table.class_names if name not in classes]:
        raise InputError(
            f"Every folder of the examples {folder} must be a class of the bases, but '{unknown[0]}' is not"
            f"{did_you_mean(unknown[0], list(classes), cutoff=0.6)}; rename it."
        )
    paths = [folder / path for path in table.paths]
    if len(paths) > MOST_EXAMPLES or sum(path.stat().st_size for path in paths) > MOST_EXAMPLE_BYTES:
        raise InputError(
            f"The examples of a page must be at most {MOST_EXAMPLES} images of {MOST_EXAMPLE_BYTES / 2**20:.0f} MB in "
            f"all, but {folder} holds more; give a smaller folder."
        )
    return [
        {
            "name": path.name,
            "label": classes.index(table.class_names[label]),
            "data": base64.b64encode(path.read_bytes()).decode(),
        }
        for path, label in zip(paths, table.labels, strict=True)
    ]
