"""The report: right numbers, nothing from outside, hostile names harmless, unfinished runs shown, same bytes twice."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pflbed
from fedbasis.cli.inspection import describe_folder
from fedbasis.report import write_report
from fedbasis.report.groups import Group, grouped
from fedbasis.report.headline import caveats, headline
from fedbasis.report.runs import read_runs
from fedbasis.report.tables import results
from fedbasis.training.runs import Run
from pflbed import InputError, Spec, Table

HOSTILE = "<script>alert('$x\\frac$')</script>&\"\x01"
SHARES = {"S": 0.5, "M": 1.0}
CONFIG: dict[str, Any] = {"seed": 0, "data": {"sizes": {"M": 1.0, "S": 0.5}}, "train": {"rounds": 3}}

Scores = dict[str, dict[str, list[float]]]  # way -> size -> accuracy of every new client


def benchmark_of(
    domains: tuple[str, ...], classes: tuple[str, ...], seed: int = 0, data: str = "d1"
) -> pflbed.Benchmark:
    count = len(domains) * 80
    table = Table(
        paths=tuple(f"image {i}" for i in range(count)), labels=np.arange(count) % len(classes),
        domains=np.arange(count) // 80, class_names=classes, domain_names=domains, digest=data * 32,
    )  # fmt: skip
    return pflbed.build(table, Spec(clients_per_domain=2, new_clients_per_domain=2, sizes=SHARES, seed=seed))


def make_run(
    folder: Path, method: str, scores: Scores, *, domains: tuple[str, ...] = ("ink", "chalk"),
    classes: tuple[str, ...] = ("cat", "dog"), seed: int = 0, rounds: int = 3,
    split: int | None = None, settings: dict[str, Any] | None = None, data: str = "d1",
) -> Run:  # fmt: skip
    """Write a run folder by hand; without scores it is unfinished, and ``split`` is its benchmark's seed if another."""
    folder.mkdir(parents=True)
    config = {**CONFIG, "seed": seed, "method": {"name": method, **(settings or {})}}
    config["data"] = {**config["data"], "source": f"images/{data}"}
    (folder / "config.json").write_text(json.dumps(config))
    lines: list[dict[str, Any]] = []
    for number in range(1, rounds + 1):
        line: dict[str, Any] = {"round": number, "rounds": 3, "clients": 4, "refused": [], "seconds": 2.0, "loss": 1.0}
        line |= {"bytes_up": 1000, "bytes_down": 1000 * number, "validation": None if number == 1 else 0.5}
        if method == "fedbasis":
            line |= {"phase": "bases" if number > 1 else "warm-up"}
            line |= {"cosine": {"network": 0.9, "one": 0.8, "two": 1.0}} if number > 1 else {}
            line |= {"entropy": {"one": 0.2, "two": 0.4}} if number > 2 else {}
        lines.append(line)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if not scores:
        return Run(folder)
    benchmark = benchmark_of(domains, classes, seed if split is None else split, data)
    rows, records = [], []
    for how, by_size in scores.items():
        for size, values in by_size.items():
            per_client = dict(zip(benchmark.new, values, strict=True))
            mean = float(np.mean(values))
            rows.append({
                "method": method, "how": how, "size": size, "rate": 0.01, "last": mean, "best": mean + 0.02,
                "delta": 0.02, "last_global": 0.5, "seconds": 1.5, "per_client": per_client,
            })  # fmt: skip
            for client in benchmark.new:
                for rate in (0.01, 0.05):
                    record: dict[str, Any] = {
                        "client": client,
                        "domain": client.rpartition("/")[0],
                        "how": how,
                        "size": size,
                    }
                    record |= {
                        "rate": rate,
                        "validate_every": 1,
                        "validation": [0.5, 0.6],
                        "losses": [float("nan"), 1.0],
                    }
                    alpha = {"alpha": {"one": [0.25, 0.75], "two": [1.0, 0.0]}} if "coefficients" in how else {}
                    records.append(record | alpha)
    (folder / "evaluation.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "results.json").write_text(json.dumps(rows))
    benchmark.save(folder / "benchmark")
    (folder / "done").write_text("{}")
    return Run(folder)


FEDAVG: Scores = {
    "none": {"S": [0.4, 0.4, 0.6, 0.6], "M": [0.4, 0.4, 0.6, 0.6]},
    "ft": {"S": [0.7, 0.7, 0.8, 0.9], "M": [0.9, 0.9, 0.9, 0.9]},
}
LEARNED_FT = ("77.5", "79.5", "2.0", "0.01", "1.50", "90.0", "92.0", "2.0", "0.01", "1.50")
LEARNED_BASES = ("81.2", "83.2", "2.0", "0.01", "1.50", "82.5", "84.5", "2.0", "0.01", "1.50")
FEDBASIS: Scores = {"coefficients+classifier": {"S": [0.8, 0.8, 0.7, 0.95], "M": [0.8, 0.8, 0.85, 0.85]}}


def groups_of(runs: list[Run]) -> list[Group]:
    return grouped(read_runs(runs))


def two_in(folder: Path) -> list[Run]:
    return [make_run(folder / "fedavg-a", "fedavg", FEDAVG), make_run(folder / "fedbasis-b", "fedbasis", FEDBASIS)]


def page(runs: list[Run], folder: Path) -> str:
    path = folder / "out" / "report.html"
    write_report(runs, path)
    assert [child.name for child in path.parent.iterdir()] == ["report.html"]
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of both methods, written once."""
    folder = tmp_path_factory.mktemp("two")
    return page(two_in(folder), folder)


class Reader(HTMLParser):
    """Collects the tables, every tag with its attributes, and the ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[tuple[str, str]]]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append(("", dict(attrs).get("title") or ""))
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("th", "td")

    def handle_data(self, data: str) -> None:
        if self._cell:
            text, title = self.tables[-1][-1][-1]
            self.tables[-1][-1][-1] = (text + data, title)


