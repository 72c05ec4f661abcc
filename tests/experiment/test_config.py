"""Configurations: everything wrong is told at once, and a run's name depends on all that influences its result."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

from fedbasis.experiment.config import WayConfig, parse, read
from fedbasis.methods import METHODS
from pflbed.errors import InputError

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))


PLAIN: dict[str, Any] = {"method": {"name": "fedbasis"}}


def problems(raw: dict[str, Any]) -> str:
    with pytest.raises(InputError) as refusal:
        parse(raw, "my.toml")
    head, *problems = str(refusal.value).splitlines()
    assert head == f"my.toml: {len(problems)} problem{'s' * (len(problems) > 1)}"
    assert all(line.startswith("  ") for line in problems)  # one a line
    return str(refusal.value)


def test_defaults_make_an_experiment_of_every_method() -> None:
    for name in METHODS:
        experiment = parse({"method": {"name": name}})
        assert experiment.method_name == name
        assert experiment.ways


def test_what_is_written_out_is_read_back_the_same() -> None:
    for raw in (
        PLAIN,
        {"method": {"name": "fedavg"}, "train": {"participation": 10}, "personalize": {"ways": ["lp"], "rates": [1]}},
        {"method": {"name": "fedbasis", "coefficient_epochs": 3}, "data": {"sizes": {"M": 1, "S": 0.2}}},
    ):
        experiment = parse(raw)
        again = parse(json.loads(json.dumps(experiment.as_dict(), sort_keys=True)))
        assert again == experiment
        assert again.digest("data") == experiment.digest("data")


def test_a_default_that_is_written_down_changes_nothing() -> None:
    written = {
        **PLAIN,
        "seed": 0,
        "data": {"split": [60, 20, 5, 15], "sizes": {"M": 1, "S": 0.5}},
        "train": {"rate": 0.01, "participation": 1.0},
        "personalize": {"rates": [0.005, 0.01, 0.05]},
    }
    assert parse(written).digest("data") == parse(PLAIN).digest("data")


def test_settings_that_are_newer_than_kept_runs_rename_none() -> None:
    """This name was given to the run by versions before 'by_way' and 'download'."""
    assert parse({"method": {"name": "fedavg"}}).digest("data") == "a87d321cb936"


def test_everything_wrong_is_told_at_once_with_the_nearest_names() -> None:
    sentence = problems(
        {
            "sede": 3,
            "data": {"clints": 3, "resolution": "28"},
            "model": {"name": "resnet"},
            "train": {"ruonds": 3, "rate": -1, "batch": True, "epochs": 2.5},
            "personalize": {"epoch": 2, "rates": [0.1, "x"]},
            "machine": {"devise": "cpu"},
            "trian": {},
            "method": {"name": "fedbasis", "tua": 0.1, "bases": "4", "cluster": "blok"},
        }
    )
    assert "15 problems" in sentence
    for expected in (
        "'sede' is not a key (did you mean 'seed'?)",
        "'data.clints' is not a key (did you mean 'clients'?)",
        "'data.resolution' must be a whole number or a list, but it is '28'",
        "'model.name': there is no such network (did you mean 'resnet18'?)",
        "'train.ruonds' is not a key (did you mean 'rounds'?)",
        "'train.rate' must be at least 1e-09, but it is -1",
        "'train.batch' must be a whole number, but it is True",
        "'train.epochs' must be a whole number, but it is 2.5",
        "'personalize.epoch' is not a key (did you mean 'epochs'?)",
        "'personalize.rates.1' must be a number, but it is 'x'",
        "'machine.devise' is not a key (did you mean 'device'?)",
        "'trian' is not a key (did you mean 'train'?)",
        "'method.tua' is not a key (did you mean 'tau'?)",
        "'method.bases' must be a whole number, but it is '4'",
        "'method.cluster' must be 'network' or 'block', but it is 'blok'",
    ):
        assert expected in sentence


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({}, "[method] needs a 'name', one of local, fedavg, "),
        ({"method": "fedavg"}, "[method] needs a 'name'"),
        ({"method": {"name": 3}}, "[method] needs a 'name'"),
        ({"method": {"name": "fedbase"}}, "did you mean 'fedbasis'?"),
        ({**PLAIN, "data": 3}, "'data' must be a table, but it is 3"),
        ({**PLAIN, "method_name": "x"}, "'method_name' is not a key"),
        ({**PLAIN, "zzzzzz": 1}, "'zzzzzz' is not a key (valid: seed, data"),
        ({**PLAIN, "train": {"rate": float("nan")}}, "'train.rate'"),
        ({**PLAIN, "train": {"rate": float("inf")}}, "'train.rate'"),
        ({**PLAIN, "train": {"participation": 0}}, "'train.participation'"),
        ({**PLAIN, "train": {"participation": 1.5}}, "1 problem\n  'train.participation'"),
        ({**PLAIN, "train": {"participation": "all"}}, "1 problem\n  'train.participation'"),
        ({**PLAIN, "train": {"weighting": "equal"}}, "'train.weighting'"),
        ({**PLAIN, "data": {"split": [60, 20, 20]}}, "'data.split"),
        ({**PLAIN, "data": {"split": [60, 20, 5, 5]}}, "sum to 100"),
        ({**PLAIN, "data": {"sizes": {"S": 0.5, "M": 2.0}}}, "fractions above 0 and up to 1"),
        ({**PLAIN, "data": {"sizes": {}}}, "fractions above 0 and up to 1"),
        ({**PLAIN, "personalize": {"ways": []}}, "'personalize.ways'"),
        ({**PLAIN, "personalize": {"rates": []}}, "'personalize.rates'"),
        ({**PLAIN, "personalize": {"rates": [0.0]}}, "'personalize.rates.0'"),
        ({**PLAIN, "personalize": {"ways": ["lp", "coeficients"]}}, "'coeficients' (did you mean 'coefficients'?)"),
        ({"method": {"name": "fedavg"}, "personalize": {"ways": ["coefficients"]}}, "(valid: none, prior, lp, ft"),
        ({"method": {"name": "fedbasis", "init": "random"}}, "needs warm_start = 0"),
        ({"method": {"name": "fedbasis", "warm_start": 0.0}}, "bases that start equal stay equal"),
        ({"method": {"name": "fedbasis", "basis_optimizer": "adam"}}, "needs upload = 'full'"),
        ({"method": {"name": "fedbasis", "coordinate_descent": False}}, "needs upload = 'full'"),
        ({"method": {"name": "fedbasis", "tau": 0}}, "'method.tau'"),
    ],
)
def test_what_cannot_be_meant_is_refused(raw: dict[str, Any], expected: str) -> None:
    assert expected in problems(raw)


def test_problems_of_a_value_and_of_values_together_are_told_at_once() -> None:
    raw = {**PLAIN, "data": {"split": [50, 20, 5, 5]}, "personalize": {"ways": ["ftt"]}, "method_name": "x"}
    sentence = problems(raw)
    assert "3 problems" in sentence
    assert all(text in sentence for text in ("sum to 100", "'ftt' (did you mean 'ft'?)", "'method_name'"))


OTHER: dict[str, Any] = {  # values that cannot be guessed from the present one
    "data.source": "/elsewhere",
    "data.crop": 16,
    "data.dataset": "pacs",
    "data.partition": "iid",
    "data.split": (50.0, 30.0, 5.0, 15.0),
    "data.sizes": {"S": 0.25, "M": 1.0},
    "data.limit": 30,
    "data.mean": (0.5, 0.5, 0.5),
    "data.std": (0.5, 0.5, 0.5),
    "model.name": "resnet10",
    "model.options": {"norm": "group"},
    "model.blocks": 1,
    "train.weighting": "examples",
    "personalize.whom": "participating",
    "personalize.by_way": {"ft": WayConfig(rates=(0.1,))},
    "personalize.ways": ("lp",),
    "personalize.rates": (0.5,),
    "personalize.statistics": ("frozen",),
    "machine.engine": "serial",
    "machine.workers": 3,
    "machine.device": "cpu",
    "method.coefficient_epochs": 3,
    "aggregation.mean": "median",
    "aggregation.clip": 2.0,
    "privacy.noise_multiplier": 1.0,
    "privacy.delta": 1e-3,
    "privacy.noise_seed": "secret",
}


PLACES = {"data.source", "machine.engine", "machine.workers", "machine.device", "machine.checkpoint_seconds"}


def another(key: str, field: FieldInfo, value: Any) -> Any:
    """Return another value for a setting."""
    if key in OTHER:
        return OTHER[key]
    if get_origin(field.annotation) is Literal:
        return next(choice for choice in get_args(field.annotation) if choice != value)
    return not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value / 2


def test_the_name_of_a_run_depends_on_every_setting_but_the_places() -> None:
    experiment = parse(PLAIN)
    digest, keys = experiment.digest("data"), set()
    for name in ("data", "model", "train", "personalize", "machine", "aggregation", "privacy", "method"):
        section = getattr(experiment, name)
        for field, info in type(section).model_fields.items():
            key = f"{name}.{field}"
            if key == "model.weights":  # has a test of its own
                continue
            other = section.model_copy(update={field: another(key, info, getattr(section, field))})
            assert other != section, key
            same = experiment.model_copy(update={name: other}).digest("data") == digest
            assert same == (key in PLACES), key
            keys.add(key)
    assert len(keys) > 40
    assert OTHER.keys() <= keys
    assert experiment.model_copy(update={"seed": 1}).digest("data") != digest
    assert experiment.digest("other data") != digest
    assert parse({"method": {"name": "fedavg"}}).digest("data") != digest


def test_the_name_of_a_run_depends_on_the_weights_and_not_on_their_place(tmp_path: Path) -> None:
    digest: Callable[[str], str] = lambda name: parse({**PLAIN, "model": {"weights": str(tmp_path / name)}}).digest("")  # noqa: E731
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).write_bytes(content)
    assert digest("a") == digest("b")
    assert digest("a") != digest("c")
    with pytest.raises(InputError, match="there is no file"):
        digest("none")


def test_every_ready_configuration_can_be_read_and_says_how_to_run_it() -> None:
    assert EXPERIMENTS
    for path in EXPERIMENTS:
        read(path)
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith("#"), path
        assert f"fedbasis train experiments/{path.name}" in first, path
    assert all(tomllib.loads(path.read_text(encoding="utf-8"))["method"]["name"] in METHODS for path in EXPERIMENTS)
