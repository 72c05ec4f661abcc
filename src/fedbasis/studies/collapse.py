"""Figure 2 and table A: bases that are trained together with their coefficients collapse into one model.

Forty clients, four bases, each a network of its own that starts at random. Trained jointly (equations 5 and 6) the
bases grow alike and the coefficients even, unless clients communicate after every step; coordinate descent with
sharpening works against it. Both arms are the printed algorithm in everything else: SGD on psi, the plain mean of the
bases, one rate for every basis.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from fedbasis.experiment import Prepared
from fedbasis.methods.base import Context
from fedbasis.networks.inputs import examples_of
from fedbasis.report.chapter import Chapter, ReportFigure
from fedbasis.report.runs import NUMBER, RunData
from fedbasis.studies import drawing, paper
from fedbasis.studies.base import NO_WEIGHTS, Results, RunRequest, Setup, Study
from fedbasis.studies.grids import PAPER, another_scale, measured, number, table, title
from fedbasis.studies.variants import PRINTED, variant
from fedbasis.studies.verdicts import PAIRS, PairScores, by_margin, higher, last
from fedbasis.training.runs import Run, read_lines, rewrite_lines

TRACE = "trace.jsonl"
COSINE, ENTROPY = "cosine", "plain_entropy"
"""Entropy is always that of softmax(psi): a sharpened softmax has less of it, whatever the coefficients learned."""
STEP = {"step": int, COSINE: NUMBER, ENTROPY: NUMBER}
JOINT: Mapping[str, Any] = {
    **variant(PRINTED).settings, "bases": 4, "init": "random", "warm_start": 0.0, "major": False, "tau": 1.0,
    "coordinate_descent": False, "upload": "full",
}  # fmt: skip
APART: Mapping[str, Any] = {**JOINT, "coordinate_descent": True, "tau": 0.1}
NAMES = {"joint": "trained together", "apart": "coordinate descent"}
HOW, SIZE = "coefficients@frozen", "M"
"""With the statistics of the bases: what is compared is what training made of the bases, and nothing is chosen."""
OFTEN = "every step"
MARGIN = 0.005
"""Cosines and entropies that differ by less are called equal."""
ALGORITHM = (
    "The algorithm is the printed one: SGD on ψ at the local learning rate, the plain mean of the bases, one rate for "
    "every basis; the bases start at random, without a warm start or a major basis."
)


def random_request(
    setup: Setup, name: str, method: str, seed: int, settings: Mapping[str, Any], **more: Any
) -> RunRequest:
    """Plan one of the runs on forty clients, from random weights; ``more`` as in ``Setup.request``.

    Local training and the coefficients have the scale's own rate: what was tuned for other tables does not count here.
    """
    data = {"new_clients": 0, "split": [80, 0, 5, 15]} | ({"clients": 10} if setup.scale.name != "smoke" else {})
    scale, serve = setup.scale, {"whom": "participating", **more.pop("personalize", {})}
    train = {"rounds": scale.random_epochs // scale.random_round, "epochs": scale.random_round, **more.pop("train", {})}
    if method == "fedbasis":
        settings = {**settings, "coefficient_rate": scale.testbeds[scale.collapse].train["rate"]}
    return replace(setup, tuned=False).request(
        scale.collapse, method, seed, name, data=data, model=NO_WEIGHTS, train=train, personalize=serve,
        settings=settings, **more
    )  # fmt: skip


def trace(prepared: Prepared, run: Run) -> None:
    """Log the cosine of the bases and the entropy of the coefficients at every step of one client's first round."""
    if any(ENTROPY in line for line in read_lines(run.folder / TRACE)):
        return
    method, name = prepared.method, prepared.benchmark.participating[0]
    lines: list[dict[str, Any]] = []

    def watch(numbers: Mapping[str, float]) -> None:
        lines.append({"step": len(lines) + 1, **numbers})

    server = method.init(prepared.experiment.seed)
    context = Context(prepared.experiment.seed, name, method.task.network.workspace(), watch=watch)
    method.client_update(method.broadcast(server, name), None, examples_of(prepared.clients[name].train), context)
    rewrite_lines(run.folder / TRACE, lines)


POST_STEP = f"{__name__}:{trace.__name__}"


class Collapse(Study):
    """Within a round, and along the rounds."""

    name: ClassVar[str] = "collapse"
    aliases: ClassVar[tuple[str, ...]] = ("figure-2",)
    title: ClassVar[str] = "Bases collapse when they are trained together with their coefficients"

    def requests(self, setup: Setup) -> list[RunRequest]:
        """Joint training and coordinate descent, by the first seed."""
        settings = {"joint": JOINT, "apart": APART}
        return [
            random_request(
                setup, name, "fedbasis", setup.seeds[0], mine, personalize=_serve(setup), post_step=POST_STEP
            )
            for name, mine in settings.items()
        ]

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """Four figures and a claim for each pair."""
        testbed = setup.scale.collapse
        runs = {name: mine[0] for name, mine in found.by_name(self.requests(setup), testbed).items()}
        figures: list[ReportFigure] = []
        text = [
            f"{title(setup, testbed)}; clients communicate {_interval(setup)}. The paper shows curves and no numbers: "
            "cosine and entropy rise within a round and along the rounds of joint training. The entropy is that of "
            "softmax(ψ) for both, before coordinate descent sharpens it.",
            f"{ALGORITHM} Coordinate descent sharpens with τ = {APART['tau']:g}; joint training does not.",
        ]
        for key, what, unit in (
            (COSINE, "cosine", "mean pairwise cosine of the bases"),
            (ENTROPY, "entropy", "mean entropy of softmax(ψ), in nats"),
        ):
            within = {name: _curve(run.extra(TRACE, STEP), "step", key) for name, run in runs.items()}
            along = {name: _curve(run.lines, "round", key) for name, run in runs.items()}
            for where, caption, curves, axis in (
                ("within a round", "Within one client's first round", within, "step"),
                ("along the rounds", "Along the rounds", along, "round"),
            ):
                if any(x for x, _ in curves.values()):
                    lines = {NAMES[name]: curve for name, curve in curves.items()}
                    figures.append(
                        drawing.curves(f"collapse-{what}-{axis}", f"{caption}: {unit}", lines, f"{axis}s", unit)
                    )
                text += _rises(f"joint training raises the {what} {where}", curves.get("joint", ((), ()))[1])
            text += _ends_lower(what, *(along.get(name, ((), ()))[1] for name in NAMES))
        return Chapter(self.name, self.title, text, figures=figures)


