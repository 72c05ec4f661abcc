"""A method of a user's gets records, tables, a heat map and a chart, and no generic layer knows the built-in ones.

``Dials`` is FedAvg whose new clients learn a factor for every block of the network. What it learned is explained by
tables of its own, whose names and numbers stand nowhere else.
"""

import json
import re
from collections.abc import Iterable, Iterator
from html import unescape
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy

from fedbasis.cli.inspection import describe_folder
from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import parse
from fedbasis.methods.base import (
    MODEL,
    About,
    Adaptation,
    Context,
    Insight,
    Update,
    ValueTable,
    Ways,
)
from fedbasis.methods.fedavg import FedAvg
from fedbasis.networks.inputs import Examples
from fedbasis.networks.train import forward
from fedbasis.report.page import write_report
from fedbasis.report.runs import RunData
from fedbasis.serving.new_client import serve_folder, write_model
from fedbasis.serving.personalize import personalize
from fedbasis.serving.tables import as_record, from_record
from fedbasis.tensors.params import State, Tensors
from fedbasis.training.runs import Run, read_lines
from pflbed.errors import InputError
from shapes import write_images
from small_experiments import small

HERE = f"{__name__}:Dials"
FACTORS = (0.5, 1.0, 1.5)
TITLE, STRAIN, SPREAD = "Dials: what every block is turned to", "strain of the blocks", "How far the blocks have moved"
GENERIC = ("tensors", "networks", "engines", "training", "serving", "report", "flower", "cli", "experiment")
ROOT = Path(__file__).parents[2] / "src" / "fedbasis"


class DialsInsight(Insight):
    """Its tables and numbers."""

    def diagnostics(self, server: State) -> dict[str, Any]:
        """Strain is the mean size of a block's numbers, here for a chart."""
        return {"strain": {block: row[0] for block, row in self.describe(server)[0].rows.items()}}

    def describe(self, published: State) -> list[ValueTable]:
        """Show every block's mean size."""
        layout = self.method.task.layout
        flats = layout.flatten(self.method.model(published))
        rows = {block: [float(flat.abs().mean())] for block, flat in zip(layout.blocks, flats, strict=True)}
        return [ValueTable(title=SPREAD, columns=["mean size"], rows=rows)]

    def learned(self, learned: Tensors) -> dict[str, ValueTable]:
        """Show what every block was turned to."""
        if "dials" not in learned:
            return {}
        rows = dict(zip(self.method.task.layout.blocks, learned["dials"].tolist(), strict=True))
        columns = [f"times {factor}" for factor in FACTORS]
        return {"dials": ValueTable(title=TITLE, columns=columns, rows=rows, shares=True)}


class Dials(FedAvg):
    """Every block of the mean model is multiplied by the factor with the lowest loss, block after block."""

    about: ClassVar[About] = About(name="dials", title="Dials", paper="nobody", charts={"strain": STRAIN})
    ways: ClassVar[Ways] = Ways(own=("dials",), default=("none", "dials"), rate_free=("dials",))
    insight_type: ClassVar[type[Insight]] = DialsInsight

    def aggregate(self, server: State, updates: Iterable[Update], seed: int) -> State:
        """Do as FedAvg does."""
        return {MODEL: self.mean(updates)}

    def adapt(
        self, way: str, server: State, data: Examples, context: Context, plan: Adaptation
    ) -> Iterator[tuple[float, Tensors]]:
        """Turn one dial after another; its share is one where it ends."""
        context.model.load(self.model(server))
        dials = torch.zeros(len(context.model.weights), len(FACTORS))
        for block, flat in enumerate(context.model.weights):
            start, losses = flat.clone(), []
            for factor in FACTORS:
                flat.copy_(factor * start)
                losses.append(self.loss(context, data))
            best = min(range(len(FACTORS)), key=losses.__getitem__)
            flat.copy_(FACTORS[best] * start)
            dials[block, best] = 1.0
        yield self.loss(context, data), {"dials": dials}

    def loss(self, context: Context, data: Examples) -> float:
        """Return the mean loss of the model as it is."""
        return float(
            cross_entropy(forward(context.model.module, data.pixels, self.task.recipe.preprocessing), data.labels)
        )


