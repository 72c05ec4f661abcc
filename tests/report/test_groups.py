"""Runs that differ by their seed alone are one row, with the mean and the deviation; everything else stays apart."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbasis.report import find_runs
from fedbasis.report.colors import OTHERS, method_styles
from fedbasis.report.groups import apart
from fedbasis.report.headline import caveats, headline
from fedbasis.report.names import suffixes
from fedbasis.report.runs import read_runs
from fedbasis.report.svg import Sheet, style
from fedbasis.report.tables import NOTHING, by_client, results, training_cost
from fedbasis.report.testbeds import by_testbed
from fedbasis.report.training import training
from fedbasis.training.runs import Run
from helpers.report_runs import Reader, groups_of, make_run, page, texts
from pflbed import InputError

SCORES = {0: [0.4, 0.5, 0.6, 0.7], 1: [0.5, 0.5, 0.7, 0.7], 2: [0.6, 0.6, 0.6, 1.0]}


def seeds_of(folder: Path, method: str, **more: Any) -> list[Run]:
    return [
        make_run(folder / f"{method}-{seed}", method, {"ft": {"S": scores, "M": scores}}, seed=seed, **more)
        for seed, scores in SCORES.items()
    ]


def test_a_row_is_the_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    (group,) = groups_of(seeds_of(tmp_path, "fedavg")[::-1])
    assert [run.seed for run in group.runs] == [0, 1, 2]
    means = [np.mean(scores) for scores in SCORES.values()]
    ((head, cells),) = results([group]).rows
    assert head.text == "FedAvg + FT"
    assert cells[0].text == f"{100 * np.mean(means):.1f} ± {100 * np.std(means, ddof=1):.1f}"
    assert cells[0].run == "fedavg-0, fedavg-1, fedavg-2"
    assert len(group.scores("ft", "S")) == 12  # every seed has clients of its own
    assert str(headline([group])[0]) == "FedAvg + FT reaches 61.7\xa0% at size S on 12 new clients of 3 splits."
    assert [row[0].text for row in results(apart([group])).rows] == [f"FedAvg + FT · seed {seed}" for seed in SCORES]


def test_older_runs_without_a_newer_setting_are_seeds_of_the_same_group(tmp_path: Path) -> None:
    runs = seeds_of(tmp_path, "fedavg")
    config = json.loads(runs[0].config.read_text())
    config["train"].pop("download", None)
    runs[0].config.write_text(json.dumps(config))
    config = json.loads(runs[1].config.read_text())
    config["train"]["download"] = "float32"
    runs[1].config.write_text(json.dumps(config))
    assert len(groups_of(runs[:2])) == 1
    config["train"]["download"] = "bfloat16"
    runs[1].config.write_text(json.dumps(config))
    assert len(groups_of(runs[:2])) == 2


def test_a_client_that_every_seed_serves_counts_once(tmp_path: Path) -> None:
    (group,) = groups_of(seeds_of(tmp_path, "fedavg", split=0))
    assert list(group.scores("ft", "S").values()) == pytest.approx(np.mean(list(SCORES.values()), axis=0).tolist())


def test_the_worst_tenth_is_the_mean_of_the_lowest(tmp_path: Path) -> None:
    (group,) = groups_of(seeds_of(tmp_path, "fedavg"))
    everyone = np.sort(np.concatenate(list(SCORES.values())))
    values = [everyone[0], everyone[:2].mean(), np.median(everyone), everyone[-2:].mean(), everyone.std(ddof=1)]
    assert [cell.value for cell in by_client([group]).rows[0][1][:5]] == pytest.approx(values)


def test_settings_tell_groups_apart(tmp_path: Path) -> None:
    runs = seeds_of(tmp_path / "sharp", "fedbasis", settings={"tau": 0.1})
    runs += seeds_of(tmp_path / "soft", "fedbasis", settings={"tau": 1})
    assert [group.name for group in groups_of(runs)] == ["FedBasis · tau 0.1", "FedBasis · tau 1"]
    again = make_run(tmp_path / "again" / "fedbasis-0x", "fedbasis", {}, settings={"tau": 1})
    assert [len(group.runs) for group in groups_of([*runs, again])] == [3, 1, 1, 1, 1]  # seed 0 twice: none is merged


def test_runs_without_a_difference_go_by_their_folders(tmp_path: Path) -> None:
    places = [tmp_path / where / "fedavg-abc" for where in "xy"]
    assert suffixes(read_runs([make_run(place, "fedavg", {}) for place in places])) == [" · abc (1)", " · abc (2)"]


def test_an_unfinished_seed_is_shown_and_keeps_its_group_out_of_the_comparison(tmp_path: Path) -> None:
    runs = seeds_of(tmp_path, "fedavg") + seeds_of(tmp_path, "fedprox") + seeds_of(tmp_path, "ditto")
    runs[-1].results.unlink()
    for path in (runs[-1].folder / "benchmark").iterdir():  # it is written with the results
        path.unlink()
    groups = groups_of(runs)
    assert [len(group.runs) for group in groups] == [3, 3, 3]
    notes = caveats(groups)
    assert notes[0].startswith("Ditto of seed 2 (ditto-2) has no results yet: 3 of 3 rounds are done")
    assert notes[1].startswith("Ditto did not serve the same clients as the rest")
    assert not any(cells[0].best for _, cells in results(groups).rows)  # the two that are compared are the same


def test_other_data_and_other_clients_stand_in_tables_of_their_own(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, name, {"ft": {"S": SCORES[0]}}) for name in ("fedavg", "fedprox")]
    runs.append(make_run(tmp_path / "other", "fedavg", {"ft": {"S": SCORES[1]}}, data="e2"))
    kept = make_run(tmp_path / "kept", "ditto", {"client-state": {"S": SCORES[2]}}, data="e2")
    config = json.loads(kept.config.read_text())
    kept.config.write_text(json.dumps({**config, "personalize": {"whom": "participating"}}))
    groups = groups_of([*runs, kept])
    titles = ["d1, new clients", "e2, new clients", "e2, participating clients"]
    assert [testbed.title for testbed in by_testbed(groups)] == titles
    assert [len(testbed.groups) for testbed in by_testbed(groups)] == [2, 1, 1]
    assert caveats(groups) == []
    said = list(map(str, headline(groups)))
    assert said[0] == (
        f"{titles[0]}: No significant difference at size S on 4 new clients between FedAvg + FT · source d1 with "
        "55.0\xa0% and FedProx + FT with 55.0\xa0%."
    )
    assert said[2] == f"{titles[2]}: Ditto reaches 70.0\xa0% at size S on 4 participating clients."
    text = page([*runs, kept], tmp_path)
    assert re.findall("<h3>(.*clients)</h3>", text)[:3] == titles
    assert texts(Reader(text).tables[2][2]) == ["Ditto", "70.0", NOTHING, NOTHING, NOTHING, "1.50"]


def test_many_methods_stay_readable(tmp_path: Path) -> None:
    runs = [run for number in range(9) for run in seeds_of(tmp_path, f"method {number}")]
    groups = groups_of(runs)
    with style():
        panels = training(groups, Sheet())
    assert [len(panel.legend) for panel in panels] == [5, 5]  # at most TOGETHER; the strongest is in both
    assert len({(style.color, style.dash) for style in method_styles(groups).values()}) == 9
    for panel in panels:
        for svg in panel.figures:
            assert set(re.findall(r"stroke: (#\w{6})", svg)) & set(OTHERS) == {entry.color for entry in panel.legend}
    text = page(runs, tmp_path)
    main, every_run, *_ = Reader(text).tables
    assert (len(main), len(every_run)) == (2 + 9, 2 + 27)
    ids = {attributes["id"] for _, attributes in Reader(text).tags if "id" in attributes}
    assert {f"#{name}" for name in ids if name and name.startswith("from-")} == set(
        re.findall(r'href="(#from-\d+)"', text)
    )
    assert len(text) < 2_000_000


def test_memory_is_shown_where_the_log_has_it(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, name, {}) for name in ("fedavg", "fedprox")]
    assert "peak" not in training_cost(groups_of(runs)).columns
    runs[0].metrics.write_text(runs[0].metrics.read_text().replace('"loss"', '"peak_memory": 3e6, "loss"'))
    grid = training_cost(groups_of(runs))
    assert grid.columns[-1] == "peak"
    assert [cells[-1].text for _, cells in grid.rows] == ["3.0 MB", NOTHING]


def test_privacy_is_shown_where_the_log_has_it(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, name, {}) for name in ("fedavg", "fedprox")]
    assert "ε" not in training_cost(groups_of(runs)).columns
    lines = [json.loads(line) for line in runs[0].metrics.read_text().splitlines()]
    spent = [{**line, "epsilon": 1.5 * line["round"], "delta": 1e-3} for line in lines]
    runs[0].metrics.write_text("".join(json.dumps(line) + "\n" for line in spent))
    grid = training_cost(groups_of(runs))
    assert grid.columns[-2:] == ["ε", "δ"]
    told = [f"{1.5 * len(lines):.2f}", "1.0e-03"]
    assert [[cell.text for cell in cells[-2:]] for _, cells in grid.rows] == [told, [NOTHING] * 2]
    text = page(runs, tmp_path)
    assert "docs/how-to/privacy.md" in text
    assert f"{1.5 * len(lines):.2f}" in text


def test_runs_are_found_in_folders_of_folders(tmp_path: Path) -> None:
    one, two = seeds_of(tmp_path / "deep" / "er", "fedavg")[:2]
    assert [run.folder for run in find_runs([one.folder, tmp_path / "deep"])][:2] == [one.folder, two.folder]
    assert len(find_runs([tmp_path])) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="must be a run, or hold runs"):
        find_runs([tmp_path, tmp_path / "empty"])
    with pytest.raises(InputError, match="there is no folder"):
        find_runs([tmp_path / "nowhere"])


def test_a_table_says_the_same_in_the_page(tmp_path: Path) -> None:
    runs = seeds_of(tmp_path, "fedavg")
    main = Reader(page(runs, tmp_path)).tables[0]
    assert texts(main[2])[1:] == [cell.text for cell in results(groups_of(runs)).rows[0][1]]
