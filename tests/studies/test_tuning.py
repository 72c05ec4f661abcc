"""Tuning: equal chances for every method, on images and seeds of no table; the winners are what the tables use."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from fedbasis.cli import app
from fedbasis.report.runs import RunData
from fedbasis.serving.personalize import split_way
from fedbasis.studies import STUDIES, tuned
from fedbasis.studies.base import Setup
from fedbasis.studies.candidates import RATES, TRIES, TUNABLES
from fedbasis.studies.grids import chosen_on, not_tuned
from fedbasis.studies.new_clients import repeated
from fedbasis.studies.plan import Item
from fedbasis.studies.run import Done, carry_out_plan
from fedbasis.studies.scales import SCALES
from fedbasis.studies.tuned import Try, Tuned, TunedMethod, read_tuned, shipped
from fedbasis.studies.tuning import (
    FIRST_SEED,
    as_markdown,
    judge_serving,
    served_ways,
    serving_requests,
    tries,
    tunables,
    tune,
    tuned_testbed,
)
from fedbasis.studies.variants import PRINTED
from pflbed.errors import InputError

CPU = Setup(SCALES["cpu"], seeds=(FIRST_SEED, FIRST_SEED + 1), strict=False)
COMPARED = ("new-clients", "all-methods", "regularized", "cifar-participating", "cifar-new", "meta-rates")


def test_whatever_the_tables_compare_is_tuned() -> None:
    methods = {request.experiment.method_name for name in COMPARED for request in STUDIES[name].requests(CPU)}
    assert methods <= {tunable.method_name for tunable in TUNABLES.values()}
    assert {"fedavg", "fedbasis", PRINTED} <= set(TUNABLES)


@pytest.mark.parametrize("name", TUNABLES)
def test_every_method_has_the_same_number_of_different_valid_tries(name: str) -> None:
    tunable = TUNABLES[name]
    for best, rate in enumerate((None, *RATES)):
        candidates = tunable.candidates(best)
        assert len(candidates) == TRIES
        assert [dict(one) for one in candidates[:3]] == [{}, *({"train.rate": rate} for rate in RATES)]
        for tried, own in zip(candidates[3:], tunable.own, strict=True):  # at the best rate, unless they name one
            assert dict(tried) == {**({} if rate is None else {"train.rate": rate}), **own}
    for testbed in SCALES["cpu"].testbeds:
        planned = tries(CPU, testbed, tunable, best=1)
        experiments = [one.requests[0].experiment for one in planned]  # checked when made
        assert len({json.dumps(e.as_dict(), sort_keys=True) for e in experiments}) == TRIES
        for one, e in zip(planned, experiments, strict=True):
            settings: dict[str, Any] = e.as_dict()
            for key, value in one.candidate.items():
                section, _, setting = key.partition(".")
                assert settings[section][setting] == value


def test_the_printed_algorithm_is_tuned_in_what_the_paper_leaves_open() -> None:
    """Not its bases, its major basis, or its warm start, which the paper prints; rates vary with batches and images."""
    varied = {key for one in TUNABLES[PRINTED].own for key in one}
    assert varied == {"method.coefficient_rate", "train.rate", "train.momentum", "train.batch", "train.decay"}


@pytest.mark.parametrize("name", TUNABLES)
def test_tries_are_on_the_tuning_part_with_seeds_of_their_own_and_else_as_in_the_tables(name: str) -> None:
    tables = {
        request.seed for study in STUDIES.values() for request in study.requests(Setup(SCALES["cpu"], strict=False))
    }
    for testbed, bed in SCALES["cpu"].testbeds.items():
        for one in tries(CPU, testbed, TUNABLES[name]):
            for request in one.requests:
                e = request.experiment
                assert e.data.part == "tuning"
                assert e.seed >= FIRST_SEED > max(tables)
                assert (e.train.rounds, e.train.epochs) == (bed.train["rounds"], bed.train["epochs"])
                assert (e.model.name, e.data.resolution) == (bed.model["name"], bed.data["resolution"])
                assert e.personalize.rates in ((0.01,), (bed.personalize["rates"][0],))  # the same for all methods
                assert e.personalize.whom == ("new" if bed.data["new_clients"] else "participating")


@pytest.mark.parametrize("name", TUNABLES)
def test_the_winner_serves_at_every_rate_and_with_all_statistics_after_the_same_training(name: str) -> None:
    tunable, bed = TUNABLES[name], SCALES["cpu"].testbeds["pacs"]
    tried = tries(CPU, "pacs", tunable, best=2)[4]
    serving = serving_requests(CPU, "pacs", tunable, tried.candidate)
    assert len(serving) == len(tried.requests) == 2
    for before, after in zip(tried.requests, serving, strict=True):
        assert Item(before, (), ()).training_key == Item(after, (), ()).training_key
        p = after.experiment.personalize
        assert p.rates == (0.002, *bed.personalize["rates"])
        assert p.statistics == tuple(bed.personalize["statistics"])
        shown = {split_way(how)[0] for how in served_ways(CPU, "pacs", tunable)} - {"none"}
        assert set(p.ways or ()) == shown


def test_every_way_gets_the_rate_and_the_statistics_with_the_highest_mean_accuracy() -> None:
    accuracy = {  # by way, rate and statistics: at S, at M
        ("ft", 0.01, "own"): (0.7, 0.8), ("ft", 0.05, "own"): (0.6, 0.8), ("ft", 0.01, "frozen"): (0.2, 0.3),
        ("ft", 0.05, "frozen"): (0.5, 0.3), ("lp", 0.01, "frozen"): (0.9, 0.9), ("lp", 0.01, "own"): (0.9, 0.8),
        ("ft-prox", 0.01, "own"): (0.1, 0.2),
    }  # fmt: skip
    trials = {
        (way, size, rate, statistics): {"a": (score + 0.1, 1.0), "b": (score - 0.1, 1.0)}
        for (way, rate, statistics), pair in accuracy.items()
        for size, score in zip("SM", pair, strict=True)
    }
    run = cast(RunData, SimpleNamespace(trials=trials))
    found = judge_serving(CPU, "pacs", TUNABLES["fedavg"], [run, run])
    method = TunedMethod(
        winner=0, tries=[Try(settings={}, scores={}, score=0.5)], seeds=[1000], version="1", command="", serving=found
    )
    best = {way: (one.rate, one.statistics, round(one.score, 6)) for way, one in method.chosen.items()}
    assert best["ft"] == (0.01, "own", 0.75)
    assert best["ft@frozen"] == (0.05, "frozen", 0.4)
    assert best["lp"] == best["lp@frozen"] == (0.01, "frozen", 0.9)
    assert best["lp@own"] == (0.01, "own", 0.85)
    assert "none" not in best


def a_log(scores: dict[str, list[float]], settings: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    def method(name: str) -> dict[str, Any]:
        values = scores[name]
        listed = [
            {"settings": one, "scores": {"ft, S": [value]}, "score": value}
            for one, value in zip(settings, values, strict=True)
        ]
        return {
            "winner": values.index(max(values)), "tries": listed, "seeds": [1000], "version": "1", "command": "tune",
        }  # fmt: skip

    methods = {name: method(name) for name in scores}
    return {"format": 1, "scale": "cpu", "testbed": "pacs", "data": {"part": "tuning"}, "methods": methods, **more}


def test_winners_are_the_settings_of_every_table_and_a_study_can_change_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: list[dict[str, Any]] = [{}, {"train.rate": 0.02, "personalize.prox": 0.1}]
    scores = {"fedavg": [0.7, 0.8], "fedrep": [0.8, 0.7]}
    (tmp_path / "cpu-pacs.json").write_text(json.dumps(a_log(scores, settings)))
    monkeypatch.setattr(tuned, "HERE", tmp_path)
    tuned.shipped.cache_clear()
    before = {
        request.key: request.raw
        for request in STUDIES["new-clients"].requests(Setup(SCALES["cpu"], strict=False, tuned=False))
    }
    for request in STUDIES["new-clients"].requests(Setup(SCALES["cpu"], strict=False)):
        if request.name == "fedavg":
            assert request.raw["train"]["rate"] == 0.02
            assert request.raw["personalize"]["prox"] == 0.1
        else:  # the settings as they are won, or it was not tuned
            assert request.raw == before[request.key]
    rated = Setup(SCALES["cpu"], strict=False).raw("pacs", "fedavg", train={"rate": 0.5})
    assert (rated["train"]["rate"], rated["personalize"]["prox"]) == (0.5, 0.1)
    assert Setup(SCALES["paper"], strict=False).raw("pacs", "fedavg")["train"]["rate"] == 0.01
    tuned.shipped.cache_clear()


def test_rates_and_statistics_that_won_are_those_of_the_tables_unless_a_study_varies_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log({"fedavg": [0.5]}, [{}])
    tried = [{"rate": 0.05, "statistics": "own", "score": 0.6}, {"rate": 0.01, "statistics": "shrunk", "score": 0.7}]
    log["methods"]["fedavg"]["serving"] = {"ft": tried, "lp": tried[:1], "bn": tried}
    (tmp_path / "cpu-pacs.json").write_text(json.dumps(log))
    monkeypatch.setattr(tuned, "HERE", tmp_path)
    tuned.shipped.cache_clear()
    (request,) = [
        request
        for request in STUDIES["new-clients"].requests(Setup(SCALES["cpu"], strict=False))
        if (request.name, request.seed) == ("fedavg", 0)
    ]
    own = request.experiment.personalize.by_way
    assert {way: (one.rates, one.statistics) for way, one in own.items()} == {
        "ft": ((0.01,), ("shrunk",)), "lp": ((0.05,), ("own",))
    }  # fmt: skip
    varied = Setup(SCALES["cpu"], strict=False).raw(
        "pacs", "fedavg", personalize={"ways": ["ft"], "rates": [0.001, 0.1]}
    )
    assert varied["personalize"]["by_way"] == {"ft": {"statistics": ["shrunk"]}}
    assert "by_way" not in Setup(SCALES["cpu"], strict=False).raw("pacs", "fedavg")["personalize"]
    tuned.shipped.cache_clear()


def test_tables_say_which_methods_were_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu-pacs.json").write_text(json.dumps(a_log({"fedavg": [0.7, 0.8], PRINTED: [0.8, 0.7]}, [{}, {}])))
    monkeypatch.setattr(tuned, "HERE", tmp_path)
    tuned.shipped.cache_clear()
    setup = Setup(SCALES["cpu"], strict=False)
    both = chosen_on(setup, "pacs", ["fedavg", PRINTED])
    assert both.startswith("Settings, learning rates and normalization statistics were chosen on the tuning part")
    assert both.endswith("with 2 tries for every method, 1 seed each.")
    some = chosen_on(setup, "pacs", ["fedavg", "fedrep", "fedbasis"])
    assert some.startswith(f"{both} Not tuned: FedRep, FedBasis. There, settings are the defaults")
    for plain in (chosen_on(setup, "pacs", ["fedrep"]), chosen_on(replace(setup, tuned=False), "pacs", ["fedavg"])):
        assert plain.startswith("Every method has its default settings")
        assert (
            "; the learning rate and, for ways that do not fix them, the normalization statistics of a row a" in plain
        )
        assert "validation images" in plain
    one = chosen_on(setup, "cifar10", ["fedavg"])  # one rate, and a network without normalization
    assert one.endswith("; the learning rate of personalization is 0.01 in every row.")
    photo = chosen_on(Setup(SCALES["photo"], strict=False), "pacs", ["fedrep"])
    assert "is 0.005 in every row; for ways that do not fix them, the normalization statistics of a row are" in photo
    tuned.shipped.cache_clear()


def test_settings_of_the_method_are_merged_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log({"pfedhn": [0.1, 0.2]}, [{}, {"method.rate": 0.5}])
    (tmp_path / "cpu-pacs.json").write_text(json.dumps(log))
    monkeypatch.setattr(tuned, "HERE", tmp_path)
    tuned.shipped.cache_clear()
    assert Setup(SCALES["cpu"], strict=False).raw("pacs", "pfedhn")["method"]["rate"] == 0.5
    assert SCALES["cpu"].settings("pacs", "pfedhn")["rate"] == 0.5
    assert "rate" not in SCALES["cpu"].untuned("pacs", "pfedhn")
    tuned.shipped.cache_clear()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 2}, "at format"),
        ({"methods": {"fedavg": {}}}, "at methods.fedavg.winner"),
        ({"more": 1}, "at more"),
        ({"scale": 3}, "at scale"),
    ],
)
def test_a_log_that_is_none_is_refused(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    path = tmp_path / "cpu-pacs.json"
    path.write_text(json.dumps(a_log({"fedavg": [0.5]}, [{}], **change)))
    with pytest.raises(InputError, match=sentence):
        read_tuned(path)


def test_a_log_must_name_the_best_try(tmp_path: Path) -> None:
    path = tmp_path / "cpu-pacs.json"
    log = a_log({"fedavg": [0.5, 0.6], "fedrep": [0.5, 0.4]}, [{}, {"train.rate": 0.02}])
    log["methods"]["fedavg"]["winner"] = 0
    path.write_text(json.dumps(log))
    with pytest.raises(InputError, match="the winner must be the try with the highest score, 1"):
        read_tuned(path)


def test_tables_name_the_rows_that_are_another_row_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def best(rate: float, statistics: str) -> list[dict[str, Any]]:
        return [{"rate": rate, "statistics": statistics, "score": 0.6}]

    log = a_log({"fedavg": [0.5]}, [{}])
    log["methods"]["fedavg"]["serving"] = {
        "ft": best(0.01, "own"), "ft@own": best(0.01, "own"), "ft@frozen": best(0.01, "frozen"),
        "lp": best(0.05, "own"), "lp@own": best(0.01, "own"),
    }  # fmt: skip
    (tmp_path / "cpu-pacs.json").write_text(json.dumps(log))
    monkeypatch.setattr(tuned, "HERE", tmp_path)
    tuned.shipped.cache_clear()
    keys = [("fedavg", how) for how in ("ft", "ft@own", "ft@frozen", "lp", "lp@own")]
    note = "Equal rows, since the tuning chose these statistics: FedAvg + FT (own statistics) is FedAvg + FT."
    assert repeated(Setup(SCALES["cpu"], strict=False), "pacs", keys) == [note]
    tuned.shipped.cache_clear()


def test_tables_say_which_methods_had_fewer_tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log({"fedavg": [0.5, 0.6], "fedrep": [0.5, 0.4]}, [{}, {"train.rate": 0.02}])
    log["methods"]["fedrep"]["tries"].pop()
    (tmp_path / "cpu-pacs.json").write_text(json.dumps(log))
    monkeypatch.setattr(tuned, "HERE", tmp_path)
    tuned.shipped.cache_clear()
    setup = Setup(SCALES["cpu"], strict=False)
    assert chosen_on(setup, "pacs", ["fedavg", "fedrep"]).endswith(
        "with 2 tries for every method (FedRep 1), 1 seed each."
    )
    assert chosen_on(setup, "pacs", ["fedavg"]).endswith("with 2 tries for every method, 1 seed each.")
    tuned.shipped.cache_clear()


@pytest.mark.parametrize("path", sorted(tuned.HERE.glob("*.json")), ids=lambda path: path.stem)
def test_the_shipped_logs_are_of_these_tries(path: Path) -> None:
    """A log of other tries than the code's would be the log of another tuning."""
    log = read_tuned(path)
    assert path.name == tuned.file_name(log.scale, log.testbed)
    assert log.data["part"] == "tuning"
    for name, method in log.methods.items():
        rates = [one.score for one in method.tries[:3]]
        expected = TUNABLES[name].candidates(rates.index(max(rates)))
        assert len(method.tries) >= 6  # a log may lack the last tries of the list, and tables say so
        assert [one.settings for one in method.tries] == [dict(one) for one in expected][: len(method.tries)]
        assert min(method.seeds) >= FIRST_SEED
        for one in method.tries:
            scored = fmean(fmean(values) for values in one.scores.values()) if not one.diverged else 0.0
            assert one.score == pytest.approx(scored, abs=1e-12)


