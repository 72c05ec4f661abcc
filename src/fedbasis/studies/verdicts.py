"""Verdicts on the paper's claims, and which rows of a table lead: paired tests over clients and seeds.

A pair is one client of one seed, served by both rows. A claim holds if the difference is significant in its direction,
does not hold if it is significant in the other one, and otherwise there is no significant difference. Where one row is
compared with many, p is corrected by Holm's procedure (``fedbasis.report.paired``). Quantities without scores of single
clients, such as a cosine, are decided by a margin, which the sentence states.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from fedbasis.report.paired import Paired, family, holm, paired
from fedbasis.report.runs import RunData

PairScores = Mapping[tuple[int, str], float]
"""A number for every seed and client."""
Named = tuple[str, PairScores]
"""A row: what a sentence calls it, and its scores."""
PAIRS = "Verdicts and bold numbers are by two-sided paired t-tests over clients and seeds at 5 %, Holm-corrected."


class Claim(str):
    """A sentence that judges one of the paper's claims; a scale that is too small to learn has none."""

    __slots__ = ()


def last(runs: Sequence[RunData], how: str, size: str) -> dict[tuple[int, str], float]:
    """Return Last of every seed and client."""
    rows = [(run.seed, run.row(how, size)) for run in runs]
    return {(seed, client): score for seed, row in rows if row for client, score in row.per_client.items()}


def best(runs: Sequence[RunData], how: str, size: str) -> dict[tuple[int, str], float]:
    """Return Best of every seed and client."""
    return _of_trials(runs, how, size, lambda last, best: best)


def stopping(runs: Sequence[RunData], how: str, size: str) -> dict[tuple[int, str], float]:
    """Return how far Last and Best of every seed and client are apart."""
    return _of_trials(runs, how, size, lambda last, best: abs(last - best))


def _of_trials(
    runs: Sequence[RunData], how: str, size: str, of: Callable[[float, float], float]
) -> dict[tuple[int, str], float]:
    scores = ((run.seed, run.chosen_scores(how, size)) for run in runs)
    return {(seed, client): of(*pair) for seed, mine in scores for client, pair in mine.items()}


def claim(text: str, holds: bool | None, evidence: str, undecided: str = "No significant difference") -> Claim:
    """Return a sentence on whether one of the paper's claims holds here, with the numbers."""
    verdict = undecided if holds is None else "Holds" if holds else "Does not hold"
    return Claim(f"{verdict} here: {text} ({evidence}).")


def higher(text: str, ours: Named, theirs: Named, lower: bool = False) -> list[Claim]:
    """Judge whether one row is above another, or below it; nothing if they have no clients in common to compare."""
    return highest(text, ours, dict([theirs]), lower)


def higher_each(questions: Sequence[tuple[str, Named, Named]], of: str) -> list[Claim]:
    """Judge of several pairs of rows whether the first is above the second, corrected for the number of questions.

    Args:
        questions: For each the text of its claim, our row and the other one; pairs on other clients are left out.
        of: What the questions differ in, such as sizes.
    """
    compared = [one for one in questions if one[1][1] and one[1][1].keys() == one[2][1].keys()]
    tests = [paired(ours[1], theirs[1]) for _, ours, theirs in compared]
    claims = []
    for (text, ours, theirs), test, p in zip(compared, tests, holm([test.p for test in tests]), strict=True):
        decided = replace(test, adjusted=p)
        evidence = f"{ours[0]} {_percent(ours[1])}, {theirs[0]} {_percent(theirs[1])}: "
        evidence += difference(decided, len(tests), of)
        claims.append(claim(text, test.mean < 0 if decided.significant else None, evidence))
    return claims


def highest(text: str, ours: Named, others: Mapping[str, PairScores], lower: bool = False) -> list[Claim]:
    """Judge whether one row is above all others, or below them.

    It is if it differs significantly from each of them; it is not if one of them is significantly better.
    """
    name, mine = ours
    sign = -1 if lower else 1
    tests = (
        {
            other: test
            for other, test in zip(others, family(mine, list(others.values())), strict=True)
            if test is not None
        }
        if mine
        else {}
    )
    if not tests:
        return []
    strongest = max(tests, key=lambda other: sign * tests[other].mean)
    ahead = [other for other, test in tests.items() if test.significant and sign * test.mean > 0]
    level = [other for other, test in tests.items() if not test.significant]
    holds = False if ahead else None if level else True
    evidence = f"{name} {_percent(mine)}, "
    evidence += f"the {'lowest' if lower else 'best'} other, " if len(tests) > 1 else ""
    evidence += f"{strongest} {_percent(others[strongest])}: {difference(tests[strongest], len(tests))}"
    if len(tests) > 1:
        better = len(tests) - len(ahead) - len(level)
        evidence += f"; of {len(tests)} other rows {better} are significantly {'higher' if lower else 'lower'}, "
        evidence += f"{len(level)} not significantly different, {len(ahead)} significantly "
        evidence += "lower" if lower else "higher"
    return [claim(text, holds, evidence)]


def difference(test: Paired, family_size: int = 1, of: str = "rows") -> str:
    """Write the first minus the second of a test that was made the other way round: points, interval, p, pairs."""
    mean = 0.0 - 100 * test.mean
    parts = [f"difference {mean:+.1f} points"]
    if test.low is not None and test.high is not None:
        parts.append(f"95 % interval {0.0 - 100 * test.high:+.1f} to {0.0 - 100 * test.low:+.1f}")
    p = f"p = {test.adjusted:.3f}" if test.adjusted >= 0.001 else "p < 0.001"
    parts.append(p + (f" after Holm's correction for {family_size} {of}" if family_size > 1 else ""))
    parts.append(f"{test.clients} pairs")
    return ", ".join(parts)


def by_margin(text: str, ours: float, theirs: float, margin: float, evidence: str) -> Claim:
    """Judge by a fixed margin where there are no scores of single clients; the sentence states the rule."""
    holds = None if abs(ours - theirs) < margin else ours > theirs
    rule = f"rule: at least {margin:g} apart, since there are no scores of single clients to test"
    return claim(text, holds, f"{evidence}; {rule}", "Too close to call")


def _percent(scores: PairScores) -> str:
    return f"{100 * fmean(scores.values()):.1f}"
