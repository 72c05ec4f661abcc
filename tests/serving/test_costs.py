"""Counts of what a new client learns and downloads, against the numbers that really change and the files on disk."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from battery import PLAN, QUICK, make, trained_few, workspace_of
from fedbasis.methods.base import Context, Method
from fedbasis.methods.fedbasis import PSI, coefficients
from fedbasis.networks.inputs import Examples
from fedbasis.serving.costs import LearnedNumbers, download_bytes, learned_numbers
from fedbasis.serving.personalize import Fitted, personalize
from fedbasis.tensors.files import read_header, write_tensors
from fedbasis.tensors.params import State, Tensors
from shapes import shapes_examples

IMAGES = 12


def published(variant: str) -> tuple[Method, State]:
    method = make(variant, QUICK)
    return method, method.serving.published(trained_few(variant, QUICK)[0])


def fitted(method: Method, server: State, how: str) -> Fitted:
    """Personalize a client whose classes are of different sizes."""
    drawn = shapes_examples(30)
    rows = torch.cat([torch.nonzero(drawn.labels == label)[: 3 + label, 0] for label in range(3)])
    data = Examples(drawn.pixels[rows], drawn.labels[rows])
    assert len(data) == IMAGES
    return personalize(method, server, how, data, Context(7, "new", workspace_of("batch")), PLAN).last


def changed(before: Tensors, after: Tensors) -> dict[str, int]:
    """Count the numbers of every tensor that differ."""
    counts = {name: int((before[name] != tensor).sum()) for name, tensor in after.items()}
    return {name: count for name, count in counts.items() if count}


def counted(differing: dict[str, int], besides: int = 0) -> LearnedNumbers:
    """Sort counts of differing numbers into trained ones and statistics."""
    statistics = sum(count for name, count in differing.items() if ".running_" in name)
    return LearnedNumbers(sum(differing.values()) - statistics + besides, 0, statistics)


@pytest.mark.parametrize("how", ["none", "none@own", "prior", "lp@frozen", "lp@own", "bn@frozen", "bn", "ft@frozen",
                                 "ft", "ft-prox@shrunk", "prior+lp", "prior+bn@frozen"])  # fmt: skip
@pytest.mark.parametrize("variant", ["fedavg", "fedbasis"])
def test_what_is_learned_is_what_differs_from_the_servers_model(variant: str, how: str) -> None:
    method, server = published(variant)
    found = learned_numbers(method, how)
    real = counted(changed(method.model(server), fitted(method, server, how).tensors))
    assert found is not None
    assert real.trained == pytest.approx(found.trained, rel=1e-3)  # some number may move and come back
    assert real.statistics == found.statistics


@pytest.mark.parametrize("how", ["coefficients@frozen", "coefficients+classifier@frozen", "prior+coefficients@frozen"])
def test_fedbasis_learns_coefficients_and_what_differs_from_their_combination(how: str) -> None:
    method, server = published("fedbasis")
    mine = fitted(method, server, how)
    psi, bases = mine.learned[PSI], method.bases(server)  # type: ignore[attr-defined]
    combined = bases.merge(coefficients.combination(coefficients.alpha(psi), bases.major))
    off = {name: tensor for name, tensor in mine.tensors.items() if not torch.allclose(tensor, combined[name])}
    assert learned_numbers(method, how) == counted(changed(combined, off), psi.numel())


def test_pfedhn_learns_an_embedding_and_what_is_trained_after_it() -> None:
    method, server = published("pfedhn")
    start = fitted(method, server, "embedding@frozen")
    size = start.learned["embedding"].numel()
    assert learned_numbers(method, "embedding") == LearnedNumbers(size)
    for how in ("embedding+lp@frozen", "embedding+ft@frozen"):
        after = fitted(method, server, how)
        assert learned_numbers(method, how) == counted(changed(start.tensors, after.tensors), size)


@pytest.mark.parametrize("variant", ["knn-per", "knn-per-tuned"])
def test_knn_stores_features_and_a_label_of_every_image(variant: str) -> None:
    method, server = published(variant)
    learned = fitted(method, server, "knn").learned
    stored = learned["features"].numel() + learned["labels"].numel()
    found = learned_numbers(method, "knn")
    assert found is not None
    assert found == LearnedNumbers(int(variant == "knn-per-tuned"), stored // IMAGES)
    whole = learned_numbers(method, "ft")
    assert whole is not None
    assert str(learned_numbers(method, "knn+ft")) == f"{whole.trained + found.trained:,} + {found.per_image:,} an " \
        f"image + {whole.statistics:,} statistics"  # fmt: skip


def test_chosen_statistics_are_counted_unless_the_way_fixes_them() -> None:
    method, _ = published("fedavg")
    own, fixed = (learned_numbers(method, how, "own") for how in ("lp", "lp@frozen"))
    assert own is not None
    assert fixed is not None
    assert (own.trained, fixed.statistics) == (fixed.trained, 0)
    assert own.statistics > 0
    assert learned_numbers(make("fedavg", QUICK, "none"), "lp", "own") == LearnedNumbers(fixed.trained)


def test_ways_that_a_method_says_nothing_of_are_not_counted() -> None:
    method, _ = published("pfedgp")
    assert [learned_numbers(method, how) for how in ("gp", "gp+ft", "client-state", "auto")] == [None] * 4


@pytest.mark.parametrize(("variant", "own"), [("fedavg", ""), ("fedbasis", "coefficients"), ("pfedhn", "embedding"),
                                              ("knn-per", "knn")])  # fmt: skip
def test_a_new_client_downloads_one_model_or_all_that_is_published(variant: str, own: str, tmp_path: Path) -> None:
    method, server = published(variant)
    write_tensors(tmp_path / "all.safetensors", server)
    write_tensors(tmp_path / "one.safetensors", {"": method.model(server)})
    header, _ = read_header(tmp_path / "all.safetensors")

    def size(name: str) -> int:
        return sum(tensor.numpy().nbytes for tensor in load_file(tmp_path / f"{name}.safetensors").values())

    for how in ("none", "lp@frozen", "prior+ft"):
        assert download_bytes(method, how, header) == size("one")
    for how in (own, f"{own}+ft", f"prior+{own}@own") if own else ():
        assert download_bytes(method, how, header) == size("all")
