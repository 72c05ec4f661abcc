"""The page's functions against what they repeat: torch, numpy, Pillow, safetensors and the compact coding."""

import io
import json
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load as load_safetensors

from fedbasis.edge.page import NEW_PILLOW, _numpy_state, header_bytes
from fedbasis.networks.batches import batches
from fedbasis.serving.new_client import ENOUGH, HELD_OUT, held_out
from fedbasis.tensors.compact import AlikeModels, Bits, decode, encode
from fedbasis.tensors.files import write_tensors
from fedbasis.tensors.params import State, shapes
from helpers.browser import Tab, browser
from helpers.edge_page import functions_page, given, returned
from pflbed.images import read_image

EXIF_ORIENTATION = 0x0112


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    browser()
    with Tab(tmp_path_factory.mktemp("profile")) as tab:
        tab.open(functions_page(tmp_path_factory.mktemp("functions")), 800, 600)
        yield tab


@pytest.mark.parametrize("length", [0, 1, 55, 56, 63, 64, 65, 1000])
def test_digests(tab: Tab, length: int) -> None:
    data = bytes(i * 7 % 256 for i in range(length))
    assert tab.run(f"sha256({given(data)})") == sha256(data).hexdigest()


def test_a_zip_file_is_read_by_python(tab: Tab) -> None:
    files = {"model/card.json": b"{}\n", "model/ä.bin": bytes(range(256)) * 9}
    entries = ", ".join(f"{json.dumps(name)}: {given(data)}" for name, data in files.items())
    archive = zipfile.ZipFile(io.BytesIO(returned(tab, f"zip({{{entries}}})")))
    assert archive.testzip() is None
    assert {name: archive.read(name) for name in archive.namelist()} == files


