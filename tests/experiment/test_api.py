"""The front door: train, personalize, evaluate and load, in memory or with a folder, and nothing by the way."""

import inspect
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedbasis as fb
import pflbed
from fedbasis.experiment import execute, prepare
from fedbasis.experiment.config import parse
from fedbasis.report import write_report
from fedbasis.serving import artifact
from fedbasis.training.events import ClientServed, ClientTrained, Event, RoundEnded, RunStarted
from fedbasis.training.runs import read_lines
from helpers.cli_images import write_images
from helpers.cli_own import own_clients
from pflbed import InputError
from pflbed.cache import cache_dir

QUICK: dict[str, Any] = {"rounds": 2, "epochs": 1, "rate": 0.05, "engine": "serial", "device": "cpu"}


def same(one: Mapping[str, Mapping[str, torch.Tensor]], other: Mapping[str, Mapping[str, torch.Tensor]]) -> bool:
    return one.keys() == other.keys() and all(
        one[g].keys() == other[g].keys() and all(torch.equal(one[g][n], other[g][n]) for n in one[g]) for g in one
    )


@pytest.fixture(scope="module")
def clients() -> pflbed.Clients:
    return own_clients()


@pytest.fixture(scope="module")
def trained(clients: pflbed.Clients) -> fb.Trained:
    return fb.train(fb.FedBasis(network="cnn-small", bases=2, warm_start=0.5), clients, **QUICK)


def everything_below(*folders: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for folder in folders for path in folder.rglob("*"))


def folder_of(path: Path) -> tuple[str, int]:
    return str(path), path.stat().st_mtime_ns


def test_the_code_of_the_design_runs_and_writes_nothing_but_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, cache = tmp_path / "home", tmp_path / "cache"
    home.mkdir()
    cache.mkdir()
    pflbed.find("digits4")  # made once for all tests
    for path in cache_dir().glob("digits4-*"):
        shutil.copy(path, cache)
    monkeypatch.setenv("FEDBASIS_CACHE", str(cache))
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.chdir(home)
    clients = pflbed.digits4(clients=2, new=1, limit=16)  # which fills the cache of images
    before = everything_below(home, cache)
    method = fb.FedBasis(network="resnet10", bases=4)
    trained = fb.train(method, clients, rounds=2, seed=0, epochs=1, engine="serial", options={"width": 8})
    mine = fb.personalize(trained, clients["mnist/n00"].train, epochs=2)
    x = torch.zeros(2, 3, 28, 28)
    assert mine.module(x).shape == (2, 10)
    assert mine.alpha.keys() == {"layer1", "layer2", "layer3", "layer4", "fc"}
    assert all(len(shares) == 4 and sum(shares) == pytest.approx(1, abs=1e-3) for shares in mine.alpha.values())
    assert mine.before is not None
    assert mine.after is not None
    scores = fb.evaluate(trained, clients.new, ways=["none"], engine="serial")
    assert scores["none", "M"].per_client.keys() == set(clients.new)
    assert "Personalized accuracy" in repr(scores)
    assert everything_below(home, cache) == before
    mine.save("model/")
    trained.save("bases/")
    assert {path for path in everything_below(home, cache) if path not in before} == {
        found for name in ("bases", "model") for found in (*everything_below(home / name), folder_of(home / name))
    }
    again = fb.load("bases/")
    assert isinstance(again, fb.Trained)
    assert same(again.state, trained.state)