def texts(row: list[tuple[str, str]]) -> list[str]:
    return [text for text, _ in row]


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
    start = "<p>FedBasis reaches 81.2\xa0% on 4 new clients with S data; "
    assert f"{start}not significantly worse: FedAvg + FT (77.5\xa0%).</p>" in text
    start = "<p>FedAvg + FT reaches 90.0\xa0% on 4 new clients with M data; "
    assert f"{start}all other rows are significantly worse.</p>" in text


def test_a_tie_has_no_winner(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, name, {"lp": {"S": [0.5] * 4}}) for name in ("fedavg", "mine")]
    (sentence,) = headline(groups_of(runs))
    assert sentence.startswith("FedAvg + LP reaches 50.0\xa0% on 4 new clients with S data; ")
    assert sentence.endswith("not significantly worse: mine + LP (50.0\xa0%).")


def test_every_section_is_there_in_order(text: str) -> None:
    found = re.findall(r'<h2 id="(\w+)"', text)
    assert found == ["results", "clients", "training", "adaptation", "learned", "who", "cost", "provenance"]
    assert text.count("<svg") == 2 + 2 + 2 + 2 + 2 + 2  # sizes, curves, bases, ways that learn, blocks, populations
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
    assert "<p>FedBasis reaches 81.2\xa0% on 4 new clients with S data.</p>" in page(two[1:], tmp_path)
    unfinished = make_run(tmp_path / "fedbasis-c", "fedbasis", {}, rounds=1)
    alone = page([unfinished], tmp_path)
    assert "FedBasis (fedbasis-c) has no results yet: 1 of 3 rounds are done" in alone
    assert "0 of 3 rounds are" in page([make_run(tmp_path / "fedavg-d", "fedavg", {}, rounds=0)], tmp_path)
    both = page([*two, unfinished], tmp_path)
    assert "has no results yet" in both
    assert "FedBasis · b reaches 81.2\xa0%" in both  # two runs of a method and a seed go by their folders


