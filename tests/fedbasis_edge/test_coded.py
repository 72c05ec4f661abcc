"""The compact coding is decoded to the bits of ``fedbasis.tensors.compact``."""

import shutil
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from fedbasis.edge.bundle import export_edge
from fedbasis.serving import artifact
from fedbasis.tensors.compact import AlikeModels, encode
from fedbasis.tensors.compact import decode as decode_by_torch
from fedbasis.tensors.files import write_tensors
from fedbasis_edge.bundle import open_bundle
from fedbasis_edge.coded import decode, is_coded
from fedbasis_edge.fit import personalize
from fedbasis_edge.tensors import parse
from helpers.cli_images import write_images
from helpers.edge_bundles import write_bases

SHAPES = {"w": (5, 3, 3), "odd": (3, 7), "b": (5,), "one": (), "variance": (4,)}


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("reference", ["major", None])
def test_the_bits_are_the_same(bits: Literal[3, 4, 8], reference: str | None, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    groups = ("major", "basis_0", "basis_1")
    state = {
        group: {
            name: torch.rand(shape, generator=generator) * (1e6 if group == "basis_1" and name == "variance" else 1)
            for name, shape in SHAPES.items()
        }
        for group in groups
    }
    coded = encode(state, AlikeModels(groups, reference), bits)
    write_tensors(tmp_path / "t", coded)
    tensors = parse((tmp_path / "t").read_bytes(), "the file")
    assert is_coded(tensors)
    made = decode(tensors, groups, SHAPES)
    expected = decode_by_torch(coded, {name: torch.Size(shape) for name, shape in SHAPES.items()}, "x")
    for group in groups:
        for name in SHAPES:
            assert np.array_equal(made[f"{group}/{name}"], expected[group][name].numpy()), (group, name)


@pytest.mark.parametrize("bits", [3, 4])
def test_a_coded_bundle_is_personalized(bits: Literal[3, 4], tmp_path: Path) -> None:
    """Its graphs decode the bases themselves; the model that is written is decoded here."""
    write_bases(tmp_path / "bases")
    card, state = artifact.load(tmp_path / "bases", "bases")
    coded, coded_card = artifact.code(state, AlikeModels(list(state), "major"), card, bits)
    shutil.rmtree(tmp_path / "bases")
    artifact.save(tmp_path / "bases", coded, coded_card)
    export_edge(tmp_path / "bases")
    bundle = open_bundle(tmp_path / "bases")
    mine = write_images(tmp_path / "mine", 8, 1, seed=3)
    made = personalize(bundle, mine, epochs=1, threads=1)
    assert made.losses[0] > 0
    assert all(np.isfinite(value).all() for value in made.tensors.values())
