"""Rounds with robust means and clients that send garbage."""

from dataclasses import replace

import torch

from battery import clients, make, run_rounds
from fedbasis.methods.base import Method, Sent
from fedbasis.networks.batches import Recipe
from fedbasis.tensors.averaging import Averaging
from fedbasis.tensors.params import State

KINDS = {"trimmed": Averaging(kind="trimmed", trim=0.25), "median": Averaging(kind="median")}
ROUND: dict[str, tuple[State, list[tuple[str, Sent]]]] = {}


def a_round(variant: str, recipe: Recipe) -> tuple[State, list[tuple[str, Sent]]]:
    """A server after its first round and what four clients then send, made once."""
    if variant not in ROUND:
        method, data = make(variant, replace(recipe, epochs=1), rounds=3), clients()
        server, engine, _ = run_rounds(method, data, rounds=range(1))
        ROUND[variant] = server, list(engine.map(server, list(data), 1))
    return ROUND[variant]


def with_averaging(averaging: Averaging, variant: str, recipe: Recipe) -> Method:
    return make(variant, recipe, rounds=3, averaging=averaging)


def close(one: State, other: State, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    assert one.keys() == other.keys()
    for group, tensors in one.items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, other[group][name], rtol=rtol, atol=atol, msg=f"{group}/{name}")


def garbage(sent: Sent, size: float = 1e6) -> Sent:
    generator = torch.Generator().manual_seed(5)
    tensors = {
        group: {
            name: size * torch.randn(t.shape, generator=generator).to(t.dtype) if t.is_floating_point() else t
            for name, t in named.items()
        }
        for group, named in sent.tensors.items()
    }
    return replace(sent, tensors=tensors)
