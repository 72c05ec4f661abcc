"""The page in a browser, from a file, without any network: from a folder of images to a model that FedBasis reads."""

import json
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from fedbasis.edge.page import write_page
from fedbasis.networks.models import Network
from fedbasis.serving import artifact
from fedbasis.serving.new_client import method_of
from helpers.browser import Tab, browser
from helpers.cli_running import succeed
from helpers.edge_page import OFFLINE, changed, choose, download, fit, give, open_page, runtime_folder, start
from serving.artifacts import bases_of, card_of
from shapes import CLASSES, write_images

pytest.importorskip("onnx", reason="the page needs the extra edge")
pytest.importorskip("onnxruntime", reason="the page needs the extra edge")
PHONE = (390, 844)
EVIL = "</script><img src=x onerror=\"document.title='taken'\"><b>"
CLASS_NAMES = "[...document.querySelectorAll('.class h3')].map((one) => one.textContent)"


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "bases"
    network = Network("cnn-small", 3, 12, {"norm": "batch"})
    artifact.save(folder, bases_of(network), card_of(network))
    return folder


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A client's folder: 30 images, some of them JPEG, larger than the input, or turned."""
    root = write_images(tmp_path_factory.mktemp("mine") / "mine", 10, seed=3)
    for number, path in enumerate(sorted(root.rglob("*.png"))):
        if number % 3:
            continue
        exif = Image.Exif()
        exif[0x0112] = 6
        large = Image.open(path).resize((60, 90), Image.Resampling.BICUBIC)
        large.save(path.with_suffix(".jpg"), quality=92, exif=exif)
        path.unlink()
    return root


