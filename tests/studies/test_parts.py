"""Rows of the table of parts: each differs in one part, and what the main table has is not served again."""

from typing import Any

import pytest

from fedbasis.serving.personalize import split_way
from fedbasis.studies import STUDIES, parts
from fedbasis.studies.base import Setup
from fedbasis.studies.new_clients import main_request
from fedbasis.studies.parts import FURTHER, PARTS
from fedbasis.studies.plan import plan
from fedbasis.studies.scales import SCALES, Scale

CPU = Setup(SCALES["cpu"], strict=False)


def tuned(monkeypatch: pytest.MonkeyPatch, **by_way: dict[str, Any]) -> None:
    """Let these rates and statistics be tuned for the ways of FedBasis, and no others."""
    chosen = {"personalize": {"by_way": {way.replace("_", "+"): one for way, one in by_way.items()}}}
    monkeypatch.setattr(Scale, "tuned", lambda self, testbed, name: chosen if name == "fedbasis" else {})


def further(setup: Setup) -> list[Any]:
    return [request for request in STUDIES["parts"].requests(setup) if request.name == FURTHER["fedbasis"]]


def test_every_row_changes_one_part_of_an_earlier_one() -> None:
    for number, part in enumerate(PARTS, start=1):
        assert part.of < number
        if not part.of:
            continue
        method, statistics, way = _features(part.key)
        before = _features(PARTS[part.of - 1].key)
        changed = (method != before[0]) + (statistics != before[1]) + len(way ^ before[2])
        assert changed == 1, part


def _features(key: tuple[str, str]) -> tuple[str, str, frozenset[str]]:
    """Return the method, the statistics, and what is learned: a prior, coefficients, a classifier, other weights."""
    way, fixed = split_way(key[1])
    whole = {"lp": "classifier", "ft": "classifier+weights", "ft-prox": "classifier+weights+pull"}.get(way, way)
    learned = frozenset(whole.split("+")) - {"none"}
    return key[0], fixed or "frozen", learned


def test_rows_of_the_main_table_are_its_own_runs_and_the_rest_trains_nothing() -> None:
    items = plan([STUDIES["new-clients"], STUDIES["parts"]], CPU)
    alone = [item for item in items if item.studies == ("parts",)]
    assert [item.request.name for item in alone] == [FURTHER["fedbasis"]]  # the main table has all rows of FedAvg here
    trainings = {item.training_key for item in items if "new-clients" in item.studies}
    assert {item.training_key for item in alone} <= trainings
    assert {item.request.name for item in items if "parts" in item.studies} == {*FURTHER, FURTHER["fedbasis"]}


def test_ways_whose_statistics_were_tuned_are_not_served_again(monkeypatch: pytest.MonkeyPatch) -> None:
    own, frozen = ({"rates": [rate], "statistics": [kind]} for rate, kind in ((0.05, "own"), (0.01, "frozen")))
    tuned(monkeypatch, lp=frozen, coefficients_classifier=own, prior_coefficients_classifier=own)
    (request,) = further(CPU)
    serve = request.raw["personalize"]
    assert serve["ways"] == ["lp@own", "coefficients+classifier@frozen", "coefficients@own"]
    rates = {how: chosen["rates"] for how, chosen in serve["by_way"].items()}
    assert rates == {"lp@own": [0.01], "coefficients+classifier@frozen": [0.05], "coefficients@own": [0.05]}
    key = ("fedbasis", "coefficients+classifier@own")
    assert parts._in_main_table(CPU, "pacs", key) == "coefficients+classifier"
    assert main_request(CPU, "pacs", "fedbasis", 0).key in {one.key for one in STUDIES["parts"].requests(CPU)}


def test_without_tuning_rates_are_chosen_as_in_other_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned(monkeypatch)
    (request,) = further(CPU)
    assert "by_way" not in request.raw["personalize"]
    assert len(request.raw["personalize"]["ways"]) == 5
    assert request.experiment.personalize.rates == (0.005, 0.01, 0.05)


def test_a_gain_is_bold_if_it_differs_from_zero() -> None:
    def scores(mean: float, spread: float) -> dict[tuple[int, str], float]:
        return {(seed, f"{i}"): mean + spread * (i - 4.5) for seed in (0, 1) for i in range(10)}

    rows = [scores(0.5 + 0.01 * number, 0.01) for number in range(len(PARTS))]
    rows[1] = scores(0.5, 0.02)  # no gain on average
    rows[8] = {}
    cells = parts._gains(rows)
    assert [cell.text for cell in cells[0] + cells[8]] == ["–"] * 4
    assert [cells[1][0].text, cells[1][0].best, cells[1][1].text] == ["+0.0", False, "1.000"]
    assert [cells[2][0].text, cells[2][0].best, cells[2][1].text] == ["+2.0", True, "< 0.001"]
    assert parts._by_seed(rows[2]) == pytest.approx([0.52, 0.52])
