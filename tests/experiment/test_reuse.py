"""A training that another run has done is taken over."""

import shutil
from pathlib import Path

import pytest

from fedbasis.experiment import Prepared, execute, prepare
from fedbasis.experiment.config import parse
from fedbasis.experiment.reuse import reuse_training
from fedbasis.training.runs import read_lines
from small_experiments import CHOICES, raw


def require_the_bits_of_its_own(donor: Prepared, other: Prepared, place: Path) -> None:
    """Check that a run which takes over a training ends as if it had trained itself."""
    execute(donor, place / "lent")
    found = reuse_training(other, place / "lent")
    assert found is not None
    assert found.folder == donor.run(place / "lent").folder
    lent, own = execute(other, place / "lent"), execute(other, place / "own")
    for name in CHOICES:
        assert [r[name] for r in read_lines(lent.evaluation)] == [r[name] for r in read_lines(own.evaluation)]
    assert (lent.bases / "card.json").read_bytes() == (own.bases / "card.json").read_bytes()


@pytest.mark.parametrize("method", ["fedavg", "fedbasis", "fedbn"])
def test_a_lent_training_ends_with_the_bits_of_ones_own(dataset: Path, tmp_path: Path, method: str) -> None:
    settings = {"fedbasis": {"bases": 2, "warm_start": 0.5}}.get(method, {})
    donor, other = (
        prepare(parse(raw(dataset, method, method=settings, personalize=p))) for p in ({"epochs": 1}, {"rates": [0.02]})
    )
    assert donor.training_digest == other.training_digest
    assert donor.run(tmp_path) != other.run(tmp_path)
    require_the_bits_of_its_own(donor, other, tmp_path)
    another = prepare(parse(raw(dataset, method, method=settings, train={"rounds": 3})))
    assert reuse_training(another, tmp_path / "lent") is None


def test_what_clients_keep_is_not_lent(dataset: Path, tmp_path: Path) -> None:
    plain = prepare(parse(raw(dataset, "ditto", personalize={"whom": "participating", "ways": ["ditto"]})))
    execute(plain, tmp_path)
    kept = prepare(parse(raw(dataset, "ditto", personalize={"whom": "participating", "ways": ["client-state"]})))
    assert kept.training_digest == plain.training_digest
    assert reuse_training(kept, tmp_path) is None


def test_a_method_that_trains_as_another_takes_over_its_training(dataset: Path, tmp_path: Path) -> None:
    fedavg, knn = (prepare(parse(raw(dataset, name))) for name in ("fedavg", "knn-per"))
    assert fedavg.training_digest == knn.training_digest
    require_the_bits_of_its_own(fedavg, knn, tmp_path)
    along = prepare(parse(raw(dataset, "knn-per", train={"serve_every": 1})))
    assert reuse_training(along, tmp_path / "lent") is None  # it serves new clients while it trains


def test_records_without_models_are_not_taken_over(dataset: Path, tmp_path: Path) -> None:
    donor, other = (prepare(parse(raw(dataset, "fedavg", personalize=p))) for p in ({"epochs": 1}, {"rates": [0.02]}))
    run = execute(donor, tmp_path)
    shutil.rmtree(run.bases)  # as in an archive of records
    assert reuse_training(other, tmp_path) is None
    assert execute(other, tmp_path).done
