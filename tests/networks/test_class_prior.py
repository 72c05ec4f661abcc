"""The class prior: Bayes' rule on known densities, the same shift for combined bases, and nothing else is changed."""

import pytest
import torch
from torch import nn

from battery import QUICK, make, served, trained
from fedbasis.methods.base import Adaptation, Context, Task
from fedbasis.methods.fedavg import FedAvg
from fedbasis.networks.batches import Recipe
from fedbasis.networks.class_prior import log_prior, with_prior
from fedbasis.networks.inputs import Examples, Preprocessing
from fedbasis.networks.models import Network
from fedbasis.serving.personalize import PSEUDO_COUNT, default_statistics, label, personalize
from pflbed.errors import InputError
from shapes import shapes_examples


def test_a_calibrated_classifier_gets_the_posterior_of_the_clients_frequencies() -> None:
    """Three normal densities: the logits at equal frequencies are log densities."""
    centres, x = torch.tensor([-2.0, 0.0, 1.0]), torch.linspace(-5, 5, 41)[:, None]
    logits = -0.5 * (x - centres).square()
    labels = torch.tensor([0] * 6 + [1] * 3 + [2])
    joint = torch.exp(logits) * torch.tensor([0.6, 0.3, 0.1])
    posterior = joint / joint.sum(1, keepdim=True)
    torch.testing.assert_close(torch.softmax(logits + log_prior(labels, 3, 1e-12), dim=1), posterior)


def test_a_class_that_the_client_does_not_have_stays_possible() -> None:
    shift = log_prior(torch.tensor([0, 0, 2]), 4, 0.5)
    assert torch.isfinite(shift).all()
    assert shift[1] == shift[3] < shift[2] < shift[0]
    assert float(shift.sum()) == pytest.approx(0, abs=1e-6)
    expected = torch.log(torch.tensor([2.5, 0.5, 1.5, 0.5]) / 5)
    torch.testing.assert_close(shift, expected - expected.mean())


@pytest.mark.parametrize("variant", ["fedavg", "fedbasis", "knn-per", "fedrep"])
def test_the_way_prior_shifts_the_bias_and_nothing_else(variant: str) -> None:
    method = make(variant, QUICK)
    plain, _ = served(variant, "batch", "none")
    shifted, chances = served(variant, "batch", "prior")
    shift = log_prior(shapes_examples(12).labels, 3, PSEUDO_COUNT)
    for name, tensor in plain.last.tensors.items():
        expected = tensor + shift if name == f"{method.task.classifier}.bias" else tensor
        torch.testing.assert_close(shifted.last.tensors[name], expected, rtol=1e-6, atol=1e-6)
    assert torch.allclose(chances.sum(1), torch.ones(12))


def test_other_ways_can_start_from_it() -> None:
    method, data = make("fedbasis", QUICK), shapes_examples(12)
    server = method.serving.published(trained("fedbasis", QUICK)[0])
    data = Examples(data.pixels, torch.where(data.labels == 1, 0, data.labels))
    context = Context(7, "new", method.task.network.workspace())
    still, bias = Adaptation(epochs=1, rate=1e-12), f"{method.task.classifier}.bias"
    prior = personalize(method, server, "prior@own", data, context, still).last.tensors
    for way in ("lp", "ft", "coefficients+classifier", "coefficients+lp"):
        start = personalize(method, server, f"prior+{way}@own", data, context, still).last.tensors
        torch.testing.assert_close(start[bias], prior[bias], rtol=1e-4, atol=1e-5)
        plain = personalize(method, server, f"{way}@own", data, context, still).last.tensors
        torch.testing.assert_close(plain[bias], method.model(server)[bias], rtol=1e-4, atol=1e-5)


def test_rows_say_that_a_way_starts_from_it() -> None:
    assert label("fedavg", "prior") == "FedAvg + class prior"
    assert label("fedavg", "prior+lp@own") == "FedAvg + class prior + LP (own statistics)"
    assert label("fedbasis", "prior+coefficients+classifier") == "FedBasis + class prior"
    assert label("fedbasis", "prior+coefficients") == "FedBasis + class prior (α only)"
    assert default_statistics(make("fedbasis", QUICK), "prior+coefficients") == "frozen"


def test_only_tensors_of_the_classifiers_shape_are_shifted() -> None:
    state = {"a": {"fc.bias": torch.zeros(2), "x": torch.zeros(2)}, "b": {"fc.bias": torch.zeros(3)}}
    got = with_prior(state, "fc.bias", torch.tensor([1.0, -1.0]))
    assert got["a"]["fc.bias"].tolist() == [1, -1]
    assert not got["a"]["x"].any()
    assert not got["b"]["fc.bias"].any()


class Unbiased(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * 12 * 12, classes, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


def test_a_classifier_without_a_bias_is_refused() -> None:
    network = Network.of(Unbiased, 3, (12, 12, 3))
    method = FedAvg.build(None, Task(network, Recipe(preprocessing=Preprocessing(12), epochs=1, batch=8), rounds=1))
    context = Context(7, "new", network.workspace())
    with pytest.raises(InputError, match="'fc' of this network has none"):
        personalize(method, method.init(0), "prior", shapes_examples(12), context, Adaptation())
