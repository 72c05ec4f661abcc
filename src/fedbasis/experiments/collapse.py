"""Figure 2 and table A: bases that are trained together with their coefficients collapse into one model.

Forty clients, four bases, each a network of its own that starts at random. Trained jointly (equations 5 and 6) the
bases grow alike and the coefficients even, unless clients communicate after every step; coordinate descent with
sharpening works against it.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from fedbasis import coefficients
from fedbasis.algorithms.base import Context
from fedbasis.basis import BasisSet
from fedbasis.experiment import Prepared
from fedbasis.experiments import drawing, paper
from fedbasis.experiments.base import NO_WEIGHTS, Found, Setup, Study, Want
from fedbasis.experiments.grids import PAPER, above, another_scale, claim, measured, number, percent, table, title
from fedbasis.experiments.outcome import Outcome
from fedbasis.report.section import Figure, Section
from fedbasis.runs import Run, rewrite_lines
from fedbasis.train import examples_of

TRACE = "trace.jsonl"
JOINT: Mapping[str, Any] = {
    "bases": 4, "init": "random", "warm_start": 0.0, "major": False, "tau": 1.0, "coordinate_descent": False,
    "upload": "full", "aggregation": "mean", "rate": "per-basis",
}  # fmt: skip
APART: Mapping[str, Any] = {**JOINT, "coordinate_descent": True, "tau": 0.1}
NAMES = {"joint": "trained together", "apart": "coordinate descent"}
HOW, SIZE = "coefficients", "M"


def random_want(setup: Setup, name: str, method: str, seed: int, settings: Mapping[str, Any], **more: Any) -> Want:
    """Plan one of the runs on forty clients, from random weights; ``more`` is as for every want."""
    data = {"new_clients": 0, "split": [80, 0, 5, 15]} | ({"clients": 10} if setup.scale.name != "smoke" else {})
    scale, serve = setup.scale, {"whom": "participating", **more.pop("personalize", {})}
    train = {"rounds": scale.random_epochs // scale.random_round, "epochs": scale.random_round, **more.pop("train", {})}
    return setup.want(
        scale.collapse, method, seed, name, data=data, model=NO_WEIGHTS, train=train, personalize=serve,
        settings=settings, **more
    )  # fmt: skip


def trace(prepared: Prepared, run: Run) -> None:
    """Watch one client's first round, step by step: how alike the bases are, how even the coefficients."""
    if (run.folder / TRACE).exists():
        return
    method, name = prepared.method, prepared.benchmark.participating[0]
    lines: list[dict[str, Any]] = []

    def watch(bases: BasisSet, alpha: Tensor) -> None:
        entropy = float(coefficients.entropy(alpha).mean())
        lines.append({"step": len(lines) + 1, "cosine": bases.cosine()[0], "entropy": entropy})

    server = method.init(prepared.experiment.seed)
    context = Context(prepared.experiment.seed, name, method.task.network.workspace(), watch=watch)
    method.client_update(method.broadcast(server, name), None, examples_of(prepared.clients[name].train), context)
    rewrite_lines(run.folder / TRACE, lines)


AFTER = f"{__name__}:{trace.__name__}"


class Collapse(Study):
    """Within a round, and along the rounds."""

    name: ClassVar[str] = "collapse"
    aliases: ClassVar[tuple[str, ...]] = ("figure-2",)
    title: ClassVar[str] = "Bases collapse when they are trained together with their coefficients"

    def wants(self, setup: Setup) -> list[Want]:
        """Joint training and coordinate descent, by the first seed."""
        settings = {"joint": JOINT, "apart": APART}
        return [
            random_want(setup, name, "fedbasis", setup.seeds[0], mine, personalize={"ways": [HOW]}, after=AFTER)
            for name, mine in settings.items()
        ]

    def section(self, setup: Setup, found: Found) -> Section:
        """Four figures and a claim for each pair."""
        bed = setup.scale.collapse
        runs = {name: mine[0] for name, mine in found.by_name(self.wants(setup), bed).items()}
        figures: list[Figure] = []
        text = [
            f"{title(setup, bed)}, {setup.scale.random_round} epochs a round. The paper shows curves and no numbers: "
            "cosine and entropy rise within a round and along the rounds of joint training."
        ]
        for what, unit in (("cosine", "mean pairwise cosine of the bases"), ("entropy", "mean entropy of α (nats)")):
            within = {NAMES[name]: _within(outcome, what) for name, outcome in runs.items()}
            along = {NAMES[name]: _along(outcome, what) for name, outcome in runs.items()}
            if not runs:
                continue
            figures.append(
                drawing.curves(
                    f"collapse-{what}-step", f"Within one client's first round: {unit}", within, "local step", unit
                )
            )
            figures.append(drawing.curves(f"collapse-{what}-round", f"Along the rounds: {unit}", along, "round", unit))
            if "joint" in runs:
                steps, rounds = within[NAMES["joint"]][1], along[NAMES["joint"]][1]
                for where, curve in (("within a round", steps), ("along the rounds", rounds)):
                    evidence = f"from {curve[0]:.4f} to {curve[-1]:.4f}"
                    text.append(claim(f"joint training raises the {what} {where}", curve[-1] > curve[0], evidence))
            if len(runs) == 2:
                together, apart = (along[NAMES[name]][1][-1] for name in ("joint", "apart"))
                evidence = f"{what} {together:.4f} together, {apart:.4f} by coordinate descent, after the last round"
                text.append(claim(f"coordinate descent ends with a lower {what}", apart < together, evidence))
        return Section(self.name, self.title, text, figures=figures)


