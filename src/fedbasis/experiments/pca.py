"""Figure E: can fine-tuned models be summed up by a few principal components? And by four centroids?

Forty clients train FedAvg; PCA sums up their last local models. A client fine-tunes the mean model and what is left of
it in the span of the first k components is scored, for every k.
"""

from typing import Any, ClassVar

from fedbasis import artifact
from fedbasis.algorithms import METHODS
from fedbasis.algorithms.base import Adaptation
from fedbasis.algorithms.pca_k import PCAConfig
from fedbasis.engines.serial import Here
from fedbasis.evaluation import Plan, evaluate, summarize
from fedbasis.experiment import Prepared
from fedbasis.experiments import drawing, paper
from fedbasis.experiments.base import Found, Setup, Study, Want
from fedbasis.experiments.collapse import SIZE, random_want
from fedbasis.experiments.grids import claim, number, table, title
from fedbasis.experiments.outcome import Outcome
from fedbasis.report.section import Section
from fedbasis.runs import Run, append_line, read_lines, rewrite_lines

COMPONENTS = "components.jsonl"


def components(prepared: Prepared, run: Run) -> None:
    """Score the first k components of a finished run for k = 1, 2, 4 ... and all; a line for each."""
    path, method, e = run.folder / COMPONENTS, prepared.method, prepared.experiment
    done = read_lines(path)
    rewrite_lines(path, done)
    _, server = artifact.load(run.bases, "bases", trust=True)
    adapt = Adaptation(e.personalize.epochs, e.personalize.rates[0], e.personalize.decay, e.personalize.momentum,
                       e.personalize.batch, validate_every=e.personalize.epochs)  # fmt: skip
    plan = Plan(("projection",), prepared.sizes, e.personalize.rates[:1], adapt)
    whole = method.config.components
    for k in [2**i for i in range(whole.bit_length()) if 2**i < whole] + [whole]:
        if k in [line["components"] for line in done]:
            continue
        fewer = METHODS["pca-k"](PCAConfig(components=k), method.task)
        state = {group: t for group, t in server.items() if not _beyond(group, k)}
        (row,) = summarize("pca-k", evaluate(Here(fewer), state, prepared.served, plan, e.seed), prepared.served)
        append_line(path, {"components": k, "last": row.last})


def _beyond(group: str, count: int) -> bool:
    prefix, _, place = group.rpartition("_")
    return prefix == "component" and int(place) >= count


AFTER = f"{__name__}:{components.__name__}"


class PCA(Study):
    """Accuracy against the number of components; four centroids beside it."""

    name: ClassVar[str] = "pca"
    aliases: ClassVar[tuple[str, ...]] = ("figure-e",)
    title: ClassVar[str] = "Fine-tuned models summed up by principal components or centroids"

    def wants(self, setup: Setup) -> list[Want]:
        """One run of each kind, by the first seed."""
        seed, rate = setup.seeds[0], setup.bed(setup.scale.collapse).personalize["rates"][0]
        ways = {"pca-k": ["ft"], "kmeans-k": ["centroid"]}
        settings: dict[str, dict[str, Any]] = {
            "pca-k": {"components": setup.scale.components}, "kmeans-k": {"centroids": 4}
        }  # fmt: skip
        return [
            random_want(
                setup, name, name, seed, settings[name], after=AFTER if name == "pca-k" else "",
                personalize={"ways": ways[name], "rates": [rate]},
            )
            for name in ways
        ]  # fmt: skip

    def section(self, setup: Setup, found: Found) -> Section:
        """One figure, one table, two claims."""
        bed = setup.scale.collapse
        runs = {name: mine[0] for name, mine in found.by_name(self.wants(setup), bed).items()}
        scores = _scores(runs)
        tuned = scores.get("fine-tuned, as it is")
        rows = {
            name: [number(share), number(None if tuned is None else tuned - share)] for name, share in scores.items()
        }
        grid = table(f"{title(setup, bed)}: clients that took part, in %", ["accuracy", "points lost"], rows)
        text, figures = [], []
        if tuned is not None and "pca-k" in runs:
            lines = runs["pca-k"].extra(COMPONENTS)
            x = [line["components"] for line in lines]
            curve = {
                "top k components": (x, [100 * line["last"] for line in lines]),
                "fine-tuned, as it is": (x, [tuned] * len(x)),
            }
            caption = f"{title(setup, bed)}: accuracy against the number of components"
            figures = [drawing.curves("pca", caption, curve, "components", "accuracy (%)")]
        claims = {"4 components": ("components", paper.PCA_DROP), "4 centroids": ("centroids", paper.KMEANS_DROP)}
        for name, (kind, drop) in claims.items():
            if name in scores and tuned is not None:
                lost = tuned - scores[name]
                evidence = f"{lost:.1f} points lost here, {drop} in the paper"
                text.append(claim(f"four {kind} lose much of the fine-tuned accuracy", lost > 5, evidence))
        return Section(self.name, self.title, text, [grid], figures)


def _scores(runs: dict[str, Outcome]) -> dict[str, float]:
    scores: dict[str, float] = {}
    if "pca-k" in runs:
        row = runs["pca-k"].row("ft", SIZE)
        if row is not None:
            scores["fine-tuned, as it is"] = 100 * row.last
        for line in runs["pca-k"].extra(COMPONENTS):
            scores[f"{line['components']} component{'s' * (line['components'] > 1)}"] = 100 * line["last"]
    if "kmeans-k" in runs and (row := runs["kmeans-k"].row("centroid", SIZE)) is not None:
        scores["4 centroids"] = 100 * row.last
    return scores