NEAR = (
    "Networks start at random: where the global accuracy is near that of chance, which is one over the number of "
    "classes, they learned too little for the verdicts to say much."
)


class Communication(Study):
    """Table A: aggregating after every step keeps joint training from collapsing."""

    name: ClassVar[str] = "communication"
    aliases: ClassVar[tuple[str, ...]] = ("table-a",)
    title: ClassVar[str] = "Joint training with unlimited and with limited communication"

    def requests(self, setup: Setup) -> list[RunRequest]:
        """The run of figure 2, and one that sends after every step for as many epochs in all."""
        serve, requests = _serve(setup), []
        for seed in setup.seeds:
            seldom = random_request(
                setup, _interval(setup), "fedbasis", seed, JOINT, personalize=serve, post_step=POST_STEP
            )
            steps = {"rounds": setup.scale.random_epochs * self.steps_an_epoch(setup), "epochs": 1}
            often = {**JOINT, "communicate_every": "step"}
            requests += [seldom, random_request(setup, OFTEN, "fedbasis", seed, often, personalize=serve, train=steps)]
        return requests

    def steps_an_epoch(self, setup: Setup) -> int:
        """Batches that an average client has."""
        if setup.scale.name == "smoke":
            return 2
        images, clients = 0.8 * 9991, 40  # PACS, 80 % of it in training
        return round(images / clients / int(setup.testbed(setup.scale.collapse).train["batch"]))

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """One table; the claims are about the gap between personalized and global accuracy."""
        testbed = setup.scale.collapse
        runs = found.by_name(self.requests(setup), testbed)
        rows, gaps, scores = {}, dict[str, PairScores](), dict[str, PairScores]()
        names = OFTEN, _interval(setup)
        for name, printed in zip(names, paper.COMMUNICATION, strict=True):
            pairs = [(row.last, row.last_global) for run in runs.get(name, []) if (row := run.row(HOW, SIZE))]
            if pairs:
                own, general = zip(*pairs, strict=True)
                folder = runs[name][0].folder
                rows[name] = [measured(own, folder), number(printed[0]), measured(general, folder), number(printed[1])]
                scores[name], gaps[name] = last(runs[name], HOW, SIZE), _gaps(runs[name])
        columns = ["personalized", PAPER, "global", PAPER]
        grid = table(f"{title(setup, testbed)}: clients that took part, in %", columns, rows)
        text = [f"{another_scale(setup, testbed, 'pacs')} There, limited is every 5 epochs.", ALGORITHM, NEAR, PAIRS]
        if len(scores) == 2:
            often, seldom = ((name, scores[name]) for name in names)
            text += higher("limited communication costs personalized accuracy", often, seldom)
            wide, narrow = ((f"personalized minus global {name}", gaps[name]) for name in names)
            text += higher("models differ less between clients when communication is limited", wide, narrow)
        return Chapter(self.name, self.title, text, [grid])


def _serve(setup: Setup) -> dict[str, Any]:
    """Clients learn coefficients at the rate of training."""
    return {"ways": [HOW], "rates": [setup.testbed(setup.scale.collapse).train["rate"]]}


def _gaps(runs: Sequence[RunData]) -> PairScores:
    """Return every client's personalized minus its global accuracy."""
    general = {(run.seed, client): score for run in runs for client, score in run.global_scores(HOW, SIZE).items()}
    return {pair: score - general[pair] for pair, score in last(runs, HOW, SIZE).items()}


def _interval(setup: Setup) -> str:
    epochs = setup.scale.random_round
    return f"every {epochs} epochs" if epochs > 1 else "every epoch"


def _curve(lines: Sequence[Mapping[str, Any]], axis: str, key: str) -> drawing.Curve:
    """Return one field over steps or rounds; of a round's cosines that of the whole network."""
    known = [line for line in lines if key in line]
    values = [line[key]["network"] if isinstance(line[key], Mapping) else line[key] for line in known]
    return [line[axis] for line in known], values


def _rises(text: str, curve: Sequence[float]) -> list[str]:
    if not curve:
        return []
    return [by_margin(text, curve[-1], curve[0], MARGIN, f"from {curve[0]:.4f} to {curve[-1]:.4f}")]


def _ends_lower(what: str, together: Sequence[float], apart: Sequence[float]) -> list[str]:
    if not together or not apart:
        return []
    evidence = f"{what} {together[-1]:.4f} together, {apart[-1]:.4f} by coordinate descent, after the last round"
    return [by_margin(f"coordinate descent ends with a lower {what}", together[-1], apart[-1], MARGIN, evidence)]
