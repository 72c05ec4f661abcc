"""What a client sends: exact however little of a basis it uses."""

import torch

from fedbasis.methods.fedbasis import coefficients
from fedbasis.methods.fedbasis.aggregation import BasisMean
from fedbasis.methods.fedbasis.learning import (
    LocalWork,
    train_factored,
)
from fedbasis.methods.fedbasis.upload import Upload
from fedbasis.networks.batches import Recipe
from fedbasis.networks.models import Network
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.seeding import torch_generator
from methods.helpers.bases import make_bases, relative
from shapes import shapes_examples


def test_full_upload_by_usage_is_exact_for_a_basis_that_is_hardly_used(tiny: Network, recipe: Recipe) -> None:
    module = tiny.build()
    layout = tiny.layout(module)
    bases = make_bases(module, layout, 2, True, torch.float32)
    model = FlatModel(module, layout)
    weights = torch.tensor([[1 - 1e-5, 1e-5]] * len(layout.blocks))
    c = coefficients.combination(weights, True)
    bases.combine_into(c, model)
    _, a = train_factored(LocalWork(model, shapes_examples(16), recipe), c, torch_generator("o"), False)
    upload = Upload(model.tensors(), weights, a)
    results = []
    for state in (upload.factored(), upload.full(bases, True)):
        mean = BasisMean(bases, by_usage=True)
        mean.add(state, 1.0, "only")
        results.append(mean.result())
    for one, other, old in zip(results[0].weights, results[1].weights, bases.weights, strict=True):
        assert relative(one[2], other[2]) < 1e-5
        assert relative(one[2], old[2]) > 1e-4
