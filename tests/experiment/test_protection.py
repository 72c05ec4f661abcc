"""The sections [aggregation] and [privacy] of an experiment."""

from typing import Any

import pytest

from fedbasis.experiment.config import parse
from pflbed.errors import InputError


def problems(**changes: Any) -> str:
    try:
        parse({"method": {"name": "fedavg"}, **changes})
    except InputError as error:
        return str(error)
    return ""


class TestAggregation:
    def test_what_makes_no_sense_is_refused_with_a_sentence(self) -> None:
        examples = {"weighting": "examples"}
        assert not problems(aggregation={"mean": "median", "clip": 3.0})
        assert "number of images that they report" in problems(aggregation={"mean": "trimmed"}, train=examples)
        assert "averages nothing" in problems(aggregation={"clip": 1.0}, method={"name": "local"})
        assert "aggregation.trim" in problems(aggregation={"trim": 0.5})
        assert "aggregation.mean" in problems(aggregation={"mean": "middle"})

    def test_defaults_do_not_rename_a_run(self) -> None:
        plain = parse({"method": {"name": "fedavg"}})
        written = parse({"method": {"name": "fedavg"}, "aggregation": {"mean": "mean"}, "privacy": {}})
        other = parse({"method": {"name": "fedavg"}, "aggregation": {"mean": "median"}})
        assert plain.digest("") == written.digest("")
        assert other.digest("") != plain.digest("")


def test_settings_that_break_the_promise() -> None:
    def problems(**changed: Any) -> str:
        with pytest.raises(InputError) as error:
            parse({"method": {"name": "fedavg"}, "privacy": {"noise_multiplier": 1.0}, **changed})
        return str(error.value)

    assert "would have a larger weight" in problems(train={"weighting": "examples"})
    assert "remove [aggregation]" in problems(aggregation={"mean": "median"})
    assert "remove [aggregation]" in problems(aggregation={"clip": 1.0})
    secret = {"noise_multiplier": 1.0, "noise_seed": "secret"}
    assert "results of each of them" in problems(privacy=secret, personalize={"whom": "participating"})
