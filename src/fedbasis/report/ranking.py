"""The rows of one size from the best down: who leads, who is not significantly worse, and by how much each trails.

The tests against the leader are one family, corrected by Holm's procedure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fedbasis.report.groups import ClientScores, Group
from fedbasis.report.paired import Paired, family

LEAD, TIED, WORSE, APART = "lead", "tied", "worse", "apart"
"""The leader; not significantly worse than it; significantly worse; on other clients, so not comparable with it."""


@dataclass(frozen=True, eq=False)
class Ranked:
    """One method and way of personalizing at one size."""

    group: Group
    title: str
    mean: float
    """The mean Last over clients, and over seeds."""
    scores: ClientScores
    mark: str
    behind: Paired | None
    """Its scores minus the leader's on the same clients; nothing for the leader and on other clients."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the difference from the leader, around the row's own mean, at Holm's level.

        It reaches the leader's mean exactly if the row is not significantly worse.
        """
        if self.behind is None or self.behind.low is None or self.behind.high is None:
            return None
        return self.mean + self.behind.low - self.behind.mean, self.mean + self.behind.high - self.behind.mean


def ranked(groups: Sequence[Group], size: str) -> list[Ranked]:
    """Rank the rows of groups that can be compared with each other."""
    found = []
    for group in groups:
        for how in group.ways:
            rows = group.rows(how, size)
            if rows:
                found.append((group, group.title(how), fmean(row.last for row in rows), group.scores(how, size)))
    found.sort(key=lambda row: -row[2])
    ranking: list[Ranked] = []
    tests = family(found[0][3], [row[3] for row in found[1:]], holms_intervals=True) if found else []
    for (group, title, mean, scores), behind in zip(found, [None, *tests], strict=False):
        mark = LEAD if not ranking else APART if behind is None else WORSE if behind.significant else TIED
        ranking.append(Ranked(group, title, mean, scores, mark, behind))
    return ranking
