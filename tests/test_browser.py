"""The page in a real browser: a script goes through it as a reader would and writes down what it found."""

import json
import os
import re
import shutil
import subprocess
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from fedbasis.report import write_report
from test_report import FEDAVG, FEDBASIS, make_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WATCH = "<script>window.wrong = []; addEventListener('error', (event) => wrong.push(event.message));</script>"
READER = """
<script>
(async () => {
  const found = {};
  const table = document.querySelector("table.sortable");
  const names = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
  const heads = table.querySelectorAll("thead tr:last-child th");
  const press = (column) => {
    heads[column].querySelector("button").click();
    return [heads[column].ariaSort, ...names()];
  };
  found.start = names();
  found.down = press(1);
  found.up = press(1);
  found.byName = press(0);
  found.missingLast = press(2);
  found.sorted = [...heads].filter((head) => head.hasAttribute("aria-sort")).length;
  heads[3].querySelector("button").focus();
  found.focused = document.activeElement === heads[3].querySelector("button");

  const paper = () => getComputedStyle(document.body).backgroundColor;
  const button = document.getElementById("theme");
  found.papers = [paper()];
  for (const _ of [1, 2]) { button.click(); found.papers.push(paper()); }
  found.hidden = button.hidden;

  const details = [...document.querySelectorAll("details")];
  details.forEach((one) => one.querySelector("summary").click());
  found.opened = details.every((one) => one.open);

  const saved = [];
  URL.createObjectURL = (blob) => { saved.push(blob); return "#"; };
  const links = [];
  HTMLAnchorElement.prototype.click = function () { links.push(this.download); };
  document.querySelectorAll("button.save").forEach((one) => one.click());
  found.links = links;
  const texts = await Promise.all(saved.map((blob) => blob.text()));
  found.csv = texts[links.findIndex((name) => name.endsWith(".csv"))];
  found.figures = document.querySelectorAll("figure").length;
  found.drawings = texts.filter((_, i) => links[i].endsWith(".svg")).map((text) => {
    const root = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
    return root.namespaceURI.endsWith("/svg") && root.nodeName === "svg" && text.includes("color:#1c2128");
  });

  found.tooWide = document.documentElement.scrollWidth - innerWidth;
  const followed = [...document.querySelectorAll("tbody th a")].map((a) => document.querySelector(a.hash));
  found.origins = followed.length > 0 && followed.every((target) => target?.className === "origin");
  found.wrong = wrong;
  const pre = document.createElement("pre");
  pre.id = "found";
  pre.textContent = JSON.stringify(found);
  document.body.append(pre);
})();
</script>
"""


@cache
def browser() -> str:
    """Return a browser that starts; without one these tests cannot say anything."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    pytest.skip(f"no browser here: install one of {', '.join(BROWSERS)}")


def read(page: Path, folder: Path, *options: str) -> dict[str, Any]:
    """Open a page as a reader does and return what the script wrote."""
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += [
        "--disable-dev-shm-usage",
        "--virtual-time-budget=4000",
        *options,
        "--dump-dom",
        page.resolve().as_uri(),
    ]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "HOME": str(folder)}
    )
    written = re.search(r'<pre id="found">(.*?)</pre>', ended.stdout, re.DOTALL)
    assert written, ended.stderr[-2000:]
    found: dict[str, Any] = json.loads(unescape(written[1]))
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs, with the script of a reader in it."""
    browser()
    folder = tmp_path_factory.mktemp("browser")
    runs = [make_run(folder / "fedavg-a", "fedavg", FEDAVG), make_run(folder / "fedbasis-b", "fedbasis", FEDBASIS)]
    write_report(runs, folder / "report.html")
    text = (folder / "report.html").read_text(encoding="utf-8")
    text = text.replace("<head>", "<head>" + WATCH).replace("</body>", READER + "</body>")
    (folder / "read.html").write_text(text, encoding="utf-8")
    return folder / "read.html"


def test_a_reader_can_sort_switch_open_and_save(page: Path, tmp_path: Path) -> None:
    found = read(page, tmp_path, "--window-size=1400,900")
    assert found["wrong"] == []
    rows = ["FedAvg", "FedAvg + FT", "FedBasis"]
    assert found["start"] == rows
    assert found["down"] == ["descending", "FedBasis", "FedAvg + FT", "FedAvg"]
    assert found["up"] == ["ascending", *rows]
    assert found["byName"] == ["ascending", *rows]
    assert found["missingLast"] == ["descending", "FedBasis", "FedAvg + FT", "FedAvg"]  # FedAvg has no Best
    assert found["sorted"] == 1
    assert found["focused"]
    assert found["papers"][0] == found["papers"][2] != found["papers"][1]
    assert not found["hidden"]
    assert found["opened"]
    assert found["figures"] == len(found["drawings"]) == 12
    assert all(found["drawings"])
    assert len(set(found["links"])) == len(found["links"])
    assert found["csv"].splitlines()[0].startswith('"method","size S Last","size S Best"')
    assert '"FedBasis","81.2"' in found["csv"]
    assert found["origins"]


def test_it_fits_a_phone_and_follows_a_dark_system(page: Path, tmp_path: Path) -> None:
    light = read(page, tmp_path / "light", "--window-size=500,900")  # no browser window is narrower
    dark = read(page, tmp_path / "dark", "--window-size=500,900", "--blink-settings=preferredColorScheme=0")
    assert light["tooWide"] <= 0
    assert dark["wrong"] == []
    assert dark["papers"] == [light["papers"][1], light["papers"][0], light["papers"][1]]
