"""The result in sentences computed from the scores, and notes on numbers that cannot be compared."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedbasis.report.colors import OWN
from fedbasis.report.groups import Group, compared
from fedbasis.report.ranking import TIED, Ranked, ranked
from fedbasis.report.runs import RunData, sizes_of
from fedbasis.report.testbeds import Testbed, by_testbed

NAMED = 4
"""A list names at most so many rows, clients or runs."""


@dataclass(frozen=True)
class Sentence:
    """A sentence that opens with what matters most."""

    strong: str
    rest: str
    data: str = ""
    """Which data it is about, where the page has several."""

    def __str__(self) -> str:
        return f"{self.data}: {self.strong}{self.rest}" if self.data else self.strong + self.rest


def headline(groups: Sequence[Group]) -> list[Sentence]:
    """Return a sentence per data set and size; groups on other clients than the rest have sentences of their own."""
    found = [sentence for testbed in by_testbed(groups) for sentence in sentences(testbed)]
    return found or [
        Sentence("There are no results yet", ": new clients are served and scored after the last round of training.")
    ]


def sentences(testbed: Testbed) -> list[Sentence]:
    """Return the sentences about one data set."""
    same = compared(testbed.groups)
    found = []
    for part in ([same] if same else []) + [[group] for group in testbed.groups if group not in same]:
        for size in sizes_of([run for group in part for run in group.scored]):
            rows = ranked(part, size)
            if rows:
                found.append(replace(_sentence(rows, size, testbed.served), data=testbed.title))
    return found


def _sentence(rows: Sequence[Ranked], size: str, served: str) -> Sentence:
    """Say who leads and by how much, and who is not significantly worse."""
    first, others = rows[0], rows[1:]
    splits = len({population for population, _ in first.scores})
    where = f" at size {size} on {len(first.scores)} {served} client{'s' * (len(first.scores) != 1)}"
    where += f" of {splits} splits" * (splits > 1)
    if not others:
        return Sentence(f"{first.title} reaches {_percent(first.mean)}", f"{where}.")
    alike = [row for row in others if row.mark == TIED]
    if len(alike) == len(others):
        if len(others) == 1:
            span = f" between {_scored(first)} and {_scored(others[0])}."
        else:
            span = f" from the best: the {len(rows)} rows lie between {_scored(first)} and {_scored(others[-1])}."
        return Sentence("No significant difference", where + span + _own(rows, [first, others[-1]]))
    rival = next((row for row in others if row.group.method != first.group.method), others[0])
    best = ", the best other method" if rival is not others[0] else ""
    ahead = f", {100 * (first.mean - rival.mean):.1f} points ahead of {_scored(rival)}{best}"
    strong = f"{first.title} leads with {_percent(first.mean)}"
    if not alike:
        worse = " All other rows are significantly worse." if len(others) > 1 else " The difference is significant."
        return Sentence(strong, f"{where}{ahead}." + worse + _own(rows, [first, rival]))
    close, rest = rival.mark == TIED, [row for row in alike if row is not rival]
    if len(alike) > NAMED:
        few = f". {len(alike)} of the {len(others)} other rows are not significantly worse."
        return Sentence(strong, where + ahead + few + _own(rows, [first, rival]))
    listed = _and([_scored(row) for row in rest])
    if close:
        said = ", which is not significantly worse" + (
            f"; nor {'are' if len(rest) > 1 else 'is'} {listed}." if rest else "."
        )
    else:
        said = f". Not significantly worse: {listed}."
    return Sentence(strong, where + ahead + said + _own(rows, [first, rival, *alike]))


def _and(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if names[1:] else "") + "".join(names[-1:])


def _own_row(rows: Sequence[Ranked]) -> Ranked | None:
    return next((row for row in rows if row.group.method == OWN), None)


def _own(rows: Sequence[Ranked], named: Sequence[Ranked]) -> str:
    """Say where FedBasis is, unless it is named already."""
    own = _own_row(rows)
    if own is None or own in named:
        return ""
    tie = ", not significantly worse" if own.mark == TIED else ""
    return f" {own.title} is number {rows.index(own) + 1} of {len(rows)} with {_percent(own.mean)}{tie}."


def _scored(row: Ranked) -> str:
    return f"{row.title} with {_percent(row.mean)}"


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
    notes += [
        f"{_name(group, run)} has results but no evaluation log that can be read: figures of personalization lack it."
        for group in groups
        for run in group.scored
        if not run.records
    ]
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
