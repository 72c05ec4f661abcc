"""Copy a published artifact into a folder of its own, on request with its models coded (``tensors.compact``)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedbasis.networks.models import NetworkSource
from fedbasis.serving import artifact
from fedbasis.serving.new_client import bases_at, method_of, require_fit
from fedbasis.tensors.blocks import Layout
from fedbasis.tensors.compact import AlikeModels, Bits, decode
from fedbasis.tensors.params import State
from pflbed.errors import InputError


@dataclass(frozen=True)
class BlockError:
    """What coding changed in one block of the networks, as the largest over the coded models.

    Args:
        of_model: The norm of the error as a share of the norm of the model.
        of_spread: The same as a share of the model's distance from the mean of the models; None if they are equal.
    """

    of_model: float
    of_spread: float | None


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What was written: bytes of the tensors' files, and the errors of coding by block."""

    before: int
    after: int
    one_model: int
    """Bytes of one of the models in float32."""
    errors: Mapping[str, BlockError] = field(default_factory=dict)


def bundle(
    bases: Path, out: Path, bits: Bits | None = None, *, trust: bool = False, network: NetworkSource | None = None
) -> Bundle:
    """Write published bases to a new folder.

    Args:
        bases: The artifact, or a run folder that holds one.
        out: The folder to write; it must not exist.
        bits: Code the models with differences of this many bits; None: do not code them.
        trust: Whether code that the folder names may be run.
        network: Your own network, in place of the one that the card names.
    """
    source = bases_at(bases)
    if bits is not None and artifact.read_card(source).coding is not None:
        raise InputError(
            f"Bases that are coded must be as they were published, but {source} are coded already, and would be "
            "rounded twice; give the original, or leave --compact out."
        )
    card, state = artifact.load(source, "bases", trust, network)
    method = method_of(card, network)
    require_fit(method, state, str(source))
    written, errors = state, dict[str, BlockError]()
    if bits is not None:
        layout, alike = method.task.layout, method.serving.alike_models(state)
        written, card = artifact.code(state, alike, card, bits)
        assert alike is not None  # else it is an error
        errors = errors_of(layout, state, decode(written, layout.shapes, "What was coded"), alike)
    artifact.save(out, written, card)
    sizes = [(folder / artifact.TENSORS).stat().st_size for folder in (source, out)]
    numbers = sum(shape.numel() for shape in method.task.layout.shapes.values())
    return Bundle(before=sizes[0], after=sizes[1], one_model=4 * numbers, errors=errors)


def errors_of(layout: Layout, exact: State, decoded: State, alike: AlikeModels) -> dict[str, BlockError]:
    """Return the largest relative error of every block over the coded models."""
    exacts, nears = ([layout.flatten(state[group]) for group in alike.groups] for state in (exact, decoded))
    found = {}
    for i, block in enumerate(layout.blocks):
        rows = torch.stack([flats[i].double() for flats in exacts])
        error = (torch.stack([flats[i].double() for flats in nears]) - rows).norm(dim=1)
        size, spread = rows.norm(dim=1), (rows - rows.mean(0)).norm(dim=1)
        shares = error[spread > 0] / spread[spread > 0]
        of_model = float((error / size.clamp_min(torch.finfo(size.dtype).tiny)).max())
        found[block] = BlockError(of_model, float(shares.max()) if len(shares) else None)
    return found
