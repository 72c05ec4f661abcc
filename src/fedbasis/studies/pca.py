"""Figure E: can personal models be summed up by a few principal components? And by four centroids?

Forty clients train FedAvg; PCA sums up their last local models. A client fine-tunes the mean model and what is left of
it in the span of the first k components is scored, for every k. The paper instead sums up the fine-tuned models
themselves, of which all components together lose nothing; here even they lose something, since a client that
fine-tunes anew also moves out of their span. So the loss of few components is measured against all of them.
"""

from dataclasses import replace
from typing import Any, ClassVar

from fedbasis.engines.in_process import InProcess
from fedbasis.experiment import Prepared
from fedbasis.methods.pca_k import PCAK, PCAConfig
from fedbasis.report.chapter import Chapter
from fedbasis.report.runs import NUMBER, RunData
from fedbasis.serving import artifact
from fedbasis.serving.evaluation import EvaluationPlan, evaluate, summarize
from fedbasis.studies import drawing, paper
from fedbasis.studies.base import Results, RunRequest, Setup, Study
from fedbasis.studies.collapse import SIZE, random_request
from fedbasis.studies.grids import above, claim, number, table, title
from fedbasis.training.runs import Run, append_line, read_lines, rewrite_lines

COMPONENTS = "components.jsonl"
FIELDS = {"components": int, "last": NUMBER}
TUNED, CENTROIDS = "fine-tuned, as it is", "4 centroids"
ANOTHER = (
    f"The paper sums up the fine-tuned models themselves: four components lose {paper.PCA_DROP} points, four centroids "
    f"{paper.KMEANS_DROP}. Here the last round's local models are summed up and a client that fine-tunes anew is "
    "projected onto them: another quantity, not to be compared with those numbers."
)


def components(prepared: Prepared, run: Run) -> None:
    """Score the first k components of a finished run for k = 1, 2, 4 ... and all; a line for each."""
    path, method, e = run.folder / COMPONENTS, prepared.method, prepared.experiment
    done = read_lines(path)
    rewrite_lines(path, done)
    _, server = artifact.load(run.bases, "bases", trust=True)
    adapt = replace(e.personalize.adaptation(), validate_every=e.personalize.epochs)
    plan = EvaluationPlan(ways=("projection",), sizes=prepared.sizes, rates=e.personalize.rates[:1], adaptation=adapt)
    whole = method.config.components
    for k in [2**i for i in range(whole.bit_length()) if 2**i < whole] + [whole]:
        if k in [line["components"] for line in done]:
            continue
        fewer = PCAK.build(PCAConfig(components=k), method.task)
        state = {group: t for group, t in server.items() if not _beyond(group, k)}
        (row,) = summarize(PCAK, evaluate(InProcess(fewer), state, prepared.served, plan, e.seed), prepared.served)
        append_line(path, {"components": k, "last": row.last})


def _beyond(group: str, count: int) -> bool:
    prefix, _, place = group.rpartition("_")
    return prefix == "component" and int(place) >= count


POST_STEP = f"{__name__}:{components.__name__}"


class PCA(Study):
    """Accuracy against the number of components, and with four centroids."""

    name: ClassVar[str] = "pca"
    aliases: ClassVar[tuple[str, ...]] = ("figure-e",)
    title: ClassVar[str] = "Personal models summed up by principal components or centroids"

    def requests(self, setup: Setup) -> list[RunRequest]:
        """One run of each kind, by the first seed."""
        seed, rate = setup.seeds[0], setup.testbed(setup.scale.collapse).personalize["rates"][0]
        ways = {"pca-k": ["ft"], "kmeans-k": ["centroid"]}
        settings: dict[str, dict[str, Any]] = {
            "pca-k": {"components": setup.scale.components}, "kmeans-k": {"centroids": 4}
        }  # fmt: skip
        return [
            random_request(
                setup, name, name, seed, settings[name], post_step=POST_STEP if name == "pca-k" else "",
                personalize={"ways": ways[name], "rates": [rate]},
            )
            for name in ways
        ]  # fmt: skip

    def chapter(self, setup: Setup, found: Results) -> Chapter:
        """One figure, one table, two claims."""
        testbed = setup.scale.collapse
        runs = {name: mine[0] for name, mine in found.by_name(self.requests(setup), testbed).items()}
        scores = _scores(runs)
        whole = scores.get(_named(setup.scale.components))
        rows = {
            name: [number(share), number(None if whole is None or name == TUNED else whole - share)]
            for name, share in scores.items()
        }
        columns = ["accuracy", "points below all components"]
        grid = table(f"{title(setup, testbed)}: clients that took part, in %", columns, rows)
        text, figures = [ANOTHER], []
        if TUNED in scores and "pca-k" in runs:
            lines = runs["pca-k"].extra(COMPONENTS, FIELDS)
            x = [line["components"] for line in lines]
            curve = {
                "top k components": (x, [100 * line["last"] for line in lines]), TUNED: (x, [scores[TUNED]] * len(x))
            }  # fmt: skip
            caption = f"{title(setup, testbed)}: accuracy against the number of components"
            figures = [drawing.curves("pca", caption, curve, "components", "accuracy (%)")]
        for name in ("4 components", CENTROIDS):
            if name in scores and whole is not None:
                evidence = f"{scores[name]:.1f}, all {setup.scale.components} components {whole:.1f}"
                text.append(claim(f"{name} are not enough", above(whole, scores[name], 0.5), evidence))
        return Chapter(self.name, self.title, text, [grid], figures)


def _scores(runs: dict[str, RunData]) -> dict[str, float]:
    scores: dict[str, float] = {}
    if "pca-k" in runs:
        row = runs["pca-k"].row("ft", SIZE)
        if row is not None:
            scores[TUNED] = 100 * row.last
        for line in runs["pca-k"].extra(COMPONENTS, FIELDS):
            scores[_named(line["components"])] = 100 * line["last"]
    if "kmeans-k" in runs and (row := runs["kmeans-k"].row("centroid", SIZE)) is not None:
        scores[CENTROIDS] = 100 * row.last
    return scores


def _named(count: int) -> str:
    return f"{count} component{'s' * (count > 1)}"
