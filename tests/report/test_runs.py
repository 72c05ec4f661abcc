"""What is not a run is refused in one sentence; what clients learned has a scale of colours."""

from pathlib import Path

import numpy as np
import pytest

from fedbasis.report import write_report
from fedbasis.report.figures import heat
from fedbasis.report.headline import _and
from fedbasis.report.runs import LearnedTable
from fedbasis.training.runs import Run
from helpers.report_runs import two_in
from pflbed import InputError


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
    with pytest.raises(InputError, match="must be JSON, but it is not"):
        write_report(two, path)
    two[0].config.write_text("{}")
    with pytest.raises(InputError, match="must have a valid 'method'"):
        write_report(two, path)
    assert not path.exists()


def test_colours_span_all_numbers_of_a_table_that_holds_no_shares() -> None:
    rows = {"one": {"a": [0.0, 4.0], "b": [-2.0, 1.0]}, "two": {"a": [0.5, 0.5]}}
    assert LearnedTable("Gains", ["x", "y"], rows).span == (0.0, 1.0)
    assert LearnedTable("Gains", ["x", "y"], rows, shares=False).span == (-2.0, 4.0)
    assert LearnedTable("Gains", ["x"], {"one": {"a": [3.0]}}, shares=False).span == (3.0, 4.0)
    drawn = heat(rows["one"], "one", ["x", "y"], span=(-2.0, 4.0)).axes[0].collections[0].get_array()
    assert np.asarray(drawn)[..., 3].ravel() == pytest.approx([1 / 3, 1.0, 0.0, 0.5])  # not cut off at 0 and 1


def test_a_list_ends_with_and() -> None:
    assert [_and([]), _and(["a"]), _and(["a", "b"]), _and(["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
