"""The demonstration: two methods on the same clients, and a short version for a look."""

import pytest

from fedbasis.experiment.demo import experiments


@pytest.mark.parametrize("fast", [False, True])
def test_both_methods_train_on_the_same_clients(fast: bool) -> None:
    fedavg, fedbasis = experiments(seed=3, fast=fast)
    assert (fedavg.method_name, fedbasis.method_name) == ("fedavg", "fedbasis")
    assert fedavg.seed == fedbasis.seed == 3
    for part in ("data", "model", "train"):
        assert getattr(fedavg, part) == getattr(fedbasis, part)
    assert fedavg.data.source == "digits4"
    assert {way for plan in (fedavg, fedbasis) for way in plan.ways} >= {"none", "lp", "ft", "coefficients"}


def test_the_short_one_is_shorter() -> None:
    long, short = experiments()[0], experiments(fast=True)[0]
    assert short.train.rounds * short.data.clients < long.train.rounds * long.data.clients / 10
    assert experiments() == experiments(seed=0)
