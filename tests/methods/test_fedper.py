"""FedPer against modules that share their lower layers alone, FedAvg and training alone."""

from battery import clients, same
from fedbasis.networks.batches import Recipe
from methods.helpers.layers import BlockTests, build, federate


class TestFedPer(BlockTests):
    name = "fedper"
    setting = "personal_blocks"
    shared = {None: ("conv1.", "conv2.", "conv3."), 3: ("conv1.",)}  # noqa: RUF012

    def test_the_classifier_is_the_last_block(self, recipe: Recipe) -> None:
        methods = build("fedper", recipe), build("fedper", recipe, personal_blocks=1)
        one, other = (federate(method, clients(3)) for method in methods)
        assert same(one[0], other[0])
        assert all(same(one[1][client], other[1][client]) for client in one[1])