def test_only_what_can_be_tuned_is() -> None:
    assert tuned_testbed(SCALES["cpu"], None) == "pacs"
    with pytest.raises(InputError, match="has none: as in the paper, its tables have every image"):
        tuned_testbed(SCALES["paper"], None)
    with pytest.raises(InputError, match="--testbed must be one of pacs, cifar10, cifar100, cifar10-all"):
        tuned_testbed(SCALES["cpu"], "cifar")
    with pytest.raises(InputError, match="there is no 'fedavgg' \\(did you mean"):
        tunables(["fedavgg"])
    assert [one.name for one in tunables(["ditto", "fedavg", "ditto"])] == ["ditto", "fedavg"]


def test_the_command_tries_scores_resumes_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    monkeypatch.setitem(TUNABLES, "fedbasis", replace(TUNABLES["fedbasis"], ways=("coefficients",)))

    def call(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["tune", *arguments, "--out", str(out)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert "3 runs: 0 done, 3 to do." in call("fedbasis", "--dry-run")
    assert not out.exists()
    said = call("fedbasis")
    assert "won" in said
    log = read_tuned(out / "smoke-digits4.json")
    method = log.methods["fedbasis"]
    assert len(method.tries) == TRIES
    assert method.command == "fedbasis tune fedbasis --scale smoke --testbed digits4 --seeds 1"
    for one in method.tries:  # an independent reading of the run folders
        rows = json.loads((out / "runs" / one.runs[0] / "results.json").read_text())
        lasts = [row["last"] for row in rows if row["how"] == "coefficients"]
        assert len(lasts) == 2
        assert one.score == pytest.approx(fmean(lasts))
        config = json.loads((out / "runs" / one.runs[0] / "config.json").read_text())
        assert (config["data"]["part"], config["seed"]) == ("tuning", 1000)
    assert method.tries[method.winner].score == max(one.score for one in method.tries)
    in_tables = {"lp", "coefficients+classifier", "prior+lp", "prior+coefficients+classifier"}
    assert set(method.serving) == {*in_tables, "coefficients"}  # the tables', and what is scored
    assert {(one.rate, one.statistics) for one in method.serving["lp"]} == {(0.01, "own")}  # all that smoke tries
    assert "serves new clients: lp at 0.01 own" in said
    assert "3 runs: 3 done, 0 to do." in call("fedbasis", "--dry-run")
    rates = [one.score for one in method.tries[:3]]
    assert [one.settings for one in method.tries] == [
        dict(one) for one in TUNABLES["fedbasis"].candidates(rates.index(max(rates)))
    ]
    written = {path: path.stat().st_mtime_ns for path in out.rglob("results.json")}
    call("fedbasis")
    assert {path: path.stat().st_mtime_ns for path in out.rglob("results.json")} == written
    assert read_tuned(out / "smoke-digits4.json") == log
    shown = call("--show")
    assert "method.bases = 8" in shown
    assert as_markdown(log).count("**") == 2 * (3 if method.winner == 0 else 2)


def test_a_try_that_diverges_has_the_score_zero_and_the_others_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        TUNABLES, "fedavg", replace(TUNABLES["fedavg"], own=tuple({"train.rate": rate} for rate in (800, 900, 1000)))
    )
    arguments = ["tune", "fedavg", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    tries = read_tuned(tmp_path / "smoke-digits4.json").methods["fedavg"].tries
    assert [(one.diverged, one.scores == {}, one.score == 0) for one in tries] == [(False,) * 3] * 3 + [(True,) * 3] * 3
    assert result.output.count("diverged") == 3  # a cell each
    again = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert again.exit_code == 0, again.output


def test_without_a_log_there_is_nothing_to_show(tmp_path: Path) -> None:
    assert shipped("smoke", "digits4") is None
    result = CliRunner().invoke(app, ["tune", "--show", "--out", str(tmp_path)])
    assert isinstance(result.exception, InputError)
    assert "There must be a log of tuning digits4 at the scale smoke" in str(result.exception)
    result = CliRunner().invoke(app, ["tune"])
    assert "What to tune must be named" in str(result.exception)


def test_a_log_keeps_what_other_commands_tuned(tmp_path: Path) -> None:
    from fedbasis.studies.tuning import merged

    bed = CPU.testbed("pacs")
    data = {**bed.data, **(bed.tuning or {})}
    first = Tuned.model_validate(a_log({"ditto": [0.5]}, [{}], data=data))
    first.save(tmp_path)
    found = Tuned.model_validate(a_log({"fedavg": [0.6]}, [{}])).methods
    both = merged(CPU, "pacs", tmp_path, found)
    assert list(both.methods) == ["fedavg", "ditto"]
    assert both.data["part"] == "tuning"
    Tuned.model_validate(a_log({"ditto": [0.5]}, [{}], data={**data, "clients": 99})).save(tmp_path)
    with pytest.raises(InputError, match=r'must be of the same clients, but it has .*"clients": 99'):
        merged(CPU, "pacs", tmp_path, found)


def test_tries_of_a_log_are_not_run_again_and_its_winner_need_not_have_a_run(tmp_path: Path) -> None:
    """More tries for a method, whose first ones are in a log that has no run folders any more."""
    setup = Setup(SCALES["smoke"], seeds=(FIRST_SEED,), strict=False, tuned=False)
    fedavg, ran = TUNABLES["fedavg"], list[str]()

    def carry_out(planned: list[Item]) -> Done:
        ran.extend(item.request.name for item in planned)
        return carry_out_plan(planned, tmp_path, 1, lambda *_: lambda _: None, lambda _: None)

    served = {way: [{"rate": 0.05, "statistics": "own", "score": 0.5}] for way in served_ways(setup, "digits4", fedavg)}

    def known(scores: list[float], seed: int = FIRST_SEED) -> dict[str, TunedMethod]:
        settings = fedavg.candidates(0)[: len(scores)]
        log = a_log({"fedavg": scores}, [dict(one) for one in settings])["methods"]["fedavg"]
        return {"fedavg": TunedMethod.model_validate({**log, "seeds": [seed], "serving": served})}

    def tuned_from(before: dict[str, TunedMethod]) -> TunedMethod:
        ran.clear()
        found, failed = tune(setup, "digits4", [fedavg], carry_out, "again", before)
        assert not failed
        return found["fedavg"]

    # Six of twelve: the best of the log wins, as nothing is better than 100 %, and so does how it serves.
    kept = tuned_from(known([1.0, 0.1, 0.1, 0.1, 0.1, 0.1]))
    assert ran == [f"fedavg, try {number}" for number in range(7, TRIES + 1)]
    assert [one.settings for one in kept.tries] == [dict(one) for one in fedavg.candidates(0)]
    assert kept.winner == 0
    assert kept.chosen["lp"].score == 0.5
    # A new try wins over a log without any right image: it serves in all ways.
    new = tuned_from(known([0.0] * 6))
    assert "fedavg, serving" in ran
    assert new.winner >= 6
    assert new.chosen["lp"].score != 0.5
    # Tries with other seeds are others.
    assert [name for name in tuned_from(known([1.0] * 6, seed=7)).tries if name.score == 1.0] == []
    assert "fedavg, try 1" in ran


def test_the_protocol_lists_every_try() -> None:
    page = Path(__file__).parents[2] / "docs" / "protocol.md"
    assert {"<!-- tuning: tries -->", "<!-- tuning: logs -->"} <= set(page.read_text().splitlines())
    spec = importlib.util.spec_from_file_location("hooks", page.with_name("hooks.py"))
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    text = hooks.on_page_markdown(page.read_text())
    assert "<!--" not in text
    for name, tunable in TUNABLES.items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` | `")]
        assert row.count(";") == len(tunable.own) - 1
        assert all(str(value) in row for one in tunable.own for value in one.values())
    for path in tuned.HERE.glob("*.json"):
        assert f"### {read_tuned(path).testbed}, scale `{read_tuned(path).scale}`" in text


def test_the_main_table_is_as_the_protocol_says() -> None:
    """What docs/protocol.md states about every row of the main table at the scale cpu, before anything is tuned."""
    for request in STUDIES["new-clients"].requests(Setup(SCALES["cpu"], strict=False, tuned=False)):
        p, t = request.experiment.personalize, request.experiment.train
        assert (p.epochs, p.momentum, p.decay, p.rates) == (20, 0.9, 1e-4, (0.005, 0.01, 0.05))
        assert p.statistics == ("frozen", "own", "shrunk")
        assert not p.by_way
        assert p.validate_every == 1
        assert (t.rate, t.augment) == (0.01, "flip+shift")


def test_cifar_is_as_the_protocol_says() -> None:
    setup = Setup(SCALES["cpu"], strict=False)
    for request in (*STUDIES["cifar-new"].requests(setup), *STUDIES["cifar-participating"].requests(setup)):
        p = request.experiment.personalize
        assert (p.epochs, p.batch, p.momentum, p.rates, p.validate_every) == (10, 10, 0.5, (0.01,), 10)


def test_tables_name_the_methods_that_have_defaults_beside_tuned_ones() -> None:
    cpu = Setup(SCALES["cpu"], strict=False)
    (note,) = not_tuned(cpu, "pacs", ["fedavg", "l2gd", "fedbasis"])
    assert note == "Not tuned, with default settings beside tuned ones: L2GD."
    assert not_tuned(cpu, "pacs", ["fedavg", "fedbasis"]) == []
    assert not_tuned(cpu, "cifar10", ["fedavg", "l2gd"]) == []  # nothing is tuned there
    assert not_tuned(replace(cpu, tuned=False), "pacs", ["fedavg", "l2gd"]) == []
