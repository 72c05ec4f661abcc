"""Table E: how many bases are enough? K in {1, 2, 4, 6, 8}, at the smallest size, the epoch chosen on validation data.

K = 1 is FedAvg + FT, as the paper's numbers for it are those of FedAvg + FT in table 2.
"""

from statistics import fmean
from typing import ClassVar

from fedbasis.experiments import paper
from fedbasis.experiments.base import Found, Setup, Study, Want
from fedbasis.experiments.grids import PAPER, another_scale, claim, measured, number, percent, printed, table, title
from fedbasis.experiments.new_clients import main_want, rows_of, sizes
from fedbasis.report.section import Section


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
                    wants.append(Want(bed, str(count), seed, {**raw, "method": method}))
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
            several = [count for count in means if count > 1]
            if 1 in means and several:
                evidence = ", ".join(f"K = {count} {percent(share)}" for count, share in means.items())
                better = all(means[count] > means[1] for count in several)
                text.append(claim("several bases are better than one", better, evidence))
                few = max(several, key=lambda count: means[count]) <= 4
                text.append(claim("a small number of bases, up to four, is enough", few, evidence))
        return Section(self.name, self.title, text, tables)
