"""The report: right numbers, nothing from outside, hostile names harmless, unfinished runs shown, same bytes twice."""

import re
from pathlib import Path
from typing import Any

import pytest

from fedbasis.report.headline import caveats, headline
from fedbasis.report.tables import results
from helpers.report_runs import FEDAVG, FEDBASIS, HOSTILE, Reader, groups_of, make_run, page, texts, two_in


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of both methods, written once."""
    folder = tmp_path_factory.mktemp("two")
    return page(two_in(folder), folder)


def test_the_tables_hold_the_numbers_and_their_runs(text: str) -> None:
    main, clients, domains, training = Reader(text).tables
    assert texts(main[0]) == ["", "size S", "size M"]
    assert texts(main[1])[1:6] == ["Last", "Best", "|Δ|", "rate", "s/client"]
    assert texts(main[2]) == ["FedAvg", "50.0", "–", "–", "–", "1.50", "50.0", "–", "–", "–", "1.50"]
    assert texts(main[3]) == [
        "FedAvg + FT",
        *(["77.5", "79.5", "2.0", "0.01", "1.50", "90.0", "92.0", "2.0", "0.01", "1.50"]),
    ]
    assert texts(main[4]) == [
        "FedBasis",
        *(["81.2", "83.2", "2.0", "0.01", "1.50", "82.5", "84.5", "2.0", "0.01", "1.50"]),
    ]
    for row, run in ((main[3], "fedavg-a"), (main[4], "fedbasis-b")):
        assert {title for _, title in row} == {run}
    assert re.findall(r"<b>([\d.]+)</b>", text) == ["77.5", "90.0", "81.2"]  # of S one, of M only one is not worse
    assert texts(clients[4])[:6] == ["FedBasis", "70.0", "70.0", "80.0", "95.0", "10.3"]
    assert texts(domains[4])[:5] == ["FedBasis", "80.0", "82.5", "80.0", "85.0"]
    assert texts(training[2])[1:] == ["3", "1.0 kB", "1.0 kB", "2.0 kB", "3.0 kB", "2.0", "0.1"]


def test_the_headline_names_whoever_wins(text: str) -> None:
    start = "<p><strong>FedBasis leads with 81.2\xa0%</strong> at size S on 4 new clients, 3.7 points ahead of "
    assert f"{start}FedAvg + FT with 77.5\xa0%, which is not significantly worse.</p>" in text
    start = "<p><strong>FedAvg + FT leads with 90.0\xa0%</strong> at size M on 4 new clients, 7.5 points ahead of "
    assert f"{start}FedBasis with 82.5\xa0%. All other rows are significantly worse.</p>" in text


def test_a_tie_has_no_winner(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, name, {"lp": {"S": [0.5] * 4}}) for name in ("fedavg", "mine")]
    (sentence,) = headline(groups_of(runs))
    assert str(sentence) == (
        "No significant difference at size S on 4 new clients between FedAvg + LP with 50.0\xa0% and mine + LP with "
        "50.0\xa0%."
    )


def test_every_section_is_there_in_order(text: str) -> None:
    found = re.findall(r'<h2 id="(\w+)"', text)
    assert found == ["results", "clients", "training", "adaptation", "learned", "who", "cost", "provenance"]
    figures = {part[:9]: part.count("<figure") for part in text.split('<h2 id="')[1:]}
    drawn = {name: count for name, count in zip(found, figures.values(), strict=True) if count}
    # sizes; two curves and two charts of the bases; ways that learn; blocks; populations
    assert drawn == {"clients": 2, "training": 4, "adaptation": 2, "learned": 2, "who": 2}
    assert all(part in text for part in ("<!doctype html>", "end of the warm start", "d1" * 32))


def test_nothing_comes_from_outside_and_ids_are_unique(text: str) -> None:
    tags = Reader(text).tags
    links = [value for _, attrs in tags for key, value in attrs.items() if key in ("src", "href", "xlink:href")]
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert "http" not in text
    assert not {"link", "img", "image", "iframe"} & {tag for tag, _ in tags}
    folders = ["../fedavg-a/", "../fedbasis-b/"]  # beside the page, for whoever wants the files
    assert sorted({link for link in links if link and not link.startswith("#")}) == folders
    assert all(link is not None and (link in folders or link[1:] in ids) for link in links)
    assert len(ids) == len(set(ids))
    assert all(match in ids for match in re.findall(r"url\(#([^)]+)\)", text))


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    hostile = HOSTILE.replace("/", "|")
    names: dict[str, Any] = {"domains": (hostile, "日本"), "classes": (hostile, "$")}
    run = make_run(tmp_path / "fedbasis-<b>&", "fedbasis", FEDBASIS, **names)
    other = make_run(tmp_path / "evil", hostile, {"<img>": {"S": [0.5] * 4}}, **names)
    text = page([run, other], tmp_path)
    assert [tag for tag, _ in Reader(text).tags].count("script") == 1
    assert text.count("<script") == 1
    assert not any(part in text for part in ("<img", "<b>&"))
    assert all(part in text for part in ("&lt;script&gt;", "日本"))


def test_the_same_runs_are_the_same_bytes(text: str, tmp_path: Path) -> None:
    assert page(two_in(tmp_path), tmp_path) == text


def test_a_single_run_and_an_unfinished_one(tmp_path: Path) -> None:
    two = two_in(tmp_path)
    assert "<p><strong>FedBasis reaches 81.2\xa0%</strong> at size S on 4 new clients.</p>" in page(two[1:], tmp_path)
    unfinished = make_run(tmp_path / "fedbasis-c", "fedbasis", {}, rounds=1)
    alone = page([unfinished], tmp_path)
    assert "FedBasis (fedbasis-c) has no results yet: 1 of 3 rounds are done" in alone
    assert "0 of 3 rounds are" in page([make_run(tmp_path / "fedavg-d", "fedavg", {}, rounds=0)], tmp_path)
    both = page([*two, unfinished], tmp_path)
    assert "has no results yet" in both
    assert "FedBasis · b leads with 81.2\xa0%" in both  # two runs of a method and a seed go by their folders


def test_runs_on_other_clients_are_not_compared(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", "fedbasis", FEDBASIS)
    other = make_run(tmp_path / "b", "fedavg", FEDAVG, domains=("oil", "wax"), seed=1)
    groups = groups_of([first, other, first])
    assert [group.name for group in groups] == ["FedBasis", "FedAvg"]
    assert str(headline(groups)[0]) == "FedBasis reaches 81.2\xa0% at size S on 4 new clients."
    assert "did not serve the same clients" in caveats(groups)[0]
    assert not any(cell.best for _, cells in results(groups).rows for cell in cells)
    third = make_run(tmp_path / "c", "mine", {"ft": {size: [0.1, 0.2, 0.1, 0.2] for size in "SM"}})
    groups = groups_of([first, other, third])
    assert caveats(groups)[0].startswith("FedAvg did not serve the same clients as the rest")
    marked = {head.text for head, cells in results(groups).rows if any(cell.best for cell in cells)}
    assert marked == {"FedBasis"}
