"""The result in words, computed from the scores, whoever wins; and what keeps the numbers from being compared."""

from collections.abc import Sequence

from fedbasis.evaluation import Row
from fedbasis.report.data import RunData, sizes_of

OTHERS = 4
"""So many other rows are named beside the leader."""

Scored = tuple[RunData, Row]


def percent(share: float) -> str:
    """Write a share of one as a percentage."""
    return f"{100 * share:.1f} %"


def comparable(runs: Sequence[RunData]) -> bool:
    """Whether all runs with results served exactly the same clients."""
    return len({run.population for run in runs if run.rows}) <= 1


def headline(runs: Sequence[RunData]) -> list[str]:
    """Return a sentence per size, or per run and size where runs cannot be compared."""
    scored = [run for run in runs if run.rows]
    if not scored:
        return ["No run has results yet: new clients are served and scored after the last round."]
    groups = [scored] if comparable(scored) else [[run] for run in scored]
    return [_sentence(group, size) for group in groups for size in sizes_of(group) if _ranked(group, size)]


def caveats(runs: Sequence[RunData]) -> list[str]:
    """Return what a reader must know before comparing numbers."""
    notes = [
        f"{run.name} ({run.folder}) has no results yet: {run.state}; training it again continues it."
        for run in runs
        if not run.rows
    ]
    if not comparable(runs):
        notes.append(
            "These runs did not serve the same clients (their data, splits or seeds differ), so their numbers cannot "
            "be compared with each other and no best one is marked."
        )
    return notes


def _ranked(runs: Sequence[RunData], size: str) -> list[Scored]:
    """Order every row of every run by Last; none is chosen for its run, since test scores must choose nothing."""
    rows = [(run, row) for run in runs for row in run.rows if row.size == size]
    return sorted(rows, key=lambda pair: -pair[1].last)


def _sentence(runs: Sequence[RunData], size: str) -> str:
    ranked = _ranked(runs, size)
    score, clients = percent(ranked[0][1].last), len(ranked[0][1].per_client)
    leaders = [pair for pair in ranked if percent(pair[1].last) == score]
    others = ranked[len(leaders) :]
    names = " and ".join(run.title(row) for run, row in leaders)
    verb = "both reach" if len(leaders) == 2 else "reach" if len(leaders) > 2 else "reaches"
    text = f"{names} {verb} {score} on {clients} new client{'s' * (clients != 1)} with {size} data"
    text += "".join(f", {run.title(row)} {percent(row.last)}" for run, row in others[:OTHERS])
    if len(others) > OTHERS:
        text += f", and {len(others) - OTHERS} others less"
    if len(leaders) == 1 and others:
        text += _wins(leaders[0], next((pair for pair in others if pair[0] is not leaders[0][0]), others[0]))
    return text + "."


def _wins(leader: Scored, second: Scored) -> str:
    mine, theirs = leader[1].per_client, second[1].per_client
    if mine.keys() != theirs.keys():
        return ""
    wins = sum(mine[client] > theirs[client] for client in mine)
    return f"; {leader[0].title(leader[1])} is ahead of {second[0].title(second[1])} on {wins} of them"
