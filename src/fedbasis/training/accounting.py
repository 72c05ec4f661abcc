"""How much privacy the rounds have cost: epsilon at a delta, by the library dp-accounting (the extra ``privacy``).

What is protected is one client: neighbouring federations have the same number of clients and differ in all data of one
of them (*replace one*, since their number is known). A round's mean of updates no longer than C, over n clients, then
changes by at most 2 C / n, so noise of deviation z C / n is z / 2 of what can change.

All clients in every round: T rounds are one Gaussian mechanism of z / (2 sqrt T), whose epsilon is exact (Balle and
Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018). Fewer: a fixed number drawn without
replacement, as rounds are, by the Renyi bound of Wang, Balle and Kasiviswanathan, "Subsampled Renyi Differential
Privacy and Analytical Moments Accountant", AISTATS 2019; or as if all took part, if that says less.
"""

from pflbed.errors import InputError


def default_delta(clients: int) -> float:
    """Return the chance of failure that is allowed unless told: less than one among the clients."""
    return 1 / float(clients**1.1)


def epsilon(rounds: int, multiplier: float, clients: int, sampled: int, delta: float) -> float:
    """Return epsilon after so many rounds with ``sampled`` of the clients each and noise of ``multiplier`` clips."""
    try:
        import dp_accounting
        from dp_accounting import rdp
    except ImportError as error:
        raise InputError(
            "Epsilon is computed by the package dp-accounting, but it is not installed; pip install "
            "'fedbasis[privacy]'."
        ) from error
    noise = multiplier / 2
    everyone = float(dp_accounting.get_epsilon_gaussian(noise / rounds**0.5, delta))
    if sampled == clients:
        return everyone
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    drawn = dp_accounting.SampledWithoutReplacementDpEvent(clients, sampled, dp_accounting.GaussianDpEvent(noise))
    accountant.compose(dp_accounting.SelfComposedDpEvent(drawn, rounds))
    return min(everyone, float(accountant.get_epsilon(delta)))
