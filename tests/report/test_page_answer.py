"""The top of the page: who leads, who ties and who is worse, said by the sentences, the chart and the table alike."""

import re
from pathlib import Path

import pytest

from fedbasis.report import write_report
from fedbasis.report.answer import ROWS, answer
from fedbasis.report.colors import method_styles
from fedbasis.report.headline import caveats, headline
from fedbasis.report.panels import accuracy_before, adaptation
from fedbasis.report.ranking import LEAD, TIED, WORSE, ranked
from fedbasis.report.svg import Sheet, style
from fedbasis.report.tables import SHARED, results, training_cost
from fedbasis.report.testbeds import by_testbed
from fedbasis.training.runs import Run
from helpers.report_page import groups_of, write_run

BEST = [0.80, 0.90, 0.84, 0.94]
CLOSE = [0.81, 0.87, 0.86, 0.92]
LOW = [0.60, 0.72, 0.63, 0.75]
OWN = "coefficients+classifier"


@pytest.fixture
def three(tmp_path: Path) -> list[Run]:
    return [
        write_run(tmp_path / "fedavg-a", "fedavg", {"none": LOW, "ft": CLOSE}),
        write_run(tmp_path / "fedbasis-b", "fedbasis", {OWN: BEST}),
    ]


def test_a_whisker_reaches_the_leader_where_the_difference_is_not_significant(three: list[Run]) -> None:
    rows = ranked(groups_of(three), "S")
    assert [(row.title, row.mark) for row in rows] == [("FedBasis", LEAD), ("FedAvg + FT", TIED), ("FedAvg", WORSE)]
    leader = rows[0].mean
    for row in rows[1:]:
        assert row.interval is not None
        low, high = row.interval
        assert low < row.mean < high
        assert (high >= leader) == (row.mark == TIED)


def test_the_chart_holds_every_row_on_one_scale(three: list[Run]) -> None:
    groups = groups_of(three)
    (testbed,) = by_testbed(groups)
    chart = answer(testbed, method_styles(groups))
    (panel,) = chart.panels
    assert panel.title == "Size S: half of a client's training images"
    assert [dot.value for dot in panel.dots] == ["87.0", "86.5", "67.5"]
    assert [dot.own for dot in panel.dots] == [True, False, False]
    places = [dot.at for dot in panel.dots]
    assert places == sorted(places, reverse=True)
    assert all(0 <= place <= 100 for place in places)
    assert panel.ticks[0][1] == 0
    assert panel.ticks[-1][1] == 100
    assert "FedAvg + FT: 86.5 %, not significantly worse" in panel.label


def test_fedbasis_is_drawn_however_far_behind(tmp_path: Path) -> None:
    names = ["fedavg", *(f"method{i}" for i in range(ROWS + 3))]
    runs = [write_run(tmp_path / name, name, {"ft": CLOSE}) for name in names]
    runs.append(write_run(tmp_path / "own", "fedbasis", {OWN: LOW}))
    groups = groups_of(runs)
    (panel,) = answer(by_testbed(groups)[0], method_styles(groups)).panels
    assert len(panel.dots) == ROWS
    assert panel.dots[-1].own
    assert panel.left == len(runs) - ROWS
    assert str(headline(groups)[0]).endswith(f"FedBasis is number {len(runs)} of {len(runs)} with 67.5\xa0%.")


def test_the_sentence_says_by_how_much_and_who_ties(three: list[Run], tmp_path: Path) -> None:
    where = "FedBasis leads with 87.0\xa0% at size S on 4 new clients"
    assert [str(one) for one in headline(groups_of(three))] == [
        f"{where}, 0.5 points ahead of FedAvg + FT with 86.5\xa0%, which is not significantly worse."
    ]
    worse = [write_run(tmp_path / "ditto-c", "ditto", {"ft": LOW}), three[1]]
    assert str(headline(groups_of(worse))[0]) == (
        f"{where}, 19.5 points ahead of Ditto + FT with 67.5\xa0%. The difference is significant."
    )