@pytest.fixture(scope="module")
def run(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A whole run, named in a configuration as a user does."""
    raw = {**small(dataset, name=HERE).as_dict(), "personalize": {"epochs": 2, "rates": [0.05]}}
    return execute(prepare(parse(raw)), tmp_path_factory.mktemp("toy"))


def shown(parts: Iterable[str | Table]) -> str:
    console = Console(width=200, no_color=True)  # titles may be broken into lines
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return " ".join(capture.get().split())


def test_its_records_hold_its_tables(run: Run, dataset: Path) -> None:
    """And they are what the method says when it is asked directly."""
    records = [record for record in read_lines(run.evaluation) if record["how"] == "dials"]
    assert {record["size"] for record in records} == {"S", "M"}
    assert not any("learned" in record for record in read_lines(run.evaluation) if record["how"] == "none")
    prepared = prepare(small(dataset, name=HERE))
    from fedbasis.networks.inputs import examples_of
    from fedbasis.serving import artifact

    _, server = artifact.load(run.bases, "bases", trust=True)
    method = prepared.method
    for record in records:
        client = prepared.new[record["client"]]
        context = Context(prepared.experiment.seed, client.id, method.task.network.workspace())
        fitted = personalize(
            method, server, "dials", examples_of(client.sized(record["size"])), context, Adaptation(epochs=2)
        ).last
        table = method.insight.learned(fitted.learned)["dials"]
        assert record["learned"] == {"dials": json.loads(json.dumps(as_record(table)))}
        again = from_record(record["learned"]["dials"], "The table")
        assert (again.title, again.columns, again.shares) == (TITLE, table.columns, True)
        assert {name: list(row) for name, row in again.rows.items()} == {n: list(row) for n, row in table.rows.items()}
    turned = [row for record in records for _, row in record["learned"]["dials"]["rows"]]
    assert all(sorted(row) == [0, 0, 1] for row in turned)
    assert len({tuple(row) for row in turned}) > 1  # not all dials stay where they are


def test_its_rounds_hold_its_numbers(run: Run) -> None:
    lines = read_lines(run.metrics)
    assert all(list(line["strain"]) == ["conv1", "conv2", "conv3", "fc"] for line in lines)
    assert len({line["strain"]["fc"] for line in lines}) == len(lines)


def test_the_report_draws_its_table_and_its_chart(run: Run, tmp_path: Path) -> None:
    write_report([run], tmp_path / "page.html")
    page = unescape((tmp_path / "page.html").read_text(encoding="utf-8"))
    drawn = re.findall(r'aria-label="([^"]*)"', page)
    for block in ("conv1", "conv2", "conv3", "fc"):
        assert f"Dials (dials): {TITLE}, {block}" in drawn
    assert f"Dials: {STRAIN} along the rounds" in drawn
    assert "Dials" in RunData(run).title
    assert "No method of these runs shows what its clients learned" not in page
    for foreign in ("psi", "basis_", "Coefficients", "cosine"):  # what belongs to other methods
        assert foreign not in page


def test_inspect_shows_its_tables(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--trust"):
        shown(describe_folder(run.folder))  # code that an artifact names is not run unasked
    text = shown(describe_folder(run.folder, trust=True))
    assert SPREAD in text
    size = read_lines(run.metrics)[-1]["strain"]["conv2"]
    assert re.search(rf"conv2 .*{size:.4f}", text)
    client = write_images(tmp_path / "client", 8)
    served = serve_folder(run.bases, client, None, Adaptation(epochs=1), 0, trust=True)
    assert served.way == "dials"
    assert list(served.tables) == ["dials"]
    write_model(served, tmp_path / "model")
    text = shown(describe_folder(tmp_path / "model", trust=True))
    assert TITLE in text
    assert all(f"times {factor}" in text for factor in FACTORS)


def words_of(path: Path) -> list[str]:
    """Which words of FedBasis a file has; settings of experiments are allowed in studies, which are not looked at."""
    text = path.read_text(encoding="utf-8")
    pattern = r"(?<![a-z])psi(?![a-z])|(?<![a-z])basis_|warm[-_ ]?(?:up|start)"
    return re.findall(pattern, text.replace("fedbasis_", "").replace("FEDBASIS_", ""), flags=re.IGNORECASE)


def test_generic_layers_do_not_know_what_fedbasis_is_made_of() -> None:
    files = [
        path for layer in GENERIC for path in (ROOT / layer).rglob("*") if path.suffix in (".py", ".j2", ".js", ".css")
    ]
    others = [path for path in (ROOT / "methods").rglob("*.py") if ROOT / "methods" / "fedbasis" not in path.parents]
    files += list(ROOT.glob("*.py"))
    files.remove(ROOT / "experiment" / "post_processing.py")  # bases of finished runs: FedBasis by definition
    assert len(files) > 60
    assert len(others) > 20
    assert not {str(path.relative_to(ROOT)): found for path in files if (found := words_of(path))}
    shared = re.compile("warm", flags=re.IGNORECASE)  # other methods have a warm start as well
    assert not [path for path in others if any(not shared.match(word) for word in words_of(path))]
    inside = {word.lower() for path in (ROOT / "methods" / "fedbasis").glob("*.py") for word in words_of(path)}
    assert {"psi", "basis_"} <= inside  # so the words are the right ones


def test_no_generic_layer_names_a_method() -> None:
    """Not even a built-in one: they ask the method or the registry. Two names mean other things as well."""
    from fedbasis.methods import METHODS

    names = "|".join(re.escape(name) for name in METHODS if name not in ("fedbasis", "local"))
    for layer in ("tensors", "networks", "engines", "training", "serving", "report"):
        for path in (ROOT / layer).rglob("*.py"):
            found = re.findall(rf"[\"']({names})[\"']", path.read_text(encoding="utf-8"))
            assert not found, f"{path} names {found}"
