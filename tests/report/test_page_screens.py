"""The page in a browser at two sizes: the answer above the fold, tables that show that they scroll, legible figures."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from fedbasis.report import write_report
from helpers.browser import Tab, browser
from helpers.report_page import write_run

DESKTOP, PHONE = (1280, 900), (390, 844)
HINTS = "[...document.querySelectorAll('.scroller')].map((one) => one.classList.contains('more'))"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    browser()
    folder = tmp_path_factory.mktemp("screens")
    scores = {"none": [0.6, 0.72, 0.63, 0.75], "lp": [0.7, 0.8, 0.73, 0.85], "ft": [0.81, 0.87, 0.86, 0.92]}
    runs = [
        write_run(folder / "fedavg-a", "fedavg", scores),
        write_run(folder / "fedbasis-b", "fedbasis", {"coefficients+classifier": [0.8, 0.9, 0.84, 0.94]}),
    ]
    write_report(runs, folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def tab(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with Tab(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.mark.parametrize("dark", [False, True])
def test_the_answer_is_above_the_fold(tab: Tab, page: Path, dark: bool) -> None:
    tab.open(page, *DESKTOP, dark=dark)
    box = tab.run("(({top, bottom}) => [top, bottom])(document.querySelector('.answer').getBoundingClientRect())")
    assert 0 < box[0] < box[1] < DESKTOP[1]
    tab.open(page, *PHONE, dark=dark)
    first = tab.run("document.querySelector('.answer li').getBoundingClientRect().bottom")
    assert first < PHONE[1]
    assert tab.run("getComputedStyle(document.querySelector('.own .track')).color") == "rgb(213, 94, 0)"


def test_a_wide_table_shows_that_it_scrolls_until_its_end(tab: Tab, page: Path) -> None:
    tab.open(page, *PHONE)
    assert any(tab.run(HINTS))
    number = tab.run(HINTS).index(True)
    box = f"document.querySelectorAll('.scroller > .box')[{number}]"
    tab.run(f"{box}.scrollLeft = 1e6")
    tab.wait(f"!({HINTS})[{number}]")
    cells = f"{box}.querySelector('tbody th').getBoundingClientRect().left"
    assert tab.run(cells) < 20  # the first column stays
    assert tab.run("document.documentElement.scrollWidth") == PHONE[0]


def test_text_in_figures_is_legible_on_a_phone(tab: Tab, page: Path) -> None:
    tab.open(page, *PHONE)
    scale = "Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b)"
    size = f"(text) => parseFloat(getComputedStyle(text).fontSize) * {scale}"
    sizes = tab.run(f"[...document.querySelectorAll('figure svg[viewBox] text')].map({size})")
    assert min(sizes) > 10.5
    assert tab.run("Math.min(...[...document.querySelectorAll('.dots li')].map((row) => row.offsetHeight))") >= 24


def test_headings_come_in_order_and_figures_say_what_they_are(tab: Tab, page: Path) -> None:
    tab.open(page, *DESKTOP)
    levels = tab.run("[...document.querySelectorAll('h1, h2, h3, h4')].map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    unnamed = (
        "[...document.querySelectorAll('svg')].filter((one) => !one.ariaLabel && one.ariaHidden !== 'true').length"
    )
    assert tab.run(unnamed) == 0
    assert tab.run("[...document.querySelectorAll('.dots ol')].every((one) => one.ariaLabel)") is True
    assert tab.run("[...document.querySelectorAll('thead tr:last-child th')].every((one) => one.textContent)") is True


def test_it_prints_without_buttons_and_whole(tab: Tab, page: Path) -> None:
    tab.open(page, *DESKTOP)
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert tab.run("getComputedStyle(document.querySelector('button.save')).display") == "none"
    assert tab.run("getComputedStyle(document.querySelector('.box')).overflowX") == "visible"
    tab.call("Emulation.setEmulatedMedia", media="")
