"""Numbers that README.md and docs/results/index.md quote are those of the committed tables."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"


def measured(path: Path) -> dict[str, dict[str, float]]:
    """Row -> column -> number."""
    with path.open(encoding="utf-8", newline="") as file:
        head, *rows = list(csv.reader(file))
    return {row[0]: {name: float(cell) for name, cell in zip(head[1:], row[1:], strict=True) if cell} for row in rows}


def main_rows(folder: str) -> dict[str, dict[str, float]]:
    """Return the rows of the main tables of a scale."""
    paths = [RESULTS / folder / "tables" / f"{name}.csv" for name in ("all-methods", "new-clients")]
    return {row: numbers for path in paths if path.exists() for row, numbers in measured(path).items()}


def quoted(page: str, section: str) -> list[list[str]]:
    """Return the rows of the first table of a section of the page, without its head."""
    text = (RESULTS / page).read_text(encoding="utf-8").split(f"\n## {section}\n")[1]
    lines = text[text.index("\n| row") :].lstrip("\n").split("\n\n")[0].splitlines()
    return [[cell.strip().strip("*") for cell in line.strip("|").split("|")] for line in lines[2:]]


def row_of(cell: str, rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """Find the row of the table that a cell names; what follows a comma is a remark, and strengths are left out."""
    name = re.sub(r"\(prox [\d.]+\)", "(prox)", cell.split(", ", maxsplit=1)[0])
    return rows["FedAvg" if name == "FedAvg as it is" else name]


@pytest.mark.parametrize(
    ("section", "folder"), [("PACS at 32 pixels", "cpu"), ("PACS with an ImageNet network", "photo")]
)
def test_the_main_tables_of_the_results_are_the_committed_ones(section: str, folder: str) -> None:
    rows = main_rows(folder)
    found = quoted("index.md", section)
    assert len(found) >= 14
    ours = rows["FedBasis + class prior"]
    for name, *cells in found:
        mine = row_of(name, rows)
        for size, cell, gap in zip("SM", cells[:2], cells[2:], strict=True):
            assert cell.strip("*") == f"{mine[f'{size} Last']:.1f}", (name, size)
            if gap:  # rounded once, from the scores of clients
                assert float(gap.split(" ± ")[0]) == pytest.approx(
                    ours[f"{size} Last"] - mine[f"{size} Last"], abs=0.11
                )


def test_every_row_that_is_trained_says_at_which_rate() -> None:
    with (RESULTS / "cpu" / "tables" / "new-clients-chosen-pacs.csv").open(encoding="utf-8", newline="") as file:
        rates = {row[""]: (row["S rate"], row["M rate"]) for row in csv.DictReader(file)}
    assert len(rates) >= 20
    untrained = {name for name, mine in rates.items() if not any(mine)}
    assert untrained == {"FedAvg", "FedAvg + class prior", "kNN-Per"}


def test_the_cifar_table_of_the_results_is_the_committed_one() -> None:
    tables = [measured(RESULTS / "cpu" / "tables" / f"cifar-new-{number}.csv") for number in (1, 2)]
    found = quoted("index.md", "CIFAR-10 and CIFAR-100")
    assert len(found) >= 14
    for name, *cells in found:
        assert [cell.strip("*") for cell in cells] == [f"{row_of(name, rows)['here']:.1f}" for rows in tables], name


def test_the_readme_quotes_the_committed_tables() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith(("| PACS at", "| CIFAR"))]
    assert len(lines) == 4
    tables = {
        "PACS at 32": main_rows("cpu"),
        "PACS at 96": main_rows("photo"),
        "CIFAR-100": measured(RESULTS / "cpu" / "tables" / "cifar-new-2.csv"),
        "CIFAR-10;": measured(RESULTS / "cpu" / "tables" / "cifar-new-1.csv"),
    }
    for where, ours, theirs in lines:
        rows = next(rows for start, rows in tables.items() if where.strip().startswith(start))
        for cell, own in ((ours, True), (theirs, False)):
            for number in re.findall(r"\d\d\.\d", cell):
                names = {name for name, row in rows.items() for value in row.values() if f"{value:.1f}" == number}
                assert any(name.startswith("FedBasis") == own for name in names), (where, number)
        best = {size: max(row.get(size, 0.0) for name, row in rows.items() if not name.startswith("FedBasis"))
                for size in (("S Last", "M Last") if where.strip().startswith("PACS") else ("here",))}  # fmt: skip
        assert re.findall(r"\d\d\.\d", theirs) == [f"{value:.1f}" for value in best.values()], where
