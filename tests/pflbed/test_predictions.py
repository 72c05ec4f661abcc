"""Predictions of any framework are scored as the paper says, and what is not complete is refused."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv, parquet

from pflbed import Benchmark, InputError, Spec, Table, bootstrap_interval, build
from pflbed.predictions import Scores, score, score_file
from pflbed.seeding import generator

CLASSES = ("ant", "bee", "cat")


@pytest.fixture(scope="module")
def bench() -> Benchmark:
    labels = np.tile(np.arange(3), 200)
    table = Table(
        paths=tuple(f"{i}.png" for i in range(600)), labels=labels, domains=np.arange(600) % 2,
        class_names=CLASSES, domain_names=("a", "b"), digest="0" * 64,
    )  # fmt: skip
    return build(table, Spec(clients_per_domain=3, new_clients_per_domain=2, alpha=0.2, min_rows=1))


def guessed(bench: Benchmark, seed: int = 0) -> tuple[list[str], list[int], list[int]]:
    """A prediction of chance for every test row of every client, in a shuffled order."""
    rng = np.random.default_rng(seed)
    pairs = [(name, int(row)) for name in bench.client_ids for row in bench.held_rows(name, "test")]
    pairs = [pairs[i] for i in rng.permutation(len(pairs))]
    return [name for name, _ in pairs], [row for _, row in pairs], rng.integers(0, 3, len(pairs)).tolist()


def brute_force(bench: Benchmark, name: str, truth: dict[int, int]) -> tuple[float, float]:
    """The paper's sum, term by term, in plain Python."""
    mine = [
        int(bench.table.labels[row])
        for row in range(len(bench.table))
        if bench.client[row] == bench.client_ids.index(name)
    ]
    p = [mine.count(c) / len(mine) for c in range(3)]
    top = bottom = right = 0.0
    for row, guess in truth.items():
        label = int(bench.table.labels[row])
        top += p[label] * (guess == label)
        bottom += p[label]
        right += guess == label
    return top / bottom, right / len(truth)


@given(st.integers(0, 10_000))
@settings(max_examples=20)
def test_scores_equal_a_brute_force_computation(bench: Benchmark, seed: int) -> None:
    client, row, predicted = guessed(bench, seed)
    scores = score(bench, client, row, predicted)
    assert list(scores.personalized) == list(bench.client_ids)
    for name in bench.client_ids:
        mine = {r: p for c, r, p in zip(client, row, predicted, strict=True) if c == name}
        personalized, unweighted = brute_force(bench, name, mine)
        assert scores.personalized[name] == pytest.approx(personalized, rel=1e-12)
        assert scores.unweighted[name] == pytest.approx(unweighted, rel=1e-12)


def test_names_and_numbers_and_files_score_the_same(bench: Benchmark, tmp_path: Path) -> None:
    client, row, predicted = guessed(bench)
    expected = score(bench, client, row, predicted)
    names = [CLASSES[i] for i in predicted]
    for column in (predicted, names):
        table = pa.table({"client": client, "row": row, "predicted": column, "more": row})
        parquet.write_table(table, tmp_path / "p.parquet")
        csv.write_csv(table, tmp_path / "p.csv")
        assert score_file(bench, tmp_path / "p.parquet") == expected
        assert score_file(bench, tmp_path / "p.csv") == expected


def test_perfect_predictions_are_one_and_a_part_of_the_clients_is_enough(bench: Benchmark) -> None:
    client, row, _ = guessed(bench)
    new = [i for i, name in enumerate(client) if name in bench.new]
    rows = np.array(row)[new]
    scores = score(bench, np.array(client)[new], rows, bench.table.labels[rows])
    assert set(scores.personalized) == set(bench.new)
    assert set(scores.personalized.values()) == {1.0}
    average = scores.average("new")
    assert average is not None
    assert (average.mean, average.low, average.high) == (1.0, 1.0, 1.0)
    assert scores.average("participating") is None


def test_what_is_not_complete_is_refused(bench: Benchmark) -> None:
    client, row, predicted = guessed(bench)
    name = client[0]
    with pytest.raises(InputError, match="at least one prediction, got none"):
        score(bench, [], [], [])
    with pytest.raises(InputError, match=f"got two for row {row[0]}"):
        score(bench, [*client, name], [*row, row[0]], [*predicted, predicted[0]])
    with pytest.raises(InputError, match=f"Client '{name}' must be predicted on all of its .* missing is {row[0]}"):
        score(bench, client[1:], row[1:], predicted[1:])
    train = int(bench.rows(name)[0])
    with pytest.raises(InputError, match=f"on its test rows alone, got row {train}"):
        score(bench, client, [train, *row[1:]], predicted)
    with pytest.raises(InputError, match="clients of the benchmark, got 'nobody'"):
        score(bench, ["nobody", *client[1:]], row, predicted)
    with pytest.raises(InputError, match="classes of the benchmark, got 'dog'"):
        score(bench, client, row, ["dog"] * len(row))
    with pytest.raises(InputError, match="class names or class numbers, got float64"):
        score(bench, client, row, np.full(len(row), 0.5))
    with pytest.raises(InputError, match="row numbers of the manifest, got float64"):
        score(bench, client, np.array(row) + 0.5, predicted)
    with pytest.raises(InputError, match="equally long"):
        score(bench, client, row[1:], predicted)


def test_wrong_files_are_refused(bench: Benchmark, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must exist, but it does not; check the path"):
        score_file(bench, tmp_path / "nothing.parquet")
    (tmp_path / "text.parquet").write_text("no table")
    with pytest.raises(InputError, match="must be a whole csv or parquet file"):
        score_file(bench, tmp_path / "text.parquet")
    csv.write_csv(pa.table({"client": ["a/p00"], "guess": [1]}), tmp_path / "p.csv")
    with pytest.raises(InputError, match="got client, guess; add row, predicted"):
        score_file(bench, tmp_path / "p.csv")
    csv.write_csv(pa.table({"client": ["a/p00", None], "row": [1, 2], "predicted": [1, 1]}), tmp_path / "p.csv")
    with pytest.raises(
        InputError, match=r"'client' of .* must be full, but 1 values are missing|clients of the benchmark"
    ):
        score_file(bench, tmp_path / "p.csv")


def test_the_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    """Of 300 samples of 30 clients from a known distribution, some 95 % of the intervals hold its mean."""
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(300):
        low, high = bootstrap_interval(rng.beta(8, 2, 30), generator(trial), draws=500)
        hits += low <= 0.8 <= high
    assert 0.90 <= hits / 300 <= 0.985


def test_the_bootstrap_is_deterministic_and_as_wide_as_the_standard_error_says() -> None:
    values = np.random.default_rng(1).normal(0.5, 0.1, 400)
    low, high = bootstrap_interval(values, generator(0))
    assert (low, high) == bootstrap_interval(values, generator(0))
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.05)
    with pytest.raises(InputError, match="a finite score per client"):
        bootstrap_interval([], generator(0))


def test_averages_are_of_one_role(bench: Benchmark) -> None:
    scores = Scores({"a": 0.2, "b": 0.6}, {"a": 0.1, "b": 0.3}, {"a": "participating", "b": "new"})
    averages = [scores.average(role) for role in ("participating", "new", None)]
    assert [a.mean for a in averages if a] == pytest.approx([0.2, 0.6, 0.4])
    unweighted = scores.average(personalized=False)
    assert unweighted is not None
    assert unweighted.mean == pytest.approx(0.2)
