"""The documentation: its code runs, its links resolve, its navigation lists every page, its words are one list."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
WRITTEN = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES)
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(r"# (\w+\.py)\n")

FRONT_DOOR = """\
import fedbasis as fb, pflbed

clients = pflbed.digits4(clients=2, new=1)          # or pflbed.load("bench/"), from_arrays(...), from_dataset(torch_dataset, ...)
method  = fb.FedBasis(network="resnet10", bases=4)  # a name, a factory, or an nn.Module instance
trained = fb.train(method, clients, rounds=20, seed=0)            # out="runs/" keeps it, resumes it
mine    = fb.personalize(trained, clients["mnist/n00"].train)     # or fb.load("bases/"), and any images and labels
mine.module(x); mine.alpha; mine.before, mine.after; mine.save("model/"); trained.save("bases/")
scores  = fb.evaluate(trained, clients.new)
"""  # noqa: E501
SMALLER = (("rounds=20", "rounds=2"), ('"resnet10"', '"cnn-small"'), ("new=1)", "new=1, limit=20)"))


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def python_blocks(page: Path) -> list[str]:
    return [code for _, language, code in FENCE.findall(text_of(page)) if language == "python"]


def run(code: str, where: str, namespace: dict[str, Any]) -> None:
    exec(compile(code, where, "exec"), namespace)


def anchors_of(page: Path) -> set[str]:
    """List a page's anchors as Python-Markdown's toc makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", heading) for heading in words}


def test_the_readme_opens_with_the_front_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = python_blocks(ROOT / "README.md")[0]
    assert first == FRONT_DOOR
    for told, small in SMALLER:
        assert told in first
        first = first.replace(told, small)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"x": torch.zeros(2, 3, 28, 28)}
    run(first, "README.md", namespace)
    assert namespace["mine"].module(namespace["x"]).shape == (2, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bases", "model"]


def test_get_started_shows_the_same_code() -> None:
    assert python_blocks(DOCS / "get-started.md")[0] == FRONT_DOOR


@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_the_code_of_a_tutorial_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that opens with ``# name.py`` is that file; all others run one after another in one namespace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    namespace: dict[str, Any] = {"__name__": "tutorial"}
    blocks = python_blocks(page)
    assert blocks
    for number, code in enumerate(blocks):
        if named := FILE.match(code):
            (tmp_path / named[1]).write_text(code, encoding="utf-8")
            monkeypatch.delitem(sys.modules, Path(named[1]).stem, raising=False)  # another test's
        else:
            run(code, f"{name_of(page)}, block {number}", namespace)


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", text_of(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        generated = (
            "<!-- command line" in text_of(target) or "<!-- configuration" in text_of(target) if anchor else False
        )
        assert not anchor or generated or anchor in anchors_of(target), f"{name_of(page)} links to {link}"


def pages_in(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for inner in (nav.values() if isinstance(nav, dict) else nav) for page in pages_in(inner)]


def test_the_navigation_lists_every_page_once() -> None:
    listed = pages_in(yaml.safe_load(text_of(ROOT / "mkdocs.yml"))["nav"])
    there = [page.relative_to(DOCS).as_posix() for page in PAGES if page.parent.name != "tables"]
    assert sorted(listed) == sorted(there)


@pytest.mark.parametrize("package", ["fedbasis", "pflbed"])
def test_the_reference_has_every_public_name(package: str) -> None:
    names = __import__(package).__all__
    page = text_of(DOCS / "reference" / f"{package}.md")
    assert sorted(re.findall(rf"^::: {package}\.(\w+)", page, re.MULTILINE)) == sorted(names)


def test_contributing_lists_the_words_of_the_glossary() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", text_of(DOCS / "reference" / "glossary.md"), re.MULTILINE)[2:]
    words = [re.sub(r" \(.*\)", "", row) for row in rows]
    (told,) = re.findall(r"one word for one thing: ([^.]+)\.", text_of(ROOT / "CONTRIBUTING.md"))
    assert re.split(r",\s+", told) == words


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_nothing_tells_to_install_a_name_that_is_on_no_index(page: Path) -> None:
    assert not re.search(r"pip install '?(fedbasis|pflbed)\b", text_of(page))


def test_the_readme_is_short() -> None:
    assert len(text_of(ROOT / "README.md").splitlines()) < 110
