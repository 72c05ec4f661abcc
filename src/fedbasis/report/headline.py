"""The result in sentences computed from the scores, and notes on numbers that cannot be compared."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from fedbasis.report.groups import Group, compared
from fedbasis.report.paired import leaders
from fedbasis.report.runs import RunData, sizes_of
from fedbasis.report.testbeds import by_testbed

NAMED = 5
"""A list names at most so many rows, clients or runs."""


def headline(groups: Sequence[Group]) -> list[str]:
    """Return a sentence per data set and size; groups on other clients than the rest have sentences of their own."""
    sentences = []
    for testbed in by_testbed(groups):
        same = compared(testbed.groups)
        for part in ([same] if same else []) + [[group] for group in testbed.groups if group not in same]:
            found = [_sentence(part, size, testbed.served) for size in sizes_of([r for g in part for r in g.scored])]
            sentences += [f"{testbed.title}: {text}" if testbed.title else text for text in found if text]
    return sentences or ["No run has results yet: new clients are served and scored after the last round."]


def _sentence(groups: Sequence[Group], size: str, served: str) -> str:
    """Name the best row, its accuracy, and the rows that are not significantly worse."""
    found = [(group, how, rows) for group in groups for how in group.ways if (rows := group.rows(how, size))]
    ranked = [(fmean(row.last for row in rows), g.title(how), g.scores(how, size)) for g, how, rows in found]
    ranked.sort(key=lambda row: -row[0])
    if not ranked:
        return ""
    best, name, scores = ranked[0]
    splits = len({population for population, _ in scores})
    text = f"{name} reaches {_percent(best)} on {len(scores)} {served} client{'s' * (len(scores) != 1)}"
    text += f"{f' of {splits} splits' * (splits > 1)} with {size} data"
    marks = leaders([mine for *_, mine in ranked])
    others = zip(ranked[1:], marks[1:], strict=True)
    alike = [f"{title} ({_percent(mean)})" for (mean, title, _), mark in others if mark]
    if alike:
        return f"{text}; not significantly worse: {_listed(alike, 'rows')}."
    return f"{text}; all other rows are significantly worse." if len(ranked) > 1 else f"{text}."


def caveats(groups: Sequence[Group]) -> list[str]:
    """Return what a reader must know before comparing numbers."""
    without = [(group, run) for group in groups for run in group.runs if not run.rows]
    federated = [(group, run) for group, run in without if run.run.federation.exists()]
    unfinished = [(group, run) for group, run in without if not run.run.federation.exists()]
    notes = [f"{_name(*pair)} has no scores: its server has no images to score." for pair in federated]
    notes += [
        f"{_name(group, run)} has no results yet: {run.state}{'' if run.active else '; training it again resumes it'}."
        for group, run in unfinished[:NAMED]
    ]
    if len(unfinished) > NAMED:
        notes.append(f"{len(unfinished) - NAMED} other runs have no results yet; see Provenance.")
    for testbed in by_testbed(groups):
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
    """Count the updates that were not aggregated, by client."""
    notes = []
    for key, what in {"refused": "were refused", "absent": "did not come in time"}.items():
        counts = Counter(str(client) for line in run.lines for client in line.get(key) or ())
        if counts:
            shown = _listed([f"{client} {count}" for client, count in counts.most_common()], "clients")
            notes.append(f"{_name(group, run)}: {counts.total()} updates {what} ({shown}).")
    return notes


def _name(group: Group, run: RunData) -> str:
    return f"{group.name}{f' of seed {run.seed}' * (len(group.runs) > 1)} ({run.folder})"


def _listed(names: Sequence[str], what: str) -> str:
    more = f" and {len(names) - NAMED} other {what}" * (len(names) > NAMED)
    return ", ".join(names[:NAMED]) + more


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\xa0%"
