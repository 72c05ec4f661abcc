"""All tables and figures at the smallest scale: runs shared, killed and taken up again."""

import csv
import functools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from safetensors.torch import load_file
from typer.testing import CliRunner

from fedbasis.cli import app
from fedbasis.experiment.config import parse
from fedbasis.report import svg
from fedbasis.report.runs import RunData
from fedbasis.report.tables import NOTHING
from fedbasis.studies import STUDIES, studies
from fedbasis.studies.base import Setup
from fedbasis.studies.costs import costs
from fedbasis.studies.plan import plan
from fedbasis.studies.run import _settings, carry_out_plan, write_all
from fedbasis.studies.scales import SCALES
from fedbasis.training.events import ignore
from fedbasis.training.runs import Run, read_lines, rewrite_lines
from helpers.cli_reproduce import reproduce
from helpers.cli_trials import wait_until
from pflbed.errors import InputError
from pflbed.sources import digits4


@pytest.fixture(scope="module", autouse=True)
def _read_once() -> Iterator[None]:
    """Forty runs read the same embedded data, and check its digest every time; here once is enough."""
    digits4.make()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits4, "read_cached", functools.cache(digits4.read_cached))
        yield


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """All names at the smallest scale, once for all tests.

    The report has two hundred figures, which take as long as the runs. Of those that differ only in their numbers, one
    is drawn.
    """
    out, kinds = tmp_path_factory.mktemp("reproduced"), dict[str, str]()

    def drawn(figure: Figure) -> str:
        kind = repr([figure.get_size_inches(), *((a.get_title(), a.get_xlabel(), a.get_ylabel()) for a in figure.axes)])
        if kind not in kinds:
            kinds[kind] = draw(figure)
        return kinds[kind]

    draw = svg.drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(svg, "drawn", drawn)
        said = reproduce("all", "--scale", "smoke", "--out", str(out))
    assert len(kinds) > 10
    return out, said


def test_all_names_give_a_page_tables_and_figures(everything: tuple[Path, str]) -> None:
    out, said = everything
    assert "<html" in (out / "report.html").read_text()
    for study in STUDIES.values():
        assert f"({study.name})" in said
    drawn = {"rates", "pca", "curves-rounds", "collapse-cosine-step", "clients-digits4-new", "split-digits4"}
    assert drawn <= {path.stem for path in (out / "figures").glob("*.svg")}
    svg, numbers = ({path.stem for path in (out / "figures").glob(kind)} for kind in ("*.svg", "*.csv"))
    assert svg == numbers
    tables = {path.stem for path in (out / "tables").glob("*.md")}
    assert {"datasets", "new-clients", "ablation", "cifar-participating", "communication", "meta-rates"} <= tables
    assert {"new-clients-chosen-digits4", "pca", "pca-projected"} <= tables
    assert {"parts", "new-clients-costs-digits4", "all-methods-costs-digits4", "cifar-new-costs-shards"} <= tables
    assert "cifar-participating-costs-shards-all" in tables


def test_the_page_of_text_shows_every_table_and_figure_and_how_it_was_made(everything: tuple[Path, str]) -> None:
    out, _ = everything
    page = (out / "results.md").read_text()
    assert "fedbasis reproduce all --scale smoke" in page
    assert "19 of 19 results are on this page" in page
    for path in (out / "figures").glob("*.svg"):
        assert f"(figures/{path.name})" in page
    for path in (out / "tables").glob("*.md"):
        assert path.read_text().strip() in page
    runs = [line.split(" | ") for line in page.splitlines() if line.startswith("| fed")]
    borrowed = {cells[0].strip("| "): cells[3].removeprefix("as ") for cells in runs if cells[3].startswith("as ")}
    for run, donor in borrowed.items():
        assert (out / "runs" / run / "metrics.jsonl").read_text() == (
            out / "runs" / donor / "metrics.jsonl"
        ).read_text()
    assert borrowed


def test_a_table_holds_the_runs_own_numbers_beside_the_papers(everything: tuple[Path, str]) -> None:
    out, _ = everything
    rows = {}
    for line in (out / "tables" / "new-clients.md").read_text().splitlines():
        name, *cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        rows[name] = cells
    (run,) = [Run(folder) for folder in (out / "runs").glob("fedrep-*") if '"whom": "new"' in _config(folder)]
    (row,) = [row for row in json.loads(run.results.read_text()) if (row["how"], row["size"]) == ("lp", "S")]
    assert rows["FedRep + LP"][:3] == [f"{100 * row[key]:.1f}" for key in ("last", "best", "delta")]
    assert rows["FedBasis (as printed)"][3:6] == ["95.2", "95.2", "0.0"]  # the paper's
    assert rows["FedBasis"][3:6] == ["–", "–", "–"]