def test_runs_on_other_clients_are_not_compared(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", "fedbasis", FEDBASIS)
    other = make_run(tmp_path / "b", "fedavg", FEDAVG, domains=("oil", "wax"), seed=1)
    groups = groups_of([first, other, first])
    assert [group.name for group in groups] == ["FedBasis", "FedAvg"]
    assert headline(groups)[0] == "FedBasis reaches 81.2\xa0% on 4 new clients with S data."
    assert "did not serve the same clients" in caveats(groups)[0]
    assert not any(cell.best for _, cells in results(groups).rows for cell in cells)
    third = make_run(tmp_path / "c", "mine", FEDBASIS)
    groups = groups_of([first, other, third])
    assert caveats(groups)[0].startswith("FedAvg did not serve the same clients as the rest")
    marked = {head.text for head, cells in results(groups).rows if any(cell.best for cell in cells)}
    assert marked == {"FedBasis", "mine"}


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    two = two_in(tmp_path)
    path = tmp_path / "page.html"
    with pytest.raises(InputError, match="at least one run"):
        write_report([], path)
    with pytest.raises(InputError, match=r"has no config\.json"):
        write_report([Run(tmp_path)], path)
    with pytest.raises(InputError, match="is a folder"):
        write_report(two, tmp_path)
    good = two[0].results.read_text()
    for bad in ('[{"method": "fedavg"}]', "[1]", "3", good.replace("0.4", '"much"'), good.replace('"rate"', '"rote"')):
        two[0].results.write_text(bad)
        with pytest.raises(InputError, match="must hold the results"):
            write_report(two, path)
    two[0].config.write_text("{")
    with pytest.raises(InputError, match="cannot be read as JSON"):
        write_report(two, path)
    two[0].config.write_text("{}")
    with pytest.raises(InputError, match="must have a valid 'method'"):
        write_report(two, path)
    assert not path.exists()


DAMAGE: dict[str, list[bytes]] = {
    "config.json": [b"\xff\xfe", b"3", b'{"method": {"name": "a"}, "data": 3}', b'{"method": {"name": 3}}',
                    b'{"method": {"name": "a"}, "seed": "x"}',
                    b'{"method": {"name": "a"}, "data": {"sizes": {"S": "half"}}}'],
    "results.json": [b"\xff\xfe", b'[{"method": "fedavg", "how": "f'],
    "metrics.jsonl": [b"\xff\xfe\n", b'{"loss": 1.0}\n', b"3\n", b'{"round": 1, "rounds": 3, "cosine": 0.5}\n',
                      b'{"round": "one", "rounds": 3}\n'],
    "evaluation.jsonl": [b"\xff\xfe\n", b'{"client": "ink/n00"}\n', b"[]\n"],
    "benchmark/card.json": [b"\xff\xfe", b"{}", b"[1]"],
    "bases/card.json": [b"\xff\xfe", b"[1]", b'{"provenance": 3}'],
}  # fmt: skip


@pytest.mark.parametrize(("name", "content"), [(name, content) for name, all_ in DAMAGE.items() for content in all_])
def test_a_damaged_file_is_named_in_one_sentence(name: str, content: bytes, tmp_path: Path) -> None:
    runs = two_in(tmp_path)
    path = runs[0].folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(path.name)):
        write_report(runs, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    if "/" not in name and name != "evaluation.jsonl":  # which are not read to describe a run
        with pytest.raises(InputError, match=re.escape(path.name)):
            list(describe_folder(runs[0].folder))


def test_a_log_that_lacks_numbers_is_described_without_them(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "fedavg", {})
    run.metrics.write_text('{"round": 1, "rounds": 3, "loss": null, "refused": null, "cosine": null}\n')
    assert "Round 1/3: loss nan" in "\n".join(map(str, describe_folder(run.folder)))
    assert "1 of 3 rounds are done" in page([run], tmp_path)


def test_logged_predictions_are_scored_anew(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "fedavg", {"ft": {"S": [0.5] * 4}})
    (data,) = read_runs([run])
    assert data.benchmark is not None
    records = [json.loads(line) for line in run.evaluation.read_text().splitlines()]
    for record in records:
        labels = data.benchmark.table.labels[data.benchmark.held_rows(record["client"], "test")].tolist()
        record |= {"last_predicted": [1 - label for label in labels], "best_predicted": labels}
    run.evaluation.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert data.accuracies("ft", "S") == {0.01: (0.0, 1.0), 0.05: (0.0, 1.0)}
    records[0]["last_predicted"] = [0]
    run.evaluation.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(InputError, match="cannot be scored"):
        data.accuracies("ft", "S")
