"""What is not a run is refused in one sentence."""

from pathlib import Path

import pytest

from fedbasis.report import write_report
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
