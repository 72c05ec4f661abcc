"""Every method of the registry with clipped updates and with every robust mean."""

import pytest

from battery import FIRST, HOLDS, VARIANTS, clone, finite, make, same
from fedbasis.methods import METHODS
from fedbasis.networks.batches import Recipe
from fedbasis.tensors.averaging import Averaging
from fedbasis.training.clipping import clip_updates, differences
from methods.helpers.robust import KINDS, a_round, close, garbage, with_averaging
from pflbed.errors import InputError

TRIED = [v for v in VARIANTS if v in FIRST or v in ("fedbasis-full", "fedbasis-joint", "fedbasis-random")]
FREE = {"fedbasis-joint"}
"""Its clients move every basis in a direction of its own."""


@pytest.mark.parametrize("variant", TRIED)
class TestEveryMethod:
    def test_a_far_limit_changes_no_bit_and_a_near_one_is_kept(self, variant: str, recipe: Recipe) -> None:
        server, updates = a_round(variant, recipe)
        plain = make(variant, recipe, rounds=3).aggregate(server, iter(updates), 7)
        far = with_averaging(Averaging(clip=1e12), variant, recipe)
        assert same(plain, far.aggregate(server, clip_updates(far, server, iter(updates)), 7))
        near = with_averaging(Averaging(clip=1e-2), variant, recipe)
        for client, sent in clip_updates(near, server, iter(updates)):
            moved = differences(sent.tensors, near.updates.reference(server, client, sent.tensors))
            length = sum(float(t.square().sum()) for named in moved.values() for t in named.values()) ** 0.5
            assert length <= 1.01e-2
        if variant == "local":
            return
        assert sum(float(t.abs().sum()) for named in moved.values() for t in named.values()) > 0

    def test_nothing_trimmed_is_the_mean(self, variant: str, recipe: Recipe) -> None:
        if variant in FREE:
            with pytest.raises(InputError, match="coordinate_descent = true"):
                with_averaging(KINDS["trimmed"], variant, recipe)
            return
        server, updates = a_round(variant, recipe)
        got = with_averaging(Averaging(kind="trimmed", trim=0.0), variant, recipe).aggregate(server, iter(updates), 7)
        close(got, make(variant, recipe, rounds=3).aggregate(server, iter(updates), 7))


@pytest.mark.parametrize("variant", [variant for variant in TRIED if variant not in FREE])
@pytest.mark.parametrize("kind", KINDS)
def test_equal_clients_have_one_mean(variant: str, recipe: Recipe, kind: str) -> None:
    """The same update several times over: its mean, trimmed mean and median are the same."""
    server, updates = a_round(variant, recipe)
    (first, sent), *_ = updates
    alike = [(client if variant in HOLDS else first, sent) for client, _ in updates]
    close(
        with_averaging(KINDS[kind], variant, recipe).aggregate(server, iter(alike), 7),
        make(variant, recipe, rounds=3).aggregate(server, iter(alike), 7),
    )


@pytest.mark.parametrize("variant", [variant for variant in TRIED if variant not in FREE])
@pytest.mark.parametrize("kind", KINDS)
def test_one_garbage_client_of_four_does_little(variant: str, recipe: Recipe, kind: str) -> None:
    variant = "ifca-noise" if variant == "ifca" else variant  # there all four choose one cluster; two are too few
    server, updates = a_round(variant, recipe)
    held = [clone(sent.tensors) for _, sent in updates]
    (bad, sent), *good = updates
    attacked = [*good[:1], (bad, garbage(sent)), *good[1:]]
    method = with_averaging(KINDS[kind], variant, recipe)
    robust = method.aggregate(server, iter(attacked), 7)
    assert finite(robust)
    assert all(same(sent.tensors, before) for (_, sent), before in zip(updates, held, strict=True))
    clean = method.model(method.aggregate(server, iter(good), 7))
    start = method.model(server)
    moved = max(float((clean[name] - start[name]).abs().max()) for name in clean)
    off = max(float((method.model(robust)[name] - clean[name]).abs().max()) for name in clean)
    assert off <= 10 * moved + 1e-6
    if variant == "local":
        return
    plain = make(variant, recipe, rounds=3)
    ruined = plain.model(plain.aggregate(server, iter(attacked), 7))
    if variant != "ifca-noise":  # garbage may have gone to the cluster that is not shown
        away = [float((ruined[name] - clean[name]).abs().max()) for name in clean]
        assert any(not distance <= 1e3 * moved for distance in away)  # or not even a number


def test_every_method_says_whether_it_averages() -> None:
    assert [name for name, method in METHODS.items() if not method.updates_type.averages] == ["local"]
