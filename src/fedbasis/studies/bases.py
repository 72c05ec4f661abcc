"""Table E: how many bases are enough? K in {1, 2, 4, 6, 8}, at the smallest size, the epoch chosen on validation data.

K = 1 is FedAvg + FT, as the paper's numbers for it are those of FedAvg + FT in table 2.
"""

from collections.abc import Mapping
from statistics import fmean
from typing import ClassVar

from fedbasis.report.chapter import Section
from fedbasis.studies import paper
from fedbasis.studies.base import Found, Setup, Study, Want
from fedbasis.studies.grids import (
    PAPER,
    above,
    another_scale,
    claim,
    measured,
    number,
    percent,
    printed,
    table,
    title,
)
from fedbasis.studies.new_clients import at_one_size, main_want, rows_of, sizes

FEW = 4


def _way(count: int) -> str:
    return "ft" if count == 1 else paper.FEDBASIS[1]


class Bases(Study):
    """A run for every number of bases."""

    name: ClassVar[str] = "bases"
    aliases: ClassVar[tuple[str, ...]] = ("table-e",)
    title: ClassVar[str] = "The number of bases"

    def wants(self, setup: Setup) -> list[Want]:
        """FedAvg for one basis, FedBasis for more."""
        wants = []
        for bed in setup.scale.counted:
            for seed in setup.seeds:
                for count in setup.scale.bases:
                    raw = main_want(setup, bed, "fedavg" if count == 1 else "fedbasis", seed).raw
                    method = {**raw["method"], **({"bases": count} if count > 1 else {})}
                    if method != raw["method"]:  # a run that no other table reads
                        raw = at_one_size({**raw, "method": method}, sizes(setup, bed)[0])
                    wants.append(Want(bed, str(count), seed, raw))
        return wants

    def section(self, setup: Setup, found: Found) -> Section:
        """A table for every dataset."""
        tables, text = [], []
        for bed in setup.scale.counted:
            runs, size = found.by_name(self.wants(setup), bed), sizes(setup, bed)[0]
            rows, means = {}, {}
            for count in setup.scale.bases:
                shares = [row.best for row in rows_of(runs, (str(count), _way(count)), size)]
                if shares:
                    beside = paper.BASES[printed(setup, bed)].get(count)
                    rows[f"K = {count}"] = [measured(shares, runs[str(count)][0].folder), number(beside)]
                    means[count] = fmean(shares)
            tables.append(table(f"{title(setup, bed)}, size {size}: Best, in %", ["here", PAPER], rows, best=(0,)))
            text.append(another_scale(setup, bed, printed(setup, bed)))
            text += _claims(means) if means else []
        return Section(self.name, self.title, text, tables)


def _claims(means: Mapping[int, float]) -> list[str]:
    said = []
    evidence = ", ".join(f"K = {count} {percent(share)}" for count, share in means.items())
    if 1 in means and len(means) > 1:
        worst = min(share for count, share in means.items() if count > 1)
        said.append(claim("several bases are better than one", above(worst, means[1]), evidence))
    if FEW in means and max(means) > FEW:
        enough = not above(max(means.values()), means[FEW])
        said.append(claim("no number of bases is half a point or more above four", enough, evidence))
    else:
        said.append("Whether four bases are enough cannot be said here: four and more than four must have been tried.")
    return said
