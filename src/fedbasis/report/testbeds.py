"""Runs on other data, or for other clients, stand in tables of their own: their numbers have nothing in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from fedbasis.report.groups import Group
from fedbasis.report.runs import RunData


@dataclass(frozen=True, eq=False)
class Testbed:
    """The groups with results on the same images, for clients that are new or took part."""

    title: str
    """Empty if there is only one."""
    whom: str
    groups: Sequence[Group]

    @property
    def runs(self) -> list[RunData]:
        """All runs with results."""
        return [run for group in self.groups for run in group.scored]


def testbeds(groups: Sequence[Group]) -> list[Testbed]:
    """Sort the groups with results by their data and by whom they served, in their order."""
    found: dict[tuple[str | None, str], list[Group]] = {}
    for group in groups:
        for run in group.scored[:1]:
            found.setdefault((run.digest, run.whom), []).append(group)
    if len(found) == 1:
        return [Testbed("", whom, mine) for (_, whom), mine in found.items()]
    titles = {key: f"{_source(mine[0].scored[0])}, {key[1]} clients" for key, mine in found.items()}
    shared = [title for title in titles.values() if list(titles.values()).count(title) > 1]
    return [
        Testbed(titles[key] + (f" ({(key[0] or '')[:8]})" if titles[key] in shared else ""), key[1], mine)
        for key, mine in found.items()
    ]


def _source(run: RunData) -> str:
    return PurePath(str(run.config.get("data", {}).get("source") or "data")).name