def test_no_difference_is_said_once_and_nothing_is_bold(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, name, {"ft": CLOSE}) for name in ("fedavg", "ditto", "fedprox")]
    groups = groups_of(runs)
    assert str(headline(groups)[0]).startswith("No significant difference at size S on 4 new clients from the best: ")
    grid = results(groups)
    assert not any(cell.best for _, cells in grid.rows for cell in cells)
    assert grid.note == "At size S no row differs significantly from the best one, so none is bold."
    runs += [write_run(tmp_path / f"method{i}", f"method{i}", {"ft": CLOSE}) for i in range(3)]
    runs.append(write_run(tmp_path / "low", "fedrep", {"ft": LOW}))
    grid = results(groups_of(runs))
    assert not any(cell.best for _, cells in grid.rows for cell in cells)
    assert grid.note == "At size S only FedRep + FT differs significantly from the best one, so none is bold."


def test_the_best_and_its_ties_are_bold_where_something_differs(three: list[Run], tmp_path: Path) -> None:
    grid = results(groups_of(three))
    assert [cells[0].best for _, cells in grid.rows] == [False, True, True]
    assert grid.note == ""
    write_report(three, tmp_path / "page.html")
    assert re.findall(r"<b>([\d.]+)</b>", (tmp_path / "page.html").read_text(encoding="utf-8")) == ["86.5", "87.0"]


def test_before_is_the_common_model_where_the_log_has_it(tmp_path: Path) -> None:
    told = write_run(tmp_path / "a", "fedbasis", {OWN: BEST}, more={"before": 0.25})
    common = write_run(tmp_path / "b", "fedavg", {"none": LOW, "ft": CLOSE})
    unknown = write_run(tmp_path / "c", "ditto", {"ft": CLOSE})
    found = []
    for group in groups_of([told, common, unknown]):
        how = group.ways[-1]
        records = [record for record in group.runs[0].records if record["how"] == how]
        found.append(accuracy_before(group, records, "S"))
    assert found == [pytest.approx(25.0), pytest.approx(30.0), None]
    with style():
        panel = adaptation(groups_of([told, common, unknown]), "S", Sheet())
    assert panel is not None
    assert ["before</text>" in svg for svg in panel.figures] == [True, True, False]


def test_ticks_are_where_points_are_and_one_point_is_a_sentence(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", "fedavg", {"ft": CLOSE}, validation=[0.5, 0.6, 0.7], every=4)
    once = write_run(tmp_path / "b", "ditto", {"ft": CLOSE}, validation=[0.61])
    with style():
        panel = adaptation(groups_of([run, once]), "S", Sheet())
    assert panel is not None
    (svg,) = panel.figures
    ticks = [int(text) for text in re.findall(r">(\d+)</text>", svg)]
    assert ticks[:3] == [4, 8, 12]
    assert panel.note == "Validated after the last epoch only, at the best rate: Ditto + FT 61.0\xa0%."


def test_the_memory_of_a_shared_process_is_not_compared(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, name, {}, line={"peak_memory": 5e8}) for name in ("fedavg", "ditto")]
    runs.append(write_run(tmp_path / "own", "fedbasis", {}, line={"peak_memory": 7e8}))
    grid = training_cost(groups_of(runs))
    assert [cells[-1].text for _, cells in grid.rows] == [SHARED, SHARED, "700.0 MB"]
    assert "shared a process" in grid.note


def test_a_run_that_trains_now_is_not_called_stopped(tmp_path: Path) -> None:
    run = write_run(tmp_path / "fedavg-a", "fedavg", {}, rounds=1)
    assert not run.active
    with run.locked():
        assert run.active
        (note,) = caveats(groups_of([run]))
    assert note == "FedAvg (fedavg-a) has no results yet: training (round 2 of 3)."
    assert not run.active
    (note,) = caveats(groups_of([run]))
    assert note.endswith("1 of 3 rounds are done; training it again resumes it.")


def test_sections_without_content_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "fedavg-a", "fedavg", {}, rounds=1)
    write_report([run], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.findall(r'<h2 id="(\w+)"', text) == ["training", "cost", "provenance"]
    assert re.findall(r'<a href="#(\w+)"', text)[:3] == ["training", "cost", "provenance"]
    assert "<strong>There are no results yet</strong>" in text
