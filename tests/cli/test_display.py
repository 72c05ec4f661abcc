"""The table of results marks the best row of a size, and rows that are not significantly worse."""

import numpy as np
from rich.text import Text

from fedbasis.cli.display import results_table
from fedbasis.serving.evaluation import ResultRow


def row(how: str, size: str, scores: list[float]) -> ResultRow:
    per_client = {f"client {i}": score for i, score in enumerate(scores)}
    mean = float(np.mean(scores))
    return ResultRow("fedavg", f"FedAvg + {how}", how, size, 0.01, mean, mean, mean, 0.1, per_client)


def marked(rows: list[ResultRow]) -> dict[str, list[bool]]:
    """Return for every size and row whether Last is bold."""
    table = results_table(rows, {"S": 0.5, "M": 1.0}, "title")
    found = {}
    for column in table.columns:
        if str(column.header).endswith("Last"):
            cells = list(column.cells)
            found[str(column.header)] = [isinstance(cell, Text) and "bold" in str(cell.style) for cell in cells]
    return found


def test_the_best_and_its_ties_are_bold_and_others_are_not() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(0.5, 0.8, 40)
    near, far = base + rng.normal(0, 0.02, 40), base - 0.05 + rng.normal(0, 0.02, 40)
    rows = [row("lp", "S", list(base)), row("ft", "S", list(near)), row("bn", "S", list(far))]
    rows += [row("lp", "M", list(base)), row("ft", "M", list(far)), row("bn", "M", list(far))]
    assert marked(rows) == {"S Last": [True, True, False], "M Last": [True, False, False]}


def test_where_all_rows_tie_none_is_bold() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(0.5, 0.8, 40)
    rows = [row(how, "S", list(base + rng.normal(0, 0.02, 40))) for how in ("lp", "ft", "bn")]
    assert marked(rows) == {"S Last": [False, False, False]}
