"""What goes into a benchmark is checked when it is made."""

from typing import Any

import numpy as np
import pytest

from pflbed import InputError, Spec, Table


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clients_per_domain": 0}, "clients_per_domain must be a whole number of at least 1, got 0"),
        ({"new_clients_per_domain": 0}, "both be positive or both be zero"),
        ({"alpha": 0.0}, "alpha must be a positive number"),
        ({"alpha": float("nan")}, "alpha must be a positive number"),
        ({"split": (60, 20, 5, 10)}, "sum to 100"),
        ({"split": (0, 80, 5, 15)}, "something to train on"),
        ({"partition": "random"}, "partition must be a known one, got 'random'"),
        ({"domain_alpha": 0}, "domain_alpha must be a positive number"),
        ({"classes_per_client": 0}, "classes_per_client must be a whole number of at least 1"),
        ({"partition": "natural"}, "must leave images of a new client to test on"),
        ({"min_rows": 1.5}, "min_rows must be a whole number"),
        ({"sizes": {"M": 1.0, "S": 0.5}}, "increasing fractions"),
        ({"sizes": {}}, "increasing fractions"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_wrong_specs_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Spec(**wrong)


def test_a_table_checks_itself() -> None:
    def table(**change: Any) -> Table:
        fields: dict[str, Any] = {
            "paths": ("a", "b"),
            "labels": np.array([0, 1]),
            "domains": np.array([0, 0]),
            "class_names": ("x", "y"),
            "domain_names": ("d",),
            "groups": None,
            "digest": "0",
        }
        return Table(**(fields | change))

    assert len(table().take([1])) == 1
    assert table().take([1]).digest != table().digest == table().take([0, 1]).digest
    for change, message in (
        ({"labels": np.array([0])}, "one number per path"),
        ({"labels": np.array([0, 2])}, r"labels must lie in 0\.\.1"),
        ({"labels": np.array([0.0, 1.0])}, "whole numbers"),
        ({"paths": ("a", "a")}, "'a' twice"),
        ({"groups": ("g",)}, "one group per path"),
    ):
        with pytest.raises(InputError, match=message):
            table(**change)
    with pytest.raises(InputError, match="rows to take"):
        table().take([2])
