"""The page in a real browser: sorted by mouse and keyboard, light and dark, opened, saved, and held like a phone."""

import csv
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedbasis.report import write_report
from fedbasis.report.svg import NAMESPACE
from helpers.browser import SECONDS, Tab, browser
from helpers.report_runs import FEDAVG, FEDBASIS, make_run

WATCHED = "<head><script>window.wrong = []; addEventListener('error', (event) => wrong.push(event.message));</script>"
HEADS = "document.querySelectorAll('table.sortable:first-of-type thead tr:last-child th')"
NAMES = "[...document.querySelector('table.sortable').tBodies[0].rows].map((row) => row.cells[0].textContent)"
SORTED = f"[...{HEADS}].map((head) => head.ariaSort)"
PAPER = "getComputedStyle(document.body).backgroundColor"
ROWS = ["FedAvg", "FedAvg + FT", "FedBasis"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs, which also notes what goes wrong in it."""
    browser()
    folder = tmp_path_factory.mktemp("browser")
    runs = [make_run(folder / "fedavg-a", "fedavg", FEDAVG), make_run(folder / "fedbasis-b", "fedbasis", FEDBASIS)]
    write_report(runs, folder / "report.html")
    text = (folder / "report.html").read_text(encoding="utf-8").replace("<head>", WATCHED)
    (folder / "report.html").write_text(text, encoding="utf-8")
    return folder / "report.html"


@pytest.fixture(scope="module")
def browsing(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with Tab(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(browsing: Tab, page: Path) -> Iterator[Tab]:
    """The page as a stranger opens it on a desktop."""
    browsing.open(page, 1400, 900)
    browsing.run("localStorage.clear()")
    browsing.open(page, 1400, 900)
    yield browsing
    assert browsing.run("wrong") == []


def click(tab: Tab, column: int) -> list[str]:
    tab.run(f"{HEADS}[{column}].querySelector('button').click()")
    return [tab.run(SORTED)[column], *tab.run(NAMES)]


def test_a_table_is_sorted_by_any_column(tab: Tab) -> None:
    assert tab.run(NAMES) == ROWS
    assert click(tab, 1) == ["descending", "FedBasis", "FedAvg + FT", "FedAvg"]
    assert click(tab, 1) == ["ascending", *ROWS]
    assert click(tab, 2) == ["descending", "FedBasis", "FedAvg + FT", "FedAvg"]
    assert click(tab, 2) == ["ascending", "FedAvg + FT", "FedBasis", "FedAvg"]  # what has no Best stays at the end
    assert click(tab, 0) == ["ascending", *ROWS]
    assert [way for way in tab.run(SORTED) if way] == ["ascending"]


def test_the_keyboard_sorts_too(tab: Tab) -> None:
    tab.run(f"{HEADS}[0].querySelector('button').focus()")
    tab.press("Tab", 9)
    tab.press("Enter", 13, "\r")
    assert tab.run(SORTED)[:3] == [None, "descending", None]
    assert tab.run(NAMES) == ROWS[::-1]


def test_light_and_dark_as_the_system_says_until_the_reader_chooses(tab: Tab, page: Path) -> None:
    light = tab.run(PAPER)
    tab.open(page, 1400, 900, dark=True)
    dark = tab.run(PAPER)
    assert dark != light
    assert tab.run("document.getElementById('theme').textContent") == "Light"
    tab.run("document.getElementById('theme').click()")
    assert tab.run(PAPER) == light
    tab.open(page, 1400, 900, dark=True)
    assert tab.run(PAPER) == light  # the choice is kept


def test_details_open_and_names_lead_to_their_runs(tab: Tab) -> None:
    tab.run("document.querySelectorAll('summary').forEach((summary) => summary.click())")
    assert tab.run("[...document.querySelectorAll('details')].map((one) => one.open)") == [True] * 2
    followed = "[...document.querySelectorAll('tbody th a')].map((a) => document.querySelector(a.hash).textContent)"
    texts: list[str] = tab.run(followed)
    names: list[str] = tab.run("[...document.querySelectorAll('tbody th a')].map((a) => a.textContent)")
    for name, text in zip(names, texts, strict=True):
        assert ("fedbasis-b" if "FedBasis" in name else "fedavg-a") in text


def test_every_figure_and_table_can_be_saved(tab: Tab, tmp_path: Path) -> None:
    tab.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for place, all_of in (("figure", "figure"), ("caption", "table")):
        buttons = tab.run(f"document.querySelectorAll('{place} button.save').length")
        assert buttons == tab.run(f"document.querySelectorAll('{all_of}').length") > 0
    figure = "[...document.querySelectorAll('figure')].find((one) => one.querySelector('svg[aria-label^=\"{start}\"]'))"
    for start in ("Training loss", "Images per class of 4 new"):
        tab.run(f"{figure.format(start=start)}.querySelector('button.save').click()".replace('\\"', '"'))
    tab.run("document.querySelectorAll('caption button.save')[0].click()")
    ends = time.monotonic() + SECONDS
    while len(list(tmp_path.glob("*.[cs][sv][gv]"))) < 3:
        assert time.monotonic() < ends
        time.sleep(0.02)
    drawings = sorted(tmp_path.glob("*.svg"))
    assert [path.name.split("-")[0] for path in drawings] == ["images", "training"]
    for path in drawings:
        root = ElementTree.parse(path).getroot()
        assert root.tag == f"{{{NAMESPACE}}}svg"
        assert "color:#1c2128" in root.get("style", "")  # dark ink, whatever the page had
    written = [text.text for text in ElementTree.parse(drawings[1]).iter(f"{{{NAMESPACE}}}text")]
    assert written[-3:] == ["FedAvg", "FedBasis", "end of the warm start"]  # the legend goes with the curves
    (table,) = tmp_path.glob("*.csv")
    with table.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    assert lines[0][:3] == ["method", "size S Last", "size S Best"]
    assert lines[3][:3] == ["FedBasis", "81.2", "83.2"]


def test_it_fits_a_phone(tab: Tab, page: Path) -> None:
    tab.open(page, 390, 844)
    assert tab.run("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
    parts = "[...document.querySelectorAll('figure, .box, button.save')]"
    assert (
        max(tab.run(f"{parts}.map((one) => one.getBoundingClientRect().right)")) <= 390
    )  # what is wider scrolls inside