def _config(folder: Path) -> str:
    return (folder / "config.json").read_text()


def test_runs_that_train_alike_train_once_and_lend_the_rest(everything: tuple[Path, str]) -> None:
    out, _ = everything
    by_training: dict[str, list[Run]] = {}
    for folder in (out / "runs").iterdir():
        by_training.setdefault(json.loads((folder / "done").read_text())["training"], []).append(Run(folder))
    shared = [runs for runs in by_training.values() if len(runs) > 1]
    # FedAvg, Per-FedAvg and both FedBases serve new clients at more rates, or with a pull; kNN-Per trains as FedAvg,
    # for new clients and for those that took part
    assert len(shared) == 6
    for runs in shared:
        assert len({run.metrics.read_text() for run in runs}) == 1  # seconds included: measured once
        assert len({json.loads((run.folder / "done").read_text())["bases"] for run in runs}) == 1
    assert len(by_training) < len(list((out / "runs").iterdir()))


def test_what_is_done_is_only_read(everything: tuple[Path, str]) -> None:
    out, first = everything
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*.jsonl")}
    tables = {f"tables/{name}.md": (out / f"tables/{name}.md").read_text() for name in ("cifar-new", "new-clients")}
    again = reproduce("table-6", "figure-2", "--scale", "smoke", "--out", str(out))
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*.jsonl")} == before
    assert {name: (out / name).read_text() for name in tables} == tables
    for said in (first, again):
        assert not re.search(
            "(Holds|Does not hold|Too close to call|No significant difference) here: ", said
        )  # too small to judge the paper


def test_curves_and_traces_are_measured_along_the_way(everything: tuple[Path, str]) -> None:
    out, _ = everything
    served = [
        [line["served"] for line in read_lines(folder / "metrics.jsonl") if "served" in line]
        for folder in (out / "runs").glob("per-fedavg-fo-*")
        if '"serve_every": 1' in _config(folder)
    ]
    (curve,) = served
    assert len(curve) == 2
    (run,) = [Run(folder) for folder in (out / "runs").glob("per-fedavg-fo-*") if '"serve_every": 1' in _config(folder)]
    rows = json.loads(run.results.read_text())
    assert curve[-1] == next(row["last"] for row in rows if row["size"] == "S")  # the end of training is the end
    traces = [read_lines(path) for path in (out / "runs").glob("*/trace.jsonl")]
    assert len(traces) == 2
    assert all(0 < line["cosine"] <= 1 for trace in traces for line in trace)
    # Within the first round psi has hardly left zero: sharpened to tau = 0.1 or not, its own entropy is near ln 4.
    assert all(1.3 < line["plain_entropy"] <= math.log(4) + 1e-6 for trace in traces for line in trace)
    (components,) = [read_lines(path) for path in (out / "runs").glob("*/components.jsonl")]
    assert [line["components"] for line in components] == [1, 2, 4, 7]


def test_all_components_of_the_fine_tuned_models_lose_nothing(everything: tuple[Path, str]) -> None:
    out, _ = everything
    (path,) = (out / "runs").glob("*/summaries.jsonl")
    lines = {(line["summary"], line["count"]): line["per_client"] for line in read_lines(path)}
    assert list(lines) == [("components", 1), ("components", 2), ("components", 4), ("components", 7), ("centroids", 4)]
    rows = json.loads(Run(path.parent).results.read_text())
    (tuned,) = [row["per_client"] for row in rows if row["how"] == "ft@own"]
    # What is left of a difference is rounding in a mean of eight models: at most an image or two of a client.
    assert lines["components", 7] == pytest.approx(tuned, abs=0.05)
    assert len(tuned) == 8
    assert lines["components", 1] != tuned


def test_the_table_of_what_was_chosen_has_the_runs_own_choices(everything: tuple[Path, str]) -> None:
    out, _ = everything
    lines = (out / "tables" / "new-clients-chosen-digits4.csv").read_text().splitlines()
    chosen = {line.split(",")[0]: line.split(",")[1:] for line in lines}
    assert chosen["FedAvg + FT (frozen statistics)"][:2] == ["frozen", "0.01"]
    assert chosen["FedAvg"][1] == ""  # nothing is trained