@pytest.fixture(scope="module")
def page(bases: Path, mine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    browser()
    out = tmp_path_factory.mktemp("page") / "fit.html"
    write_page(bases, out, runtime_folder=runtime_folder(), title=f"Fit {EVIL}", examples=mine)
    assert not (bases / "edge.json").exists()  # the published folder is as it was
    return out


class Listener(BaseHTTPRequestHandler):
    """Counts requests."""

    arrived: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        Listener.arrived.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A live server on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def tab(page: Path, address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A browser that finds no name, but reaches this machine: a page without a policy can send a request."""
    plain = tmp_path_factory.mktemp("plain") / "plain.html"
    plain.write_text("<!doctype html><title>plain</title>", encoding="utf-8")
    with Tab(tmp_path_factory.mktemp("profile"), OFFLINE) as tab:
        tab.open(plain, 800, 600)
        tab.run(f"fetch('{address}plain', {{mode: 'no-cors'}}).then(() => true, () => false)")
        assert Listener.arrived == ["/plain"]
        yield tab


@pytest.fixture(scope="module")
def fitted(tab: Tab, page: Path, mine: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page says and gives after it was fitted to the folder."""
    folder = tmp_path_factory.mktemp("downloads")
    open_page(tab, page)
    choose(tab, "#folder", [mine])
    assert tab.run("find('skipped').hidden"), tab.run("find('skipped').textContent")
    result = fit(tab)
    files = {name: download(tab, name, folder) for name in ("model.onnx", "model.zip", "card.json")}
    with zipfile.ZipFile(files["model.zip"]) as archive:
        archive.extractall(folder)
    said = {name: tab.run(f"find('{name}').textContent") for name in ("sentence", "before", "after", "spoken", "title")
            if tab.run(f"!!find('{name}')")}  # fmt: skip
    return {**result, "said": said, "folder": folder, "heading": tab.run("document.querySelector('h1').textContent")}


def test_it_fits_and_says_how_well(fitted: dict[str, Any]) -> None:
    assert fitted["images"] == 24
    assert fitted["heldOut"] == 6
    assert fitted["after"] >= fitted["before"]
    assert "Accuracy on 6 held-out images" in fitted["said"]["sentence"]
    assert fitted["said"]["before"] == f"{100 * fitted['before']:.1f} %"
    assert fitted["said"]["spoken"].startswith("Done.")  # for a screen reader
    assert len(fitted["losses"]) == 20
    assert fitted["losses"][-1] < fitted["losses"][0]


def test_it_is_what_personalize_does(fitted: dict[str, Any], bases: Path, mine: Path, tmp_path: Path) -> None:
    """With the bases as the page has them: coded to 3 bits."""
    succeed("bundle", bases, "--compact", "--out", tmp_path / "coded")
    summary = json.loads(succeed("personalize", tmp_path / "coded", "--data", mine, "--out", tmp_path / "m", "--json"))
    card = json.loads((fitted["folder"] / "card.json").read_text(encoding="utf-8"))
    theirs = artifact.read_card(tmp_path / "m")
    assert card.keys() == theirs.as_json().keys()
    assert card["provenance"].keys() == theirs.provenance.keys()
    for key in ("bases", "personalized_by", "epochs", "images", "held_out", "before", "label_counts"):
        assert card["provenance"][key] == theirs.provenance[key], key
    assert abs(fitted["after"] - summary["after"]) <= 1 / fitted["heldOut"] + 1e-9
    ours, expected = (dict(one["learned"]["alpha"]["rows"]) for one in (card, theirs.as_json()))
    assert ours.keys() == expected.keys()
    difference = max(abs(a - b) for name in ours for a, b in zip(ours[name], expected[name], strict=True))
    assert difference < 0.02  # the same steps, rounded otherwise


def test_predict_reads_the_model_and_agrees(tab: Tab, fitted: dict[str, Any], mine: Path) -> None:
    chosen = sorted(mine.rglob("*.*"))[::4]
    lines = succeed("predict", fitted["folder"] / "model", *chosen, "--json").splitlines()
    for path, line in zip(chosen, map(json.loads, lines), strict=True):
        choose_and_wait(tab, path)
        chances = tab.run("app.ask('predict', {key: 'try'}).then(({after}) => after)")
        assert np.allclose(chances, list(line["all"].values()), atol=1e-4)
        assert tab.run("find('guess').textContent").startswith(line["class"])


def choose_and_wait(tab: Tab, path: Path) -> None:
    tab.run("find('guess').textContent = ''")
    give(tab, "#try-file", [path])
    tab.wait("find('guess').textContent !== '' && !app.guessing")


def test_onnx_gives_the_same_classes_as_safetensors(fitted: dict[str, Any], mine: Path) -> None:
    import onnx
    import onnxruntime

    from pflbed.images import read_image

    model = onnx.load(fitted["folder"] / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert json.loads(next(p.value for p in model.metadata_props if p.key == "classes")) == list(CLASSES)
    card, module = artifact.load_module(fitted["folder"] / "model")
    pixels = np.stack([read_image(path, 12) for path in sorted(mine.rglob("*.*"))])
    images = card.pixels(torch.from_numpy(pixels)).contiguous()
    session = onnxruntime.InferenceSession(fitted["folder"] / "model.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"images": images.numpy()})
    with torch.no_grad():
        assert np.allclose(logits, module(images).numpy(), atol=1e-4)


def test_a_request_is_refused_and_never_arrives(tab: Tab, page: Path, address: str) -> None:
    start(tab, page)
    assert tab.run(f"trySending('{address}page')") == {"went": False, "by": "connect-src"}
    assert tab.run(f"app.ask('send', {{address: '{address}worker'}})") == {"went": False, "by": "connect-src"}
    image = "new Promise((done) => {{ const one = new Image(); one.onload = one.onerror = done; one.src = '{}'; }})"
    tab.run(image.format(f"{address}image"))
    tab.run(f"navigator.sendBeacon('{address}beacon', 'x')")
    assert Listener.arrived == ["/plain"]
    tab.run("find('send').click()")
    tab.wait("find('sent').textContent !== ''")
    assert tab.run("find('sent').textContent").startswith("Refused by the policy (connect-src)")


def test_too_little_is_refused_with_what_to_do(tab: Tab, page: Path, mine: Path, tmp_path: Path) -> None:
    start(tab, page)
    assert tab.run("find('fit').disabled")
    assert tab.run("find('ready').textContent") == "Add images of at least 2 classes."
    choose(tab, ".class:nth-child(2) input", sorted((mine / "cross").iterdir())[:3])
    assert tab.run("find('fit').disabled")
    said = "Images of at least 2 classes are needed, but all 3 images are of “cross”; add images of another class."
    assert tab.run("find('ready').textContent") == said
    (tmp_path / "none.png").write_text("no image")
    choose(tab, ".class:nth-child(1) input", [tmp_path / "none.png", sorted((mine / "circle").iterdir())[0]])
    assert "none.png is left out: this browser cannot read it as an image." in tab.run("find('skipped').textContent")
    assert tab.run("find('fit').disabled") is False
    result = fit(tab)  # few images: none are held out
    assert (result["images"], result["heldOut"]) == (4, 0)
    assert "fewer than 20: none held out" in tab.run("find('sentence').textContent")
    tab.run("document.querySelector('.thumbs button').click()")
    assert tab.run("find('outdated').hidden") is False
    assert tab.run("find('fit').disabled")


def test_the_keyboard_reaches_everything(tab: Tab, page: Path) -> None:
    start(tab, page)
    tab.run("find('examples').focus()")
    tab.press("Enter", 13, "\r")
    tab.wait("app.images.length === 30 && !app.reading")
    reached = set()
    for _ in range(60):
        tab.press("Tab", 9)
        active = "document.activeElement"
        reached.add(tab.run(f"{active}.id || {active}.getAttribute('aria-label') || {active}.tagName"))
        if "fit" in reached:
            break
    assert {"clear", "Add photos of class circle", "Remove 001.png of class circle", "fit"} <= reached
    named = "(one) => one.textContent || one.ariaLabel || one.labels?.[0]?.textContent || one.closest('[aria-hidden]')"
    parts = "[...document.querySelectorAll('input, button, canvas, progress')]"
    labels = f"{parts}.filter((one) => !one.closest('[hidden]') && !({named})(one)).map((one) => one.outerHTML)"
    assert tab.run(labels) == []
    assert tab.run("[...document.querySelectorAll('[role=status]')].length") >= 4


def test_a_client_never_leaves_with_a_worse_model(
    tab: Tab, page: Path, tmp_path: Path, bases: Path, mine: Path
) -> None:
    def backwards(about: dict[str, Any]) -> None:
        about["training"]["rates"] = [-0.3, -0.05, 0.0]  # away from what the images say
        about["training"]["epochs"] = 5

    open_page(tab, changed(page, tmp_path / "worse.html", "edge.json", backwards))
    choose(tab, "#folder", [mine])
    # most images are of the class that the model says before, so that it is often right
    said = tab.run("app.ask('predict', {key: app.images[0].key}).then(({before}) => largest(before))")
    choose(tab, f".class:nth-child({said + 1}) input", sorted((mine / CLASSES[said]).iterdir()))
    tab.run(f"app.images.filter(({{label}}) => label === {(said + 1) % 3}).forEach((image) => app.remove(image))")
    result = fit(tab)
    assert result["way"] == "none"
    assert result["after"] == result["before"] > result["tried"]["coefficients+classifier"]
    assert "so you get the model without personalization" in tab.run("find('guard').textContent")
    assert tab.run("!find('guard').hidden")
    download(tab, "model.zip", tmp_path)
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        archive.extractall(tmp_path)
    card, state = artifact.load(tmp_path / "model", "model")
    assert card.provenance["personalized_by"] == "none"
    assert card.learned == {}
    succeed("bundle", bases, "--compact", "--out", tmp_path / "coded")
    coded, published = artifact.load(tmp_path / "coded", "bases")
    for name, tensor in method_of(coded).model(published).items():
        assert torch.allclose(state[""][name], tensor, atol=1e-6), name


def test_too_little_memory_is_said_before(tab: Tab, page: Path, tmp_path: Path) -> None:
    other = changed(page, tmp_path / "large.html", "edge.json", lambda about: about.update(memory=10**13))
    open_page(tab, other)
    assert tab.run("find('trouble').textContent").startswith("Fitting this model needs 10000.0 GB of memory")
    assert tab.run("find('fit').disabled")


NAMES = [EVIL, "<svg onload=alert(1)>", "c"]


@pytest.fixture(scope="module")
def drawing(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page with other names of classes, in which images can be drawn."""
    out = tmp_path_factory.mktemp("drawing") / "draw.html"
    changed(page, out, "page.json", lambda about: about.update(draw=True))
    return changed(out, out, "card.json", lambda card: card.update(classes=NAMES))


def test_names_from_strangers_are_text(tab: Tab, drawing: Path) -> None:
    assert EVIL not in drawing.read_text(encoding="utf-8")
    start(tab, drawing)
    assert tab.run("document.title") == f"Fit {EVIL}"
    assert tab.run("document.querySelector('h1').textContent") == f"Fit {EVIL}"
    assert tab.run(CLASS_NAMES) == NAMES
    tab.run("find('examples').click()")
    tab.wait("app.images.length === 30 && !app.reading")
    fit(tab)
    assert set(tab.run("[...document.querySelectorAll('#judged b')].map((one) => one.textContent)")) == set(NAMES)
    assert tab.run("document.querySelectorAll('main img, main b b, h1 *, .class h3 *').length") == 0
    assert tab.run("document.title") == f"Fit {EVIL}"


def test_images_can_be_drawn(tab: Tab, drawing: Path) -> None:
    start(tab, drawing)
    tab.run("app.aim(0)")
    stroke(tab, "#draw-canvas")
    tab.run("find('draw-add').click()")
    tab.wait("app.images.length === 1")
    assert tab.run("find('draw-class').textContent") == NAMES[1]  # the next class that has the fewest
    stroke(tab, "#draw-canvas")
    tab.run("document.activeElement.blur()")
    tab.press("c", 67, "c")  # a class whose name is a key
    tab.wait("app.images.length === 2")
    assert tab.run("app.counts()") == [1, 0, 1]
    seen = tab.run("Array.from(app.images[0].seen.data)")
    assert min(seen[::4]) == 0
    assert max(seen[::4]) > 200
    fit(tab)
    stroke(tab, "#try-canvas")
    tab.wait("find('chances').children.length === 3")
    assert tab.run("find('guess').textContent").endswith("%")


def stroke(tab: Tab, selector: str) -> None:
    """Draw a line with the mouse."""
    tab.run(f"document.querySelector('{selector}').scrollIntoView({{block: 'center', behavior: 'instant'}})")
    where = (
        f"(({{left, top, width}}) => [left, top, width])(document.querySelector('{selector}').getBoundingClientRect())"
    )
    left, top, width = tab.run(where)
    mouse: dict[str, Any] = {"button": "left", "clickCount": 1}
    for kind, share in (("mousePressed", 0.3), ("mouseMoved", 0.5), ("mouseMoved", 0.7), ("mouseReleased", 0.7)):
        tab.call("Input.dispatchMouseEvent", type=kind, x=left + share * width, y=top + share * width, **mouse)


def test_it_fits_a_phone_in_light_and_dark(tab: Tab, page: Path) -> None:
    tab.call("Emulation.setTouchEmulationEnabled", enabled=True)
    try:
        open_page(tab, page, *PHONE, dark=True)
        paper = "getComputedStyle(document.body).backgroundColor"
        assert tab.run(paper) == "rgb(20, 23, 27)"
        cameras = "[...document.querySelectorAll('.class .camera')].filter((one) => one.offsetParent).length"
        assert tab.run(cameras) == 3
        assert tab.run("document.querySelector('.class .camera input').getAttribute('capture')") == "environment"
        tab.run("find('examples').click()")
        tab.wait("app.images.length === 30 && !app.reading")
        fit(tab)
        assert tab.run("[innerWidth, document.documentElement.scrollWidth]") == [PHONE[0], PHONE[0]]
        tab.run("find('theme').click()")
        assert tab.run(paper) == "rgb(251, 251, 250)"
    finally:
        tab.call("Emulation.setTouchEmulationEnabled", enabled=False)