def test_a_pool_gives_the_same_bits_and_leaves_nothing(
    clients: pflbed.Clients, trained: fb.Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    method = fb.FedBasis(network="cnn-small", bases=2, warm_start=0.5)
    pooled = fb.train(method, clients, **{**QUICK, "engine": "pool", "workers": 2})
    assert same(pooled.state, trained.state)
    assert list(tmp_path.glob("fedbasis-*")) == []
    with pytest.raises(AttributeError):  # training binds a copy: what the user made stays as it was
        method.task  # noqa: B018


def test_events_tell_what_happens(clients: pflbed.Clients) -> None:
    events: list[Event] = []
    trained = fb.train(fb.FedAvg(network="cnn-small"), clients, **QUICK, on_event=events.append)
    assert isinstance(events[0], RunStarted)
    assert events[0].folder is None
    assert [event.record["round"] for event in events if isinstance(event, RoundEnded)] == [1, 2]
    assert sum(isinstance(event, ClientTrained) for event in events) == 8
    assert trained.metrics == [event.record for event in events if isinstance(event, RoundEnded)]
    served: list[Event] = []
    fb.evaluate(trained, clients.new, ways=["none"], sizes=["S"], engine="serial", on_event=served.append)
    assert [(e.done, e.total) for e in served if isinstance(e, ClientServed)] == [(1, 2), (2, 2)]


def test_out_writes_a_run_folder_that_the_same_call_reads(
    clients: pflbed.Clients, trained: fb.Trained, tmp_path: Path
) -> None:
    method = fb.FedBasis(network="cnn-small", bases=2, warm_start=0.5)
    kept = fb.train(method, clients, out=tmp_path, **QUICK)
    assert kept.run is not None
    assert kept.run.done
    assert same(kept.state, trained.state)
    before = everything_below(tmp_path)
    events: list[Event] = []
    again = fb.train(method, clients, out=tmp_path, on_event=events.append, **QUICK)
    assert everything_below(tmp_path) == before
    assert [type(event) for event in events] == [RunStarted]
    assert same(again.state, trained.state)
    assert [line["loss"] for line in again.metrics] == [line["loss"] for line in trained.metrics]
    other = fb.train(method, clients, out=tmp_path, **{**QUICK, "seed": 1})
    assert other.run is not None
    assert other.run.folder != kept.run.folder


class StopError(Exception):
    """Ends a training from outside."""


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_out_resumes_a_training_that_was_stopped(
    how: str, clients: pflbed.Clients, trained: fb.Trained, tmp_path: Path
) -> None:
    method = fb.FedBasis(network="cnn-small", bases=2, warm_start=0.5)

    def stop(event: Event) -> None:
        if isinstance(event, ClientTrained) and (event.round, event.client) == (2, 2):
            raise StopError

    with pytest.raises(StopError):
        fb.train(method, clients, out=tmp_path, on_event=stop, **QUICK)
    (folder,) = tmp_path.iterdir()
    if how == "killed":  # between a round's line and its checkpoint
        lines = (folder / "metrics.jsonl").read_text()
        (folder / "metrics.jsonl").write_text(lines + lines.replace('"round": 1', '"round": 2'))
    events: list[Event] = []
    again = fb.train(method, clients, out=tmp_path, on_event=events.append, **QUICK)
    assert [event.record["round"] for event in events if isinstance(event, RoundEnded)] == [2]
    assert same(again.state, trained.state)
    assert [line["round"] for line in again.metrics] == [1, 2]
    assert [line["loss"] for line in again.metrics] == [line["loss"] for line in trained.metrics]


def test_a_card_that_does_not_fit_its_tensors_is_refused(clients: pflbed.Clients, tmp_path: Path) -> None:
    fb.train(fb.FedBasis(network="cnn-small", bases=2), clients, rounds=2, epochs=1, seed=0).save(tmp_path / "bases")
    card = json.loads((tmp_path / "bases/card.json").read_text(encoding="utf-8"))
    (tmp_path / "bases/card.json").write_text(json.dumps({**card, "settings": {}}), encoding="utf-8")
    with pytest.raises(fb.InputError, match=r"must fit its tensors: .* they say 4 bases and there are 2"):
        fb.load(tmp_path / "bases")


def test_load_takes_bases_runs_and_models(clients: pflbed.Clients, tmp_path: Path) -> None:
    run = fb.train(fb.FedBasis(network="cnn-small", bases=2, warm_start=0.5), clients, out=tmp_path / "runs", **QUICK)
    run.save(tmp_path / "bases")
    assert run.run is not None
    loaded = [fb.load(run.run.folder), fb.load(tmp_path / "bases"), fb.load(str(run.run.bases))]
    images = clients["chalk/n00"].train
    mine = fb.personalize(run, images, epochs=2)
    for one in loaded:
        assert isinstance(one, fb.Trained)
        assert same(one.state, run.state)
        assert one.classes == ["circle", "cross", "square"]
        theirs = fb.personalize(one, images, epochs=2)
        assert same(theirs.state, mine.state)
        assert (theirs.before, theirs.after, theirs.alpha) == (mine.before, mine.after, mine.alpha)
        assert [table.title for table in one.tables()] == [table.title for table in run.tables()]
    assert isinstance(loaded[0], fb.Trained)
    assert [line["round"] for line in loaded[0].metrics] == [1, 2]
    mine.save(tmp_path / "model")
    model = fb.load(tmp_path / "model")
    assert isinstance(model, fb.Personal)
    assert same(model.state, mine.state)
    assert (model.before, model.after) == (mine.before, mine.after)
    assert model.alpha == {row: pytest.approx(shares, abs=1e-4) for row, shares in mine.alpha.items()}
    assert torch.equal(model.predict(images), mine.predict(images))
    with pytest.raises(InputError, match="must not exist yet"):
        mine.save(tmp_path / "model")
    mine.save(tmp_path / "model", overwrite=True)
    with pytest.raises(InputError, match="there is no folder"):
        fb.load(tmp_path / "nothing")


def test_personalize_takes_arrays_names_folders_and_tensors(
    trained: fb.Trained, clients: pflbed.Clients, tmp_path: Path
) -> None:
    images = clients["paint/n00"].train
    expected = fb.personalize(trained, images, epochs=2)
    names = [trained.classes[label] for label in images.labels]
    for pixels, labels in (
        (images.pixels, images.labels),
        (images.pixels, names),
        (torch.from_numpy(images.pixels), torch.from_numpy(images.labels)),
        (images.pixels, np.array(names)),
    ):
        assert same(fb.personalize(trained, pixels, labels, epochs=2).state, expected.state)
    folder = write_images(tmp_path / "mine", 8, 1, seed=3)
    mine = fb.personalize(trained, folder, way="lp", epochs=2, keep="best")
    assert mine.alpha == {}
    assert mine.card.provenance["personalized_by"] == "lp"


PIXELS = np.zeros((4, 12, 12, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "sentence"),
    [
        (PIXELS, None, "must come with labels"),
        (PIXELS, [0, 1, 2, 3], "numbers from 0 to 2"),
        (PIXELS, [0, 1, 2, -1], "numbers from 0 to 2"),
        (PIXELS, [0.5, 1.0, 2.0, 1.0], "numbers from 0 to 2"),
        (PIXELS, [[0, 1], [2, 1]], "numbers from 0 to 2"),
        (PIXELS, ["circle", "cross", "square", "star"], "'star' is not"),
        (PIXELS, [0, 1], "one label per image, but has 4 and 2"),
        (PIXELS.astype(np.float32), [0, 1, 2, 0], "must be uint8"),
        (PIXELS[0, 0], [0, 1, 2, 0], "must be uint8"),
        (PIXELS[..., :1], [0, 1, 2, 0], r"must have the shape \(12, 12, 3\)"),
        (PIXELS[:, :6], [0, 1, 2, 0], r"must have the shape \(12, 12, 3\)"),
        (PIXELS, [1, 1, 1, 1], "at least 2 classes"),
        (PIXELS[:0], np.zeros(0, dtype=np.int64), "needs one label per image"),
        ("nowhere", None, "must exist"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(images: Any, labels: Any, sentence: str, trained: fb.Trained) -> None:
    with pytest.raises(InputError, match=sentence):
        fb.personalize(trained, images, labels)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda c: fb.train(fb.FedAvg(), c, **QUICK), "Training needs a network"),
        (lambda c: fb.train(fb.FedAvg(network="resnet"), c, **QUICK), "there is no such network"),
        (lambda c: fb.train(fb.FedAvg(network="cnn-small"), c, **{**QUICK, "rounds": 0}), "'train.rounds'"),
        (lambda c: fb.train(fb.FedAvg(network="cnn-small"), c, **QUICK, participation=99), "99 clients a round"),
        (lambda c: fb.train(fb.FedAvg(network=torch.nn.Linear(3, 3)), c, **QUICK), "must take images of 12 x 12"),
        (lambda c: fb.FedBasis(network="cnn-small", bases=0), "'bases'"),
        (lambda c: fb.FedBasis(network="cnn-small", bassis=3), "'bassis'"),
    ],
)
def test_a_training_that_cannot_work_is_refused(
    call: Callable[[pflbed.Clients], object], sentence: str, clients: pflbed.Clients
) -> None:
    with pytest.raises(InputError, match=sentence):
        call(clients)


def test_evaluate_is_execute_bit_for_bit(dataset: Path, tmp_path: Path) -> None:
    raw = {
        "seed": 3,
        "data": {"source": str(dataset), "resolution": 12, "clients": 2, "new_clients": 1},
        "train": {"rounds": 2, "epochs": 1, "rate": 0.05},
        "personalize": {"epochs": 2, "rates": [0.01, 0.05]},
        "machine": {"engine": "serial", "device": "cpu"},
        "method": {"name": "fedbasis", "bases": 2, "warm_start": 0.5},
    }
    prepared = prepare(parse(raw))
    run = execute(prepared, tmp_path / "runs")
    assert isinstance(prepared.clients, pflbed.Clients)
    trained = fb.train(fb.FedBasis(network="cnn-small", bases=2, warm_start=0.5), prepared.clients, seed=3, **QUICK)
    assert same(trained.state, artifact.load(run.bases, "bases")[1])
    scores = fb.evaluate(trained, prepared.clients.new, rates=(0.01, 0.05), epochs=2, seed=3, engine="serial")
    measured = ("seconds", "peak_memory")
    rows = [{**asdict(row), "delta": row.delta} for row in scores.rows]
    expected = json.loads(run.results.read_text())
    assert [{k: v for k, v in row.items() if k not in measured} for row in json.loads(json.dumps(rows))] == [
        {k: v for k, v in row.items() if k not in measured} for row in expected
    ]
    assert [{k: v for k, v in r.items() if k not in measured} for r in scores.records] == [
        {k: v for k, v in r.items() if k not in measured} for r in read_lines(run.evaluation)
    ]
    before = everything_below(run.folder)
    loaded = fb.load(run.folder)
    assert isinstance(loaded, fb.Trained)
    fb.evaluate(loaded, prepared.clients.new, ways=["none"], engine="serial")
    assert everything_below(run.folder) == before  # an experiment keeps the results of its configuration
    with pytest.raises(InputError, match="there are none"):
        fb.evaluate(trained, {})
    with pytest.raises(KeyError):
        scores["magic", "M"]


def test_scores_of_a_run_are_written_for_reports(clients: pflbed.Clients, tmp_path: Path) -> None:
    trained = fb.train(fb.FedAvg(network="cnn-small"), clients, out=tmp_path / "runs", **QUICK)
    assert trained.run is not None
    scores = fb.evaluate(trained, clients.new, ways=["none", "ft"], epochs=1, rates=[0.01], engine="serial")
    write_report([trained.run], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "FedAvg + FT" in page
    assert f"{100 * scores['ft', 'M'].last:.1f}" in page


# --- the names -------------------------------------------------------------------------------------------------------


def test_importing_fedbasis_imports_no_torch() -> None:
    code = "import sys, fedbasis; dir(fedbasis); print(sorted({'torch', 'numpy', 'pflbed'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_the_public_names_are_few_and_documented() -> None:
    assert 15 <= len(fb.__all__) <= 18
    assert fb.__all__ == sorted(fb.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert set(dir(fb)) == {*fb.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fb.nothing  # noqa: B018
    for name in fb.__all__:
        found = getattr(fb, name)
        if callable(found):
            assert found.__doc__, name
    for function in (fb.train, fb.personalize, fb.evaluate, fb.load, fb.show_progress):
        text = function.__doc__ or ""
        wanted = ("Returns:", "Example:") if function is fb.show_progress else ("Args:", "Returns:", "Example:")
        assert all(part in text for part in wanted), function
    for kind in (fb.Trained, fb.Personal, fb.Scores):
        assert "Attributes:" in (kind.__doc__ or ""), kind
    for base in (fb.Method, fb.Network):
        assert all(part in (base.__doc__ or "") for part in ("Args:", "Example:")), base


def test_every_argument_of_a_function_is_explained() -> None:
    for function in (fb.train, fb.personalize, fb.evaluate, fb.load):
        text = (function.__doc__ or "").partition("Args:")[2].partition("Returns:")[0]
        told = [
            line.split(":")[0].strip() for line in text.splitlines() if line.startswith(" " * 8 + "") and ":" in line
        ]
        assert set(inspect.signature(function).parameters) <= set(told), function