def test_the_table_of_costs_counts_bytes_as_files_and_messages_have_them(everything: tuple[Path, str]) -> None:
    out, _ = everything
    with (out / "tables" / "new-clients-costs-digits4.csv").open(newline="") as file:
        costs = {row[""]: row for row in csv.DictReader(file)}
    (folder, *_) = (out / "runs").glob("fedavg-*")
    size = sum(tensor.numpy().nbytes for tensor in load_file(folder / "bases" / "tensors.safetensors").values())
    models = {"FedAvg": 1, "kNN-Per": 1, "FedBasis": 3, "FedBasis (as printed)": 3}  # two bases and a major one
    for name, count in models.items():
        assert costs[name]["new client download, MB"] == f"{count * size / 1e6:#.3g}"
    one = costs["FedAvg"]["new client download, MB"]
    assert costs["FedBasis without coefficients"]["new client download, MB"] == one  # the server can combine the bases
    assert costs["FedAvg"]["a round down, MB"] == costs["FedAvg"]["a round up, MB"] == one
    assert float(costs["FedBasis"]["a round down, MB"]) > float(one)
    assert costs["FedAvg"]["new client numbers"] == "0"
    assert float(costs["FedBasis"]["S s"]) > 0


def test_a_run_without_measured_memory_is_still_read(everything: tuple[Path, str], tmp_path: Path) -> None:
    out, _ = everything
    (run,) = [Run(folder) for folder in (out / "runs").glob("fedrep-*") if '"whom": "new"' in _config(folder)]
    old = Run(shutil.copytree(run.folder, tmp_path / "fedrep-old"))
    lines = [{k: v for k, v in line.items() if k != "peak_memory"} for line in read_lines(old.evaluation)]
    rewrite_lines(old.evaluation, lines)
    grids = [costs("x", "X", {"fedrep": [RunData(one)]}, [("fedrep", "lp")], ["S"]) for one in (run, old)]
    new, before = ([cell.text for cell in grid.rows[0][1]] for grid in grids)
    assert before[1] == NOTHING
    assert (before[0], *before[2:]) == (new[0], *new[2:])


def test_parts_read_the_main_table_and_train_nothing_more(everything: tuple[Path, str]) -> None:
    out, _ = everything
    with (out / "tables" / "parts.csv").open(newline="") as file:
        rows = {row[""].partition(". ")[2]: row for row in csv.DictReader(file)}
    with (out / "tables" / "new-clients.csv").open(newline="") as file:
        main = {row[""]: row for row in csv.DictReader(file)}
    for name in ("FedAvg", "FedAvg + class prior"):
        assert [rows[name][f"{size} Last"] for size in "SM"] == [main[name][f"{size} Last"] for size in "SM"]
    assert len(rows) == 11
    gain = float(rows["FedAvg + class prior"]["M Last"]) - float(rows["FedAvg"]["M Last"])
    assert float(rows["FedAvg + class prior"]["M gain"]) == pytest.approx(gain, abs=0.1001)
    alone = [folder for folder in (out / "runs").glob("fedbasis-*") if "coefficients@own" in _config(folder)]
    (training,) = {json.loads((folder / "done").read_text())["training"] for folder in alone}
    sharing = [f for f in (out / "runs").iterdir() if json.loads((f / "done").read_text())["training"] == training]
    assert len(sharing) > len(alone) == 1


def test_a_dry_run_tells_what_is_done(everything: tuple[Path, str]) -> None:
    out, _ = everything
    said = reproduce("datasets", "ablation", "--dry-run", "--out", str(out))
    assert re.search(r"joint\) +│ digits4 +│ +0 │ ablation +│ done +│", said), said
    assert re.search(r"(\d+) runs: \1 done, 0 to do\.", said), said
    assert " 0 done" in reproduce("ablation", "--dry-run", "--seeds", "2", "--out", str(out / "elsewhere"))


def test_finished_runs_alone_make_a_report_and_nothing_is_trained(everything: tuple[Path, str], tmp_path: Path) -> None:
    for folder in (everything[0] / "runs").glob("fedbasis-*"):
        if '"coordinate_descent": true' in _config(folder):
            shutil.copytree(folder, tmp_path / "runs" / folder.name)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    command = ("ablation", "--scale", "smoke", "--finished", "--out")
    assert "4 of 5 runs are finished" in reproduce(*command, str(tmp_path))
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    text = (tmp_path / "results.md").read_text()
    assert "--finished\n" in text
    assert "1 of 5 runs are missing (joint on digits4, seed 0)" in text
    rows = (tmp_path / "tables" / "ablation.csv").read_text()
    whole = (everything[0] / "tables" / "ablation.csv").read_text()
    assert set(rows.splitlines()) < set(whole.splitlines())
    nothing = CliRunner().invoke(app, ["reproduce", *command, str(tmp_path / "elsewhere")])
    assert isinstance(nothing.exception, InputError)
    assert "needs at least one finished run" in str(nothing.exception)


