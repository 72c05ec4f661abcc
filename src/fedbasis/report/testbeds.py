"""Runs on other data, or for another kind of clients, get tables of their own: their numbers cannot be compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from fedbasis.report.groups import Group
from fedbasis.report.runs import RunData


@dataclass(frozen=True, eq=False)
class Testbed:
    """The groups with results on the same data, for the same kind of clients."""

    title: str
    """Empty if there is only one."""
    served: str
    """``new`` or ``participating``."""
    groups: Sequence[Group]


def by_testbed(groups: Sequence[Group]) -> list[Testbed]:
    """Sort the groups with results by their data and the kind of clients, in their order."""
    found: dict[tuple[str | None, str], list[Group]] = {}
    for group in groups:
        for run in group.scored[:1]:
            found.setdefault((run.digest, run.served), []).append(group)
    if len(found) == 1:
        return [Testbed("", served, mine) for (_, served), mine in found.items()]
    titles = {key: f"{_source(mine[0].scored[0])}, {key[1]} clients" for key, mine in found.items()}
    shared = [title for title in titles.values() if list(titles.values()).count(title) > 1]
    return [
        Testbed(titles[key] + (f" ({(key[0] or '')[:8]})" if titles[key] in shared else ""), key[1], mine)
        for key, mine in found.items()
    ]


def _source(run: RunData) -> str:
    return PurePath(str(run.config["data"].get("source") or "data")).name
