"""Figure 4b: the learned coefficients of every new client, block by block."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from fedbasis.report import figures
from fedbasis.report.chapter import Chapter, ReportFigure
from fedbasis.report.runs import domain_of
from fedbasis.report.tables import Grid
from fedbasis.studies import drawing, paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.grids import number, table, title
from fedbasis.studies.new_clients import main_request, sizes
from fedbasis.studies.verdicts import by_margin, claim

HOW = paper.FEDBASIS[1]


class Coefficients(Study):
    """Of the main table's FedBasis, by the first seed."""

    name: ClassVar[str] = "coefficients"
    aliases: ClassVar[tuple[str, ...]] = ("figure-4b",)
    title: ClassVar[str] = "Coefficients of new clients"

    def requests(self, setup: Setup) -> list[RunRequest]:
        """The run of the main table."""
        return [main_request(setup, testbed, setup.own, setup.seeds[0]) for testbed in setup.scale.main]

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """A figure for every block, and how much of the differences domains explain."""
        drawn: list[ReportFigure] = []
        tables: list[Grid] = []
        text: list[str] = []
        for request in self.requests(setup):
            run, where = found.get(request), title(setup, request.testbed)
            if run is None:
                continue
            learned = run.learned(HOW, sizes(setup, request.testbed)[-1])["alpha"]
            shares = {}
            for block, clients in learned.rows.items():
                alpha = dict(sorted(clients.items()))
                caption = f"{where}: coefficients of every new client in block {block}"
                name = f"coefficients-{request.testbed}-{block}"
                draw = partial(figures.heat, alpha, block, learned.columns)
                numbers = [[client, *(f"{value:.5g}" for value in row)] for client, row in alpha.items()]
                drawn.append(drawing.drawn(name, caption, draw, ["client", *learned.columns], numbers))
                shares[block] = explained(alpha)
            caption = f"{where}: share of the coefficients' variance that lies between domains"
            rows = {block: [number(share, 2, run.folder)] for block, share in shares.items()}
            tables.append(table(caption, ["share"], rows))
            text += _claims(where, shares)
        return Chapter(self.name, self.title, text, tables, drawn)


def explained(alpha: Mapping[str, Sequence[float]]) -> float | None:
    """Return how much of the coefficients' variance lies between domains: 1 if clients of a domain agree."""
    points = np.array(list(alpha.values()), dtype=np.float64)
    whole = ((points - points.mean(0)) ** 2).sum()
    if not whole:
        return None
    names = np.array([domain_of(client) for client in alpha])
    within = sum(((points[names == name] - points[names == name].mean(0)) ** 2).sum() for name in np.unique(names))
    return float(1 - within / whole)


def _claims(where: str, shares: Mapping[str, float | None]) -> list[str]:
    known = {block: share for block, share in shares.items() if share is not None}
    body = list(known)[:-1]  # the last block is the classifier
    if len(body) < 2:
        return [
            claim(
                "clients group by domain in the later blocks",
                None,
                f"{where}: all clients have the same coefficients",
                "Too close to call",
            )
        ]
    early, late = known[body[0]], known[body[-1]]
    evidence = f"{where}: domains explain {late:.2f} of the variance in {body[-1]}, {early:.2f} in {body[0]}"
    text = f"clients group by domain more in {body[-1]}, the last block before the classifier, than in {body[0]}"
    return [by_margin(text, late, early, 0.02, evidence)]