@pytest.mark.parametrize("seed", [0, 12345, 2**32 - 1])
def test_the_same_batches_as_torch(tab: Tab, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    expected = [[part.tolist() for part in batches(count, 16, generator)] for count in (40, 33, 2, 300, 17)]
    script = (
        f"(() => {{ const g = new Twister({seed}); return [40, 33, 2, 300, 17].map((n) => batches(n, 16, g)); }})()"
    )
    assert tab.run(script) == expected


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_the_same_images_are_held_out(tab: Tab, seed: int) -> None:
    rule = json.dumps({"enough": ENOUGH, "share": HELD_OUT, "state": _numpy_state(seed)})
    generator = np.random.default_rng(seed)
    for count, classes in ((19, 3), (20, 3), (64, 5), (200, 30)):
        labels = generator.integers(0, classes, count)
        expected = held_out(torch.from_numpy(labels), seed).tolist()
        assert tab.run(f"heldOut({labels.tolist()}, {rule})") == expected


def alike(generator: torch.Generator) -> State:
    """Models with matrices of odd sizes, vectors that stay positive, and a vector that float16 cannot hold."""

    def model(scale: float) -> dict[str, torch.Tensor]:
        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        return {
            "conv.weight": 1 + scale * drawn(5, 3, 3, 3), "fc.weight": scale * drawn(3, 7), "one": scale * drawn(1, 1),
            "zero.weight": torch.zeros(2, 4), "fc.bias": scale * drawn(7), "var": 1e-3 * drawn(9).abs(),
            "huge": 1e6 * scale * drawn(4),
        }  # fmt: skip

    return {"major": model(1.0), "basis_0": model(0.1), "basis_1": model(1e-4), "clock": {"round": torch.tensor(3)}}


@pytest.mark.parametrize("reference", ["major", None])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_coded_bases_are_decoded_to_the_same_bytes(tab: Tab, tmp_path: Path, bits: Bits, reference: str | None) -> None:
    state = alike(torch.Generator().manual_seed(bits))
    coded = encode(state, AlikeModels(("major", "basis_0", "basis_1"), reference), bits)
    vectors = {tensor.dtype for group, tensors in coded.items() if "vectors" in group for tensor in tensors.values()}
    assert vectors == {torch.float16, torch.bfloat16}
    write_tensors(tmp_path / "coded", coded)
    write_tensors(tmp_path / "plain", decode(coded, shapes(state["major"]), "It"))
    header = given(header_bytes(tmp_path / "plain"))
    found = returned(tab, f"decodeBases({given((tmp_path / 'coded').read_bytes())}, {header})")
    assert found == (tmp_path / "plain").read_bytes()


def test_tensors_are_written_as_safetensors(tab: Tab) -> None:
    made = returned(
        tab,
        "writeTensors({'b.weight': {shape: [2, 3], data: Float32Array.of(1, 2, 3, 4, 5, 6.5)}, 'a.bias': {shape: [1], "
        "data: Float32Array.of(-1)}, ...withConstants({}, {n: {dtype: 'I64', shape: [], value: 7}})})",
    )
    tensors = load_safetensors(made)
    assert tensors["b.weight"].tolist() == [[1, 2, 3], [4, 5, 6.5]]
    assert tensors["a.bias"].tolist() == [-1]
    assert tensors["n"].dtype == torch.int64
    assert int(tensors["n"]) == 7


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture with smooth areas, edges and noise."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = np.stack([127 + 120 * np.sin(x / 9 + k) * np.cos(y / (5 + k)) for k in range(3)], axis=2)
    waves[(x + y) % 37 < 9] = generator.integers(0, 256, 3)
    return Image.fromarray(np.clip(waves + generator.normal(0, 15, waves.shape), 0, 255).astype(np.uint8))


def seen(tab: Tab, data: bytes, size: tuple[int, int], channels: int = 3) -> np.ndarray:
    script = f"(async () => {{ const i = await decoded(new Blob([{given(data)}])); "
    script += f"return fitted(i.data, i.width, i.height, {list(size)}, {channels}, {str(NEW_PILLOW).lower()}); }})()"
    return np.frombuffer(returned(tab, script), np.uint8).reshape(*size, channels)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pixels_are_those_of_pillow_whichever_way_up(tab: Tab, tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    path = tmp_path / "photo.jpg"
    picture(97, 131, orientation).save(path, quality=90, exif=exif)
    assert np.array_equal(seen(tab, path.read_bytes(), (32, 32)), read_image(path, 32))


@pytest.mark.parametrize("size", [(12, 12), (28, 28), (24, 40), (33, 20), (150, 150)])
@pytest.mark.parametrize("sides", [(64, 64), (301, 77), (45, 200), (65, 142), (25, 112)])
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_are_those_of_pillow_in_every_size(
    tab: Tab, tmp_path: Path, sides: tuple[int, int], size: tuple[int, int], channels: int
) -> None:
    path = tmp_path / "image.png"
    picture(*sides).save(path)
    assert np.array_equal(seen(tab, path.read_bytes(), size, channels), read_image(path, size, channels))


@pytest.mark.parametrize("kind", ["gray", "palette", "cut out", "jpeg 4:4:4", "gray jpeg", "webp", "gif", "bmp"])
def test_pixels_are_those_of_pillow_in_every_format(tab: Tab, tmp_path: Path, kind: str) -> None:
    image, options, suffix = picture(90, 70), dict[str, Any](), "png"
    if kind == "gray":
        image = image.convert("L")
    elif kind in ("palette", "gif"):
        image, suffix = image.quantize(64), "gif" if kind == "gif" else "png"
    elif kind == "cut out":  # on white; where an image is half transparent, browsers round otherwise
        image.putalpha(picture(90, 70, 1).convert("L").point(lambda value: 255 if value > 128 else 0))
    elif kind == "jpeg 4:4:4":
        suffix, options = "jpg", {"quality": 95, "subsampling": 0}
    elif kind == "gray jpeg":
        image, suffix = image.convert("L"), "jpg"
    elif kind == "webp":
        suffix, options = "webp", {"lossless": True}
    elif kind == "bmp":
        suffix = "bmp"
    path = tmp_path / f"image.{suffix}"
    image.save(path, **options)
    assert np.array_equal(seen(tab, path.read_bytes(), (28, 28)), read_image(path, 28))


def test_what_is_no_image_is_refused_in_a_sentence(tab: Tab) -> None:
    said = tab.run("decoded(new Blob(['nothing'])).catch((error) => error.message)")
    assert said == "this browser cannot read it as an image"
