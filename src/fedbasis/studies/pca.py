"""Figure E: can personal models be summed up by a few principal components? And by four centroids?

Forty clients train FedAvg. Two quantities are measured. The paper's: every client fine-tunes the trained model on its
images, and the forty personal models are replaced by their projections onto their own top k components, or by the
centroids of their clusters; all components together lose nothing. And that of a method which must serve new clients:
the last round's local models are summed up, and a client that fine-tunes anew is projected onto them; even all
components lose something, since it also moves out of their span.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbasis.engines.choice import device_of
from fedbasis.engines.in_process import InProcess
from fedbasis.experiment import Prepared
from fedbasis.methods.base import Context
from fedbasis.methods.kmeans_k import KMeansConfig, KMeansK
from fedbasis.methods.pca_k import PCAK, PCAConfig
from fedbasis.networks.inputs import examples_of
from fedbasis.report.chapter import Chapter, ReportFigure
from fedbasis.report.runs import NUMBER, RunData
from fedbasis.report.tables import Cell, Grid
from fedbasis.serving import artifact
from fedbasis.serving.evaluation import EvaluationPlan, evaluate, summarize
from fedbasis.serving.personalize import personalize
from fedbasis.studies import drawing, paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.collapse import SIZE, random_request
from fedbasis.studies.grids import PAPER, number, title
from fedbasis.studies.verdicts import PAIRS, PairScores, higher, last
from fedbasis.tensors.params import Tensors
from fedbasis.training.runs import Run, append_line, read_lines, rewrite_lines
from pflbed import Client, weighted_accuracy

COMPONENTS, SUMMARIES = "components.jsonl", "summaries.jsonl"
FIELDS: Mapping[str, Any] = {"components": int, "last": NUMBER, "per_client": dict}
SUMMARY: Mapping[str, Any] = {"summary": str, "count": int, "per_client": dict}
CENTROID_COUNT = 4
TUNED, CENTROIDS = "fine-tuned, as it is", f"{CENTROID_COUNT} centroids"
FINE_TUNE = "ft@own"
PAPERS = (
    "The paper's quantity: every client fine-tunes the trained model, and the parameters of the forty personal models "
    "are projected onto their own top k principal components, or replaced by the centroids of their clusters; a client "
    "keeps its normalization statistics. The paper's common model is trained by SGD on all images, here by FedAvg."
)
ANOTHER = (
    "A new client cannot be among the models that are summed up. The second table sums up the last round's local "
    "models and projects a client that fine-tunes anew onto them: another quantity than the paper's."
)


def counts(whole: int) -> list[int]:
    """Return the numbers of components: 1, 2, 4 ... and all."""
    return [2**i for i in range(whole.bit_length()) if 2**i < whole] + [whole]


def components(prepared: Prepared, run: Run) -> None:
    """Score the first k components of a finished run for k = 1, 2, 4 ... and all; a line for each."""
    path, method, e = run.folder / COMPONENTS, prepared.method, prepared.experiment
    done = [line for line in read_lines(path) if "per_client" in line]
    rewrite_lines(path, done)
    _, server = artifact.load(run.bases, "bases", trust=True)
    adapt = replace(e.personalize.adaptation(), validate_every=e.personalize.epochs)
    plan = EvaluationPlan(ways=("projection",), sizes=prepared.sizes, rates=e.personalize.rates[:1], adaptation=adapt)
    device = device_of(e.machine.device)
    for k in counts(method.config.components):
        if k in [line["components"] for line in done]:
            continue
        fewer = PCAK.build(PCAConfig(components=k), method.task)
        state = {group: t for group, t in server.items() if not _beyond(group, k)}
        records = evaluate(InProcess(fewer, device), state, prepared.served, plan, e.seed)
        (row,) = summarize(PCAK, records, prepared.served)
        append_line(path, {"components": k, "last": row.last, "per_client": dict(row.per_client)})


def _beyond(group: str, count: int) -> bool:
    prefix, _, place = group.rpartition("_")
    return prefix == "component" and int(place) >= count


def summaries(prepared: Prepared, run: Run) -> None:
    """Fine-tune every client, and score its model summed up by components and centroids of all; a line for each."""
    path, e = run.folder / SUMMARIES, prepared.experiment
    wanted = [("components", k) for k in counts(prepared.method.config.components)] + [("centroids", CENTROID_COUNT)]
    done = read_lines(path)
    if [(line["summary"], line["count"]) for line in done] == wanted:
        return
    method, clients = prepared.method, prepared.served
    assert isinstance(method, PCAK)
    _, server = artifact.load(run.bases, "bases", trust=True)
    working = method.task.network.workspace(device_of(e.machine.device))
    adapt = replace(e.personalize.adaptation(), rate=e.personalize.rates[0])
    models: list[Tensors] = []
    for name, client in clients.items():
        data = examples_of(client.sized(prepared.sizes[-1]))
        models.append(personalize(method, server, FINE_TUNE, data, Context(e.seed, name, working), adapt).last.tensors)
    weights = torch.ones(len(models), dtype=torch.float64)
    gram = method.gram(models, weights)
    kmeans = KMeansK.build(KMeansConfig(centroids=CENTROID_COUNT), method.task)
    names = [entry.name for entry in method.task.layout.select(True)]
    lines = []
    for what, count in wanted:
        mixing = projector(gram, count) if what == "components" else same_cluster(kmeans.cluster(gram, weights, e.seed))
        scores = {}
        for row, own, client in zip(mixed(models, names, mixing), models, clients.values(), strict=True):
            working.load({**own, **row})
            scores[client.id] = _accuracy(prepared, working, client)
        lines.append({"summary": what, "count": count, "per_client": scores})
    rewrite_lines(path, lines)


def projector(gram: Tensor, count: int) -> Tensor:
    """Return the matrix that maps M models to their projections onto their mean and top components.

    ``gram`` is that of the deviations D from the mean, D D^T = V L V^T. The projections of the deviations are
    V_k V_k^T D, so the models' are (V_k V_k^T (I - J) + J) times the models, where J takes their mean.
    """
    _, vectors = torch.linalg.eigh(gram)
    top = vectors[:, -count:]
    mean = torch.full_like(gram, 1 / len(gram))
    found: Tensor = top @ top.t() @ (torch.eye(len(gram), dtype=gram.dtype) - mean) + mean
    return found


def same_cluster(labels: Sequence[int]) -> Tensor:
    """Return the matrix that maps M models to the centroids of their clusters."""
    of = torch.tensor(labels)
    same = (of[:, None] == of[None, :]).double()
    return same / same.sum(1, keepdim=True)


def mixed(models: Sequence[Tensors], names: Sequence[str], mixing: Tensor) -> list[Tensors]:
    """Return linear combinations of models: their rows of ``mixing``, tensor by tensor."""
    found: list[Tensors] = [{} for _ in mixing]
    for name in names:
        stacked = torch.stack([model[name].flatten().double() for model in models])
        for mine, flat in zip(found, mixing @ stacked, strict=True):
            mine[name] = flat.to(models[0][name].dtype).view(models[0][name].shape)
    return found


def _accuracy(prepared: Prepared, working: Any, client: Client) -> float:
    chances = prepared.method.serving.probabilities(working, {}, torch.from_numpy(client.test.pixels))
    return float(weighted_accuracy(chances.argmax(1).cpu().numpy(), client.test.labels, client.test_weights))


POST_STEPS = f"{__name__}:{components.__name__},{__name__}:{summaries.__name__}"


class PCA(Study):
    """Accuracy against the number of components, and with four centroids."""

    name: ClassVar[str] = "pca"
    aliases: ClassVar[tuple[str, ...]] = ("figure-e",)
    title: ClassVar[str] = "Personal models summed up by principal components or centroids"

    def requests(self, setup: Setup) -> list[RunRequest]:
        """One run of each kind, by the first seed."""
        seed, rate = setup.seeds[0], setup.testbed(setup.scale.collapse).personalize["rates"][0]
        ways = {"pca-k": [FINE_TUNE], "kmeans-k": ["centroid"]}
        settings: dict[str, dict[str, Any]] = {
            "pca-k": {"components": setup.scale.components}, "kmeans-k": {"centroids": CENTROID_COUNT}
        }  # fmt: skip
        return [
            random_request(
                setup, name, name, seed, settings[name], post_step=POST_STEPS if name == "pca-k" else "",
                personalize={"ways": ways[name], "rates": [rate]},
            )
            for name in ways
        ]  # fmt: skip

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """A table, a figure and two claims for each quantity."""
        testbed = setup.scale.collapse
        runs = {name: mine[0] for name, mine in found.by_name(self.requests(setup), testbed).items()}
        text, tables, figures = list[str](), list[Grid](), list[ReportFigure]()
        dropped = {_named(4): paper.PCA_DROP, CENTROIDS: paper.KMEANS_DROP}
        everything = _named(setup.scale.components)
        for name, said, caption, scores, whole in (
            ("", PAPERS, "the fine-tuned models themselves summed up", _summed(runs), TUNED),
            ("projected", ANOTHER, "clients projected onto the last round's models", _projected(runs), everything),
        ):
            text.append(said)
            columns = ["accuracy", f"points below {whole}", *([f"{PAPER} points"] if not name else [])]
            rows = []
            for row, mine in scores.items():
                below = _mean(scores[whole]) - _mean(mine) if whole in scores and row not in (whole, TUNED) else None
                cells = [number(_mean(mine)), number(below), *([number(dropped.get(row))] if not name else [])]
                rows.append((Cell(row), cells))
            where = f"{title(setup, testbed)}, clients that took part, in %: {caption}"
            tables.append(Grid(where, [("", len(columns))], columns, rows, name=name))
            along = [row for row in scores if row.endswith(("component", "components"))]
            if along:
                x = [int(row.partition(" ")[0]) for row in along]
                curve = {"top k components": (x, [_mean(scores[row]) for row in along])}
                if TUNED in scores:
                    curve[TUNED] = (x, [_mean(scores[TUNED])] * len(x))
                drawing_name = f"pca-{name}" if name else "pca"
                figures.append(drawing.curves(drawing_name, where, curve, "components", "accuracy (%)"))
            for row in (_named(4), CENTROIDS):
                ours, theirs = (whole, scores.get(whole, {})), (row, scores.get(row, {}))
                text += higher(f"{row} are not enough: {caption}", ours, theirs)
        return Chapter(self.name, self.title, [*text, PAIRS], tables, figures)


def _summed(runs: Mapping[str, RunData]) -> dict[str, PairScores]:
    """Return the scores of the paper's quantity by row."""
    if "pca-k" not in runs:
        return {}
    run = runs["pca-k"]
    scores: dict[str, PairScores] = {TUNED: last([run], FINE_TUNE, SIZE)}
    for line in run.extra(SUMMARIES, SUMMARY):
        row = CENTROIDS if line["summary"] == "centroids" else _named(line["count"])
        scores[row] = _by_pair(run, line)
    return {row: mine for row, mine in scores.items() if mine}


def _projected(runs: Mapping[str, RunData]) -> dict[str, PairScores]:
    """Return the scores of clients that are projected onto the last round's models by row."""
    scores: dict[str, PairScores] = {}
    if "pca-k" in runs:
        run = runs["pca-k"]
        scores[TUNED] = last([run], FINE_TUNE, SIZE)
        scores |= {_named(line["components"]): _by_pair(run, line) for line in run.extra(COMPONENTS, FIELDS)}
    if "kmeans-k" in runs:
        scores[CENTROIDS] = last([runs["kmeans-k"]], "centroid", SIZE)
    return {row: mine for row, mine in scores.items() if mine}


def _by_pair(run: RunData, line: Mapping[str, Any]) -> PairScores:
    return {(run.seed, client): float(score) for client, score in line["per_client"].items()}


def _mean(scores: PairScores) -> float:
    return 100 * fmean(scores.values())


def _named(count: int) -> str:
    return f"{count} component{'s' * (count > 1)}"
