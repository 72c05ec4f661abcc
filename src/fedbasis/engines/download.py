"""The download: in which precision the server sends its tensors to the clients of a round.

- ``float32``: as they are.
- ``bfloat16``: float32 tensors are rounded to half the bytes.
- ``compact``: models that are alike are coded as a reference and differences of 4 bits (``tensors.compact``). A state
  without such models, such as a single one, is sent as bfloat16.

The server's own tensors stay exact. It computes a client's change from the same rounded tensors that the client
received (``Updates.aggregate_rounded``), and adds it to the exact ones, so rounding errors do not add up over rounds.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from fedbasis.methods.base import Method, Serving
from fedbasis.tensors.compact import Bits, decode, encode, is_coded
from fedbasis.tensors.params import State
from pflbed.errors import InputError

Download = Literal["float32", "bfloat16", "compact"]
BITS: Bits = 4
"""Bits of a difference in a compact download."""


def to_send(method: Method, state: State, download: Download) -> State:
    """Return the tensors of a message, from what ``broadcast`` returned."""
    if download == "float32":
        return state
    alike = method.serving.alike_models(state) if download == "compact" else None
    if alike is not None:
        return encode(state, alike, BITS)
    return {group: {name: _halved(tensor) for name, tensor in named.items()} for group, named in state.items()}


def as_received(sent: State, expected: Mapping[str, torch.Size]) -> State:
    """Return the tensors of a message as a client uses them: float32 again.

    Args:
        sent: The tensors of the message.
        expected: The shapes of a model's tensors by name, which coded models must have.
    """
    if is_coded(sent):
        return decode(sent, expected, "What the server sent")
    return {
        group: {name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor for name, tensor in named.items()}
        for group, named in sent.items()
    }


def require_download(method: Method, download: Download) -> None:
    """Raise an ``InputError`` for compact downloads of a method that has no models that are alike."""
    if download == "compact" and type(method.serving).alike_models is Serving.alike_models:
        raise InputError(
            f"download = 'compact' needs a method with several models that are alike, but {method.about.title} has "
            "none; set it to 'bfloat16' or 'float32'."
        )


def _halved(tensor: Tensor) -> Tensor:
    return tensor.bfloat16() if tensor.dtype == torch.float32 else tensor