def test_a_finished_run_has_the_deviations_of_its_arrays_and_is_recognized_all_the_same() -> None:
    setup = Setup(SCALES["photo"], strict=False)
    request = STUDIES["new-clients"].requests(setup)[0]
    data = request.raw["data"]
    finished = {**request.raw, "data": {**data, "mean": [0.5] * data["channels"], "std": [0.2] * data["channels"]}}
    assert _settings(parse(finished)) == _settings(request.experiment)
    other = {**finished, "data": {**finished["data"], "alpha": 0.1}}
    assert _settings(parse(other)) != _settings(request.experiment)


@pytest.mark.parametrize("scale", ["cpu", "photo"])
def test_a_finished_run_is_recognized_when_its_folders_are_elsewhere(scale: str) -> None:
    here = Setup(SCALES[scale], {"": "PACS", "pacs": "features"}, "lite0.safetensors", strict=False)
    there = Setup(SCALES[scale], {"": "/data/PACS", "pacs": "/data/features"}, "/data/lite0.safetensors", strict=False)
    other = Setup(SCALES[scale], {"": "other", "pacs": "others"}, "other.safetensors", strict=False)
    mine, theirs, others = (STUDIES["new-clients"].requests(setup)[0].experiment for setup in (here, there, other))
    assert mine.data.source != theirs.data.source
    assert _settings(mine) == _settings(theirs) != _settings(others)


def test_the_papers_first_table_is_quoted_as_printed(everything: tuple[Path, str]) -> None:
    lines = (everything[0] / "tables" / "datasets.md").read_text().splitlines()
    assert r"| paper\* pacs | 9K | 7 | 224² | Styles | PFLBed |" in lines
    assert r"| paper\* cifar10 | 60K | 10/100 | 32² | None | Dirichlet |" in lines


CHILD = """
import sys, time
def hold(event, args):  # however late it is killed, it has not written its tables
    while event == "os.mkdir" and str(args[0]).endswith("tables"):
        time.sleep(0.1)
sys.addaudithook(hold)
from fedbasis.cli import main
main()
"""


def test_killed_at_any_moment_it_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    outs = [tmp_path / name for name in ("whole", "killed")]
    command = ["cifar-new", "--scale", "smoke", "--methods", "fedavg,fedbasis", "--jobs", "2", "--out"]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, "reproduce", *command, str(outs[1])],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    wait_until(lambda: child.poll() is not None or any((outs[1] / "runs").glob("*/checkpoint.safetensors")))
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (outs[1] / "tables").exists()  # it was stopped before its end
    command[command.index("--jobs") + 1] = "1"
    for out in outs:
        reproduce(*command, str(out))
    whole, resumed = ((out / "tables" / "cifar-new.md").read_text() for out in outs)
    assert whole == resumed
    names = [sorted(path.name for path in (out / "runs").iterdir()) for out in outs]
    assert names[0] == names[1]
    for name in names[0]:
        first, second = (json.loads((out / "runs" / name / "done").read_text()) for out in outs)
        assert first == second


def test_a_run_that_fails_stops_no_other_and_leaves_its_cells_empty(tmp_path: Path) -> None:
    setup, chosen = Setup(SCALES["smoke"], methods=("fedavg", "fedbasis")), studies(["cifar-new"])
    items = plan(chosen, setup)
    lost = replace(items[0].request, raw={**items[0].request.raw, "data": {"source": str(tmp_path / "nowhere")}})
    ended: list[int] = []
    changed = [replace(items[0], request=lost), *items[1:]]
    done = carry_out_plan(changed, tmp_path, 1, lambda *_: ignore, ended.append)
    assert ended == [0, 1, 2]
    assert [item.request.name for item, _ in done.failed] == ["fedavg"]
    assert "nowhere" in str(done.failed[0][1])
    (section,) = write_all(chosen, setup, done, tmp_path, "fedbasis reproduce", ["split", "pca"])
    kept = ["FedBasis (as printed)", "FedBasis without coefficients", "FedBasis + FT", "FedBasis + class prior + FT"]
    assert [name.text for name, _ in section.tables[0].rows] == [*kept, "FedBasis"]
    said = "FedBasis + FT, with or without the class prior, has twice the local passes"
    assert any(said in sentence for sentence in section.text)
    assert "1 of 3 runs are missing (fedavg on shards, seed 0)" in section.text[1]
    assert "1 of 3 results are on this page" in (tmp_path / "results.md").read_text()
    assert "Not on this page: `split`, `pca`." in (tmp_path / "results.md").read_text()
