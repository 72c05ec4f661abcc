"""The result in words, computed from the scores, whoever wins; and what keeps the numbers from being compared."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from fedbasis.report.groups import ClientScores, Group, compared
from fedbasis.report.paired import leaders
from fedbasis.report.runs import RunData, sizes_of
from fedbasis.report.testbeds import testbeds
from fedbasis.training.runs import Run

OTHERS = 4
"""So many other rows are named beside the leader."""
NAMED = 6
"""So many runs without results are named."""

Ranked = tuple[str, float, ClientScores]


def percent(share: float) -> str:
    """Write a share of one as a percentage that no line breaks."""
    return f"{100 * share:.1f}\xa0%"


def headline(groups: Sequence[Group]) -> list[str]:
    """Return a sentence per data and size; groups on other clients than the rest have sentences of their own."""
    sentences = []
    for testbed in testbeds(groups):
        same = compared(testbed.groups)
        for part in ([same] if same else []) + [[group] for group in testbed.groups if group not in same]:
            scored = [run for group in part for run in group.scored]
            found = [text for size in sizes_of(scored) if (text := _sentence(part, size, testbed.whom))]
            sentences += [f"{testbed.title}: {text}" if testbed.title else text for text in found]
    return sentences or ["No run has results yet: new clients are served and scored after the last round."]


def caveats(groups: Sequence[Group]) -> list[str]:
    """Return what a reader must know before comparing numbers."""
    without = [(group, run) for group in groups for run in group.runs if not run.rows]
    waiting = [(group, run) for group, run in without if not Run(run.place).federation.exists()]
    notes = [
        f"{group.name}{_seed(group, run)} ({run.folder}) has no scores: its server has no images to score."
        for group, run in without
        if (group, run) not in waiting
    ]
    notes += [
        f"{group.name}{_seed(group, run)} ({run.folder}) has no results yet: {run.state}; training it again "
        "continues it."
        for group, run in waiting[:NAMED]
    ]
    if len(waiting) > NAMED:
        notes.append(
            f"{len(waiting) - NAMED} other runs have no results yet either; Provenance tells how far they are."
        )
    for testbed in testbeds(groups):
        same = compared(testbed.groups)
        others = [group.name for group in testbed.groups if group not in same]
        if not same:
            notes.append(
                "These runs did not serve the same clients (their splits or seeds differ), so their numbers cannot be "
                f"compared with each other and no best one is marked: {', '.join(others)}."
            )
        elif others:
            notes.append(
                f"{' and '.join(others)} did not serve the same clients as the rest (other splits or seeds), so "
                "these numbers cannot be compared with the others and are never marked as best."
            )
    return notes + [note for group in groups for run in group.runs for note in _left_out(group, run)]


def _left_out(group: Group, run: RunData) -> list[str]:
    """Count the updates that were never averaged, by client."""
    told = {"refused": "were refused", "absent": "did not come in time"}
    notes = []
    for key, what in told.items():
        counts = Counter(client for line in run.lines for client in line.get(key, ()))
        if counts:
            shown = ", ".join(f"{client} {count}" for client, count in counts.most_common(OTHERS))
            more = f" and {len(counts) - OTHERS} other clients" if len(counts) > OTHERS else ""
            notes.append(f"{group.name}{_seed(group, run)}: {counts.total()} updates {what} ({shown}{more}).")
    return notes


def _seed(group: Group, run: RunData) -> str:
    return f" of seed {run.seed}" if len(group.runs) > 1 else ""


def _ranked(groups: Sequence[Group], size: str) -> list[Ranked]:
    """Order every row of every group by Last; none is chosen for its run, since test scores must choose nothing."""
    found = []
    for group in groups:
        for how in group.ways:
            rows = group.rows(how, size)
            if rows:
                found.append((group.title(how), fmean(row.last for row in rows), group.scores(how, size)))
    return sorted(found, key=lambda row: -row[1])


def _sentence(groups: Sequence[Group], size: str, whom: str) -> str:
    ranked = _ranked(groups, size)
    if not ranked:
        return ""
    score, clients = percent(ranked[0][1]), len(ranked[0][2])
    first = [row for row in ranked if percent(row[1]) == score]
    others = ranked[len(first) :]
    names = " and ".join(title for title, *_ in first)
    verb = "both reach" if len(first) == 2 else "reach" if len(first) > 2 else "reaches"
    splits = len({population for population, _ in ranked[0][2]})
    text = f"{names} {verb} {score} on {clients} {whom} client{'s' * (clients != 1)}"
    text += f"{f' of {splits} splits' * (splits > 1)} with {size} data"
    text += "".join(f", {title} {percent(mean)}" for title, mean, _ in others[:OTHERS])
    if len(others) > OTHERS:
        more = len(others) - OTHERS
        text += f", and {more} other{'s' * (more > 1)} less"
    return text + (_told_apart(ranked) if len(first) == 1 and others else "") + "."


def _told_apart(ranked: Sequence[Ranked]) -> str:
    """Say against how many of the others the lead is more than luck."""
    alike = sum(leaders([scores for *_, scores in ranked])) - 1
    others = len(ranked) - 1
    if not alike:
        return (
            "; this lead is significant over the other one"
            if others == 1
            else f"; this lead is significant over all {others}"
        )
    if alike == others:
        return "; the other one is not significantly worse" if others == 1 else "; none of them is significantly worse"
    return f"; {alike} of these {others} {'is' if alike == 1 else 'are'} not significantly worse"
