"""Bases combine and merge to one ordinary network."""

import torch

from fedbasis.methods.fedbasis import coefficients
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.tensors.flat import FlatModel
from fedbasis.tensors.seeding import torch_generator
from methods.helpers.bases import make_bases
from shapes import shapes_examples


def test_merged_model_equals_combined_model_and_is_no_larger(tiny: Network) -> None:
    module = tiny.build()
    layout = tiny.layout(module)
    bases = make_bases(module, layout, 4, True, torch.float32)
    weights = coefficients.alpha(torch.randn(len(layout.blocks), 4, generator=torch_generator("p")))
    c = coefficients.combination(weights, True)
    combined = FlatModel(module, layout)
    bases.combine_into(c, combined)
    merged = tiny.build()
    merged.load_state_dict(bases.merge(c), strict=False)
    inputs = Preprocessing(12)(shapes_examples(16).pixels)
    with torch.no_grad():
        difference = (merged.eval()(inputs) - combined.module.eval()(inputs)).abs().max()
        alone = module.eval()(inputs)
    assert difference < 1e-6
    assert alone.shape == (16, 3)
    count = sum(p.numel() for p in tiny.build().parameters())
    assert sum(p.numel() for p in merged.parameters()) == count
