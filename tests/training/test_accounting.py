"""The accountant against published values and another accountant."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp
from scipy.stats import norm

from fedbasis.training.accounting import default_delta, epsilon


@pytest.mark.parametrize(("mu", "published"), [(0.35, 1.34), (1.78, 8.68)])
def test_published_values_of_the_gaussian_mechanism(mu: float, published: float) -> None:
    """Bu, Dong, Long and Su, "Deep Learning with Gaussian Differential Privacy", HDSR 2020, figure 4, delta 1e-5.

    They say mu = 0.35 is (1.34, 1e-5)-private and mu = 1.78 is (8.68, 1e-5)-private; mu has two digits there. T
    rounds with everybody have mu = 2 sqrt(T) / z.
    """
    rounds = 49
    around = [epsilon(rounds, 2 * rounds**0.5 / (mu + off), 100, 100, 1e-5) for off in (-0.005, 0.005)]
    assert around[0] <= published + 0.005
    assert around[1] >= published - 0.005
    assert around[1] - around[0] < 0.1


def test_delta_of_epsilon_is_balle_and_wangs() -> None:
    """Theorem 8 of Balle and Wang, ICML 2018, by scipy."""
    got = epsilon(30, 8.0, 50, 50, 1e-4)
    mu = 2 * 30**0.5 / 8
    delta = norm.cdf(mu / 2 - got / mu) - np.exp(got) * norm.cdf(-mu / 2 - got / mu)
    assert delta == pytest.approx(1e-4, rel=1e-6)


def test_another_accountant_that_doubles_by_itself_says_the_same() -> None:
    """The library's privacy loss distributions know that replacing one client changes a sum by two clips."""
    other = pld.PLDAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    other.compose(dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(10.0), 20))
    assert epsilon(20, 10.0, 30, 30, 1e-5) == pytest.approx(other.get_epsilon(1e-5), rel=1e-3)


def test_few_clients_a_round_tell_less() -> None:
    """Above the bound for one client more or less (Poisson, one clip), below all clients in every round."""
    drawn, everyone = (epsilon(100, 4.0, 1000, n, 1e-4) for n in (20, 1000))
    poisson = rdp.RdpAccountant()
    event = dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(4.0))
    poisson.compose(dp_accounting.SelfComposedDpEvent(event, 100))
    assert poisson.get_epsilon(1e-4) < drawn < everyone / 5
    assert epsilon(1, 1.0, 10, 9, 1e-2) <= epsilon(1, 1.0, 10, 10, 1e-2)


def test_epsilon_grows_with_rounds_and_falls_with_noise() -> None:
    assert epsilon(1, 2.0, 10, 10, 1e-2) < epsilon(2, 2.0, 10, 10, 1e-2) < epsilon(2, 1.0, 10, 10, 1e-2)
    assert default_delta(80) < 1 / 80
