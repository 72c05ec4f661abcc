"""Choosing how to personalize: every image is held out once, the recommended way wins unless the images object."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fedbasis as fb
import pflbed
from battery import QUICK, clients, make, serve, trained
from fedbasis.cli import app
from fedbasis.methods import METHODS
from fedbasis.methods.base import Adaptation, Context
from fedbasis.networks.inputs import Examples
from fedbasis.serving.automatic import AUTO, FEWEST, FOLDS, Choice, Judged, candidates, choose, folds
from fedbasis.serving.personalize import all_ways, personalize, split_way, without_prior
from pflbed.errors import InputError
from shapes import shapes_examples


def judged(**right: str) -> list[Judged]:
    """Ways from simple to complex, and for every image whether it is right (1) or wrong (0)."""
    return [Judged(way, torch.tensor([sign == "1" for sign in signs])) for way, signs in right.items()]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 40])
def test_every_image_is_held_out_once_and_classes_are_spread(count: int) -> None:
    labels = torch.arange(count) % 3
    masks = list(folds(labels, seed=5))
    assert len(masks) == min(FOLDS, count)
    assert torch.equal(torch.stack(masks).sum(0), torch.ones(count, dtype=torch.long))
    for label in range(3):
        sizes = [int((mask & (labels == label)).sum()) for mask in masks]
        assert max(sizes) - min(sizes) <= 1
    assert all(torch.equal(a, b) for a, b in zip(masks, folds(labels, seed=5), strict=True))


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ({"none": "0101", "lp": "0101", "ft": "0101"}, "ft"),  # equal: the recommended one, which is the last
        ({"none": "0000000000", "lp": "1111111111", "ft": "1111111100"}, "ft"),  # 1.5 errors below the best
        ({"none": "0000000000", "lp": "1111111111", "ft": "1111100000"}, "lp"),
        ({"none": "0000000000", "lp": "1111111110", "bn": "1111111111", "ft": "1111100000"}, "bn"),
        ({"none": "1111111111", "lp": "0000000000"}, "none"),  # personalization hurts
        ({"none": "1", "lp": "0"}, "none"),
        ({"none": "110000", "lp": "111100", "ft": "000011"}, "ft"),  # few images: a large error
        ({"none": "111000", "lp": "111100", "ft": "000011"}, "lp"),  # so large that it is not below none
    ],
)
def test_the_recommended_way_unless_another_is_better_by_two_standard_errors(
    tried: dict[str, str], expected: str
) -> None:
    assert choose(judged(**tried)) == expected


def test_how_much_better_another_way_must_be_is_counted_in_standard_errors() -> None:
    ways = judged(none="0000000000", lp="1111111111", ft="1111111100")
    better, error = 0.2, (0.2 * 0.8 * 10 / 9 / 10) ** 0.5  # mean and standard error of a gap of 0.2 in ten images
    assert choose(ways, better / error - 0.01) == "lp"
    assert choose(ways, better / error + 0.01) == "ft"


def test_what_is_below_no_personalization_is_never_chosen() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        ways = [Judged(str(i), torch.rand(12, generator=generator) < 0.6) for i in range(4)]
        accuracy = {one.way: one.accuracy for one in ways}
        assert accuracy[choose(ways)] >= accuracy["0"]


def test_candidates_go_from_simple_to_the_recommended_way() -> None:
    assert candidates(make("fedbasis", QUICK)) == (
        "none", "prior@frozen", "prior@own", "coefficients@frozen", "prior+coefficients+classifier@frozen",
        "prior+coefficients+classifier@own",
    )  # fmt: skip
    assert candidates(make("fedbasis", QUICK, "none")) == (
        "none", "prior", "coefficients", "prior+coefficients+classifier"
    )  # fmt: skip
    assert candidates(make("fedavg", QUICK)) == (
        "none", "prior@frozen", "prior@own", "prior+lp@frozen", "prior+lp@own", "prior+ft@frozen", "prior+ft@own"
    )  # fmt: skip


def by_hand(way: str, data: Examples) -> float:
    """The cross-validated accuracy of one way, with a working model of its own for every fit."""
    method, server = make("fedavg", QUICK), trained("fedavg", QUICK)[0]
    right = 0
    for held in folds(data.labels, 7):
        context = Context(7, "new", method.task.network.workspace())
        rest = Examples(data.pixels[~held], data.labels[~held])
        fitted = personalize(method, server, way, rest, context, Adaptation(epochs=2, rate=0.05)).last
        context.model.load(fitted.tensors)
        guesses = method.serving.probabilities(context.model, fitted.learned, data.pixels[held]).argmax(1)
        right += int((guesses == data.labels[held]).sum())
    return right / len(data)


def test_the_scores_and_the_model_are_those_of_the_chosen_way_by_itself() -> None:
    method, server = make("fedavg", QUICK), trained("fedavg", QUICK)[0]
    data = shapes_examples(12)
    turned = Examples(data.pixels, (data.labels + 1) % 3)  # other labels than in training: it must be personalized
    context = Context(7, "new", method.task.network.workspace())
    plan = Adaptation(epochs=2, rate=0.05)
    result = personalize(method, server, AUTO, turned, context, plan)
    assert result.choice is not None
    assert result.choice.way != "none"
    assert result.choice.after > result.choice.before
    for one in result.choice.judged[1:]:
        assert one.accuracy == pytest.approx(by_hand(one.way, turned))
    alone = personalize(method, server, result.choice.way, turned, context, plan)
    assert all(torch.equal(alone.last.tensors[name], tensor) for name, tensor in result.last.tensors.items())


def test_labels_without_a_pattern_leave_the_model_as_it_is() -> None:
    method = make("fedavg", QUICK)
    data = clients(1)["a/p00"]
    data = Examples(data.pixels[:12], torch.tensor([0, 1, 2] * 4)[torch.randperm(12, generator=seeded(3))])
    context = Context(7, "new", method.task.network.workspace())
    result = personalize(method, trained("fedavg", QUICK)[0], AUTO, data, context, Adaptation(epochs=1, rate=0.01))
    assert result.choice is not None
    assert result.choice.after >= result.choice.before


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_client_with_few_images_is_served(count: int) -> None:
    method = make("fedbasis", QUICK)
    data = clients(1)["a/p00"]
    data = Examples(data.pixels[:count], data.labels[:count])
    context = Context(7, "new", method.task.network.workspace())
    server, plan = trained("fedbasis", QUICK)[0], Adaptation(epochs=1, rate=0.01)
    result = personalize(method, server, AUTO, data, context, plan)
    assert result.choice is not None
    assert bool(result.choice.judged) == (count >= FEWEST)
    if count < FEWEST:
        assert result.choice.way == candidates(method)[-1]
        assert "fewer than 3 images tell too little" in result.choice.reason
        alone = personalize(method, server, result.choice.way, data, context, plan)
        assert all(torch.equal(alone.last.tensors[name], tensor) for name, tensor in result.last.tensors.items())


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_statistics_cannot_be_fixed_for_it() -> None:
    method = make("fedavg", QUICK)
    with pytest.raises(InputError, match=r"must be auto or one of none, prior, lp, .* but it is 'auto' with @own"):
        serve(method, trained("fedavg", QUICK)[0], "auto@own")


def test_a_choice_says_why() -> None:
    assert "no way of personalizing is better" in Choice("none", tuple(judged(none="11", lp="10"))).reason
    assert "the best on 2 images" in Choice("lp", tuple(judged(none="00", lp="11"))).reason
    ways = tuple(judged(none="0000", lp="1110", bn="1111", ft="0000"))
    assert "nearest to the recommended way within two standard errors of the best, bn" in Choice("lp", ways).reason
    assert (
        "it is recommended, and none is better by more" in Choice("ft", tuple(judged(none="0", lp="1", ft="0"))).reason
    )


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Bases, and the folder of a client."""
    root = tmp_path_factory.mktemp("auto")
    some = pflbed.digits4(clients=1, new=1, limit=24)
    method = fb.FedBasis(network="cnn-small", bases=2, warm_start=0.5)
    fb.train(method, some, rounds=2, epochs=1, engine="serial").save(root / "bases")
    client = some["mnist/n00"].train
    for number, (pixels, label) in enumerate(zip(client.pixels[:12], client.labels[:12].tolist(), strict=True)):
        folder = root / "client" / some.classes[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return root / "bases", root / "client"


def test_the_command_and_the_library_choose_alike_and_say_what_they_tried(
    published: tuple[Path, Path], tmp_path: Path
) -> None:
    bases, data = published
    command = ["personalize", str(bases), "--data", str(data), "--how", "auto", "--epochs", "1"]
    told = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "a"), "--json"], catch_exceptions=False)
    found = json.loads(told.output)
    assert list(found["tried"]) == list(candidates(make("fedbasis", QUICK)))
    assert found["how"] in found["tried"]
    assert (found["after"], found["before"]) == (found["tried"][found["how"]], found["tried"]["none"])
    assert found["images"] == found["held_out"] == 12
    said = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "b")], catch_exceptions=False).output
    assert "Tried: none " in said
    assert f"Chosen: {found['how']}, because " in said
    loaded = fb.load(bases)
    assert isinstance(loaded, fb.Trained)
    mine = fb.personalize(loaded, data, way="auto", epochs=1)
    assert mine.card.provenance["personalized_by"] == found["how"]
    assert mine.card.provenance["tried"] == found["tried"]
    with pytest.raises(InputError, match="cannot keep the best one"):
        fb.personalize(loaded, data, way="auto", keep="best")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_last_candidate_of_every_method_is_its_default_way(name: str) -> None:
    method = make(name, QUICK)
    tried = candidates(method)
    assert tried[0] == "none"
    assert len(set(tried)) == len(tried)
    plain = [split_way(without_prior(way))[0] for way in tried]
    assert set(plain[1:]) - {"prior"} <= set(all_ways(method))
    assert plain[-1] == method.ways.default[-1]
