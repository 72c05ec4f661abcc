"""FedBN against modules that keep their normalization layers."""

import pytest

from battery import clients, same
from fedbasis.networks.batches import Recipe
from methods.helpers.layers import NORMS, SEED, assert_rounds_equal_naive, build, close, federate, jointly


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("share", [True, False])
def test_fedbn_without_normalization_is_fedavg_bit_for_bit(share: bool, weighting: str, recipe: Recipe) -> None:
    average, _ = federate(build("fedavg", recipe, "none", weighting), clients(3))
    method = build("fedbn", recipe, "none", weighting, share_normalization_for_new_clients=share)
    server, kept = federate(method, clients(3))
    assert same(server, average)
    assert kept == {}


class TestFedBn:
    @NORMS
    @pytest.mark.parametrize("share", [True, False])
    def test_rounds_equal_modules_trained_and_averaged_naively(
        self, share: bool, norm: str, weighting: str, recipe: Recipe
    ) -> None:
        method = build("fedbn", recipe, norm, weighting, share_normalization_for_new_clients=share)
        assert_rounds_equal_naive(method, lambda name: name.split(".")[1] != "1", jointly, open_=share)

    def test_what_new_clients_get_changes_nothing_for_those_who_take_part(self, recipe: Recipe) -> None:
        open_, closed = (build("fedbn", recipe, share_normalization_for_new_clients=share) for share in (True, False))
        one, other = federate(open_, clients(3)), federate(closed, clients(3))
        assert same({"model": one[0]["model"]}, other[0])
        assert all(same(one[1][client], other[1][client]) for client in one[1])
        assert same(open_.broadcast(one[0], "any"), {"model": one[0]["model"]})
        assert not close(open_.model(one[0]), closed.model(other[0]), 0.01)

    def test_the_first_normalization_layers_for_new_clients_are_the_initial_ones(self, recipe: Recipe) -> None:
        method = build("fedbn", recipe)
        assert same({"": method.model(method.init(SEED))}, {"": method.task.initial(SEED)})
