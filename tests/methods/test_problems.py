"""Wrong settings: all at once, a line each, in our own words, with the name that was probably meant."""

from typing import Any, Literal, get_origin

import pytest

import fedbasis as fb
from fedbasis.experiment.config import Experiment, parse
from fedbasis.experiment.starter import keys
from fedbasis.methods import METHODS
from pflbed.errors import InputError

BASE: dict[str, Any] = {"method": {"name": "fedavg"}}


def lines_of(raw: dict[str, Any]) -> list[str]:
    with pytest.raises(InputError) as refused:
        parse({**BASE, **raw}, "my.toml")
    head, *lines = str(refused.value).splitlines()
    assert head == f"my.toml: {len(lines)} problem{'s' * (len(lines) > 1)}"
    return [line.strip() for line in lines]


def test_every_problem_has_a_line() -> None:
    found = lines_of({"train": {"rounds": 0, "epochz": 3, "rate": "a"}, "machine": {"engine": "gpu"}})
    assert found == [
        "'train.rounds' must be at least 1, but it is 0",
        "'train.rate' must be a number, but it is 'a'",
        "'train.epochz' is not a key (did you mean 'epochs'?)",
        "'machine.engine' must be 'auto', 'serial', 'pool' or 'ray', but it is 'gpu'",
    ]


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("machine", "threads", 1_000_000),
        ("machine", "threads", 2**63),
        ("machine", "device", "meta/x"),
        ("train", "batch", 2**63),
        ("train", "rounds", 10**30),
        ("data", "clients", 1_000_000_000),
        ("data", "sizes", {str(i): (i + 1) / 200 for i in range(150)}),
        ("personalize", "rates", [1e300]),
        ("personalize", "prox", 1e300),
        ("privacy", "noise_multiplier", 1e-300),
        ("privacy", "clip", 1e300),
        ("aggregation", "clip", 1e-300),
        ("method", "name", "no.such:Method"),
    ],
)
def test_odd_values_are_refused(table: str, key: str, value: Any) -> None:
    base = {"method": {"name": "fedavg"}} if table != "method" else {}
    with pytest.raises(InputError):
        parse({**base, table: {key: value}})


def test_a_seed_of_ten_thousand_digits_is_refused() -> None:
    assert "seed" in lines_of({"seed": 10**1000})[0]


@pytest.mark.parametrize("name", METHODS)
def test_no_setting_of_a_method_takes_a_number_beyond_reason(name: str) -> None:
    kind = METHODS[name]
    for key, field in kind.Config.model_fields.items():
        if any(word in str(field.annotation) for word in ("int", "float")):
            with pytest.raises(InputError):
                kind(network="cnn-small", **{key: 1e300 if "float" in str(field.annotation) else 10**30})


def test_every_number_of_a_configuration_has_both_bounds() -> None:
    for name, section in Experiment.model_fields.items():
        for key, field in getattr(section.annotation, "model_fields", {}).items():
            kinds = "" if get_origin(field.annotation) is Literal else str(field.annotation)
            if name != "method" and ("int" in kinds or "float" in kinds) and key not in ("blocks", "split", "sizes"):
                bounds = kinds + str(field.metadata)
                assert "le=" in bounds or "lt=" in bounds, f"{name}.{key}: {bounds}"
                assert "ge=" in bounds or "gt=" in bounds, f"{name}.{key}: {bounds}"


def test_settings_of_the_front_door_are_explained() -> None:
    with pytest.raises(InputError, match=r"The settings of FedBasis: 2 problems(.|\n)*'basis' is not a key"):
        fb.FedBasis(network="cnn-small", basis=2, tau=7.0)


def test_the_reference_lists_every_key_with_a_meaning() -> None:
    rows = list(keys())
    assert {"data", "model", "train", "personalize", "machine", "aggregation", "privacy"} <= {row[0] for row in rows}
    assert not [row for row in rows if not row[3]]