class Communication(Study):
    """Table A: aggregating after every step keeps joint training from collapsing."""

    name: ClassVar[str] = "communication"
    aliases: ClassVar[tuple[str, ...]] = ("table-a",)
    title: ClassVar[str] = "Joint training with unlimited and with limited communication"

    def wants(self, setup: Setup) -> list[Want]:
        """The run of figure 2, and one that sends after every step for as many epochs in all."""
        serve = {"ways": [HOW]}
        wants = []
        for seed in setup.seeds:
            seldom = random_want(setup, "every 5 epochs", "fedbasis", seed, JOINT, personalize=serve, after=AFTER)
            steps = {"rounds": setup.scale.random_epochs * self.steps_an_epoch(setup), "epochs": 1}
            often = {**JOINT, "communicate_every": "step"}
            wants += [seldom, random_want(setup, "every step", "fedbasis", seed, often, personalize=serve, train=steps)]
        return wants

    def steps_an_epoch(self, setup: Setup) -> int:
        """Batches that an average client has."""
        if setup.scale.name == "smoke":
            return 2
        images, clients = 0.8 * 9991, 40  # PACS, 80 % of it in training
        return round(images / clients / int(setup.bed(setup.scale.collapse).train["batch"]))

    def section(self, setup: Setup, found: Found) -> Section:
        """One table; the claims are about the gap between personalized and global accuracy."""
        bed = setup.scale.collapse
        runs = found.by_name(self.wants(setup), bed)
        rows, gaps, scores = {}, {}, {}
        for name, beside in paper.COMMUNICATION.items():
            pairs = [(row.last, row.last_global) for run in runs.get(name, []) if (row := run.row(HOW, SIZE))]
            if pairs:
                own, general = zip(*pairs, strict=True)
                folder = runs[name][0].folder
                rows[name] = [measured(own, folder), number(beside[0]), measured(general, folder), number(beside[1])]
                scores[name], gaps[name] = float(np.mean(own)), float(np.mean(own) - np.mean(general))
        columns = ["personalized", PAPER, "global", PAPER]
        grid = table(f"{title(setup, bed)}: clients that took part, in %", columns, rows)
        text = [another_scale(setup, bed, "pacs")]
        if len(scores) == 2:
            often, seldom = (scores[name] for name in paper.COMMUNICATION)
            evidence = f"{percent(often)} after every step, {percent(seldom)} every 5 epochs"
            text.append(claim("limited communication costs personalized accuracy", above(often, seldom), evidence))
            wide, narrow = (gaps[name] for name in paper.COMMUNICATION)
            evidence = f"personalized minus global: {percent(wide)} and {percent(narrow)} points"
            text.append(
                claim(
                    "models hardly differ between clients when communication is limited", above(wide, narrow), evidence
                )
            )
        return Section(self.name, self.title, text, [grid])


def _within(outcome: Outcome, what: str) -> drawing.Curve:
    lines = outcome.extra(TRACE)
    return [line["step"] for line in lines], [line[what] for line in lines]


def _along(outcome: Outcome, what: str) -> drawing.Curve:
    lines = [line for line in outcome.lines if what in line]
    values = [
        line[what]["network"] if what == "cosine" else float(np.mean(list(line[what].values()))) for line in lines
    ]
    return [line["round"] for line in lines], values
