"""Privacy accounting: epsilon at a delta after some rounds, by the library dp-accounting (the extra ``privacy``).

The unit of protection is a client: neighbouring federations have the same number of clients and differ in all data of
one of them (*replace one*, since their number is known). A round's mean of n clients' updates of norm at most C then
changes by at most 2 C / n, so noise of standard deviation z C / n is z / 2 times the sensitivity.

All clients in every round: T rounds are one Gaussian mechanism of z / (2 sqrt T), whose epsilon is exact (Balle and
Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018). Fewer: a fixed number is sampled without
replacement, and epsilon is the Renyi bound of Wang, Balle and Kasiviswanathan, "Subsampled Renyi Differential Privacy
and Analytical Moments Accountant", AISTATS 2019, or that of all clients in every round, if it is less.
"""

from pflbed.errors import InputError


def default_delta(clients: int) -> float:
    """Return the default delta, 1 / clients^1.1, which is less than 1 / clients."""
    return 1 / float(clients**1.1)


def epsilon(rounds: int, multiplier: float, clients: int, sampled: int, delta: float) -> float:
    """Return epsilon.

    Args:
        rounds: The number of rounds.
        multiplier: The noise multiplier z.
        clients: The number of clients.
        sampled: The number of clients in every round.
        delta: The delta.
    """
    try:
        import dp_accounting
        from dp_accounting import rdp
    except ImportError as error:
        raise InputError(
            "Epsilon needs the package dp-accounting, but it is not installed; run pip install -e '.[privacy]' in the "
            "checkout."
        ) from error
    noise = multiplier / 2
    without_sampling = float(dp_accounting.get_epsilon_gaussian(noise / rounds**0.5, delta))
    if sampled == clients:
        return without_sampling
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(clients, sampled, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, rounds))
    return min(without_sampling, float(accountant.get_epsilon(delta)))
