"""The expected structure of an update, so that any other update is refused before it is used.

It need not be written for every method: the server runs ``client_update`` on a few noise images and takes the names,
shapes and types of the result.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedbasis.methods.base import Context, Method, Sent
from fedbasis.networks.inputs import Examples
from fedbasis.networks.models import sides
from fedbasis.tensors import packed as pack
from fedbasis.tensors.params import State, nbytes, require_finite
from pflbed.errors import InputError

IMAGES, CLASSES = 10, 5
"""The number of noise images, and of their classes."""
HEADER = 2**16
"""The maximal size of a tensor's name, shape and padding, in bytes."""
Kind = tuple[torch.dtype, torch.Size]


@dataclass(frozen=True)
class Expected:
    """The names, shapes and types of an update's tensors, and the names of its numbers."""

    tensors: Mapping[tuple[str, str], Kind]
    numbers: frozenset[str]
    largest: int
    """The maximal size of an update, in bytes."""

    def update(self, block: NDArray[np.uint8], numbers: Mapping[str, float]) -> Sent:
        """Return a received update; an ``InputError`` if it is not as expected. The size is checked before any copy."""
        if len(block) > self.largest:
            raise InputError(f"it must have at most {self.largest} bytes, but it has {len(block)}.")
        state = read_block(block)
        got = kinds(state)
        wrong = [f"'{_path(key)}' is missing" for key in self.tensors if key not in got]
        wrong += [f"'{_path(key)}' is not expected" for key in got if key not in self.tensors]
        wrong += [
            f"'{_path(key)}' is {_words(got[key])} instead of {_words(kind)}"
            for key, kind in self.tensors.items()
            if key in got and got[key] != kind
        ]
        if wrong:
            raise InputError(f"it does not fit: {'; '.join(wrong[:3])}{'; and more' * (len(wrong) > 3)}.")
        require_finite(state, "it")
        if odd := sorted(set(numbers) ^ self.numbers):
            raise InputError(f"it must have {len(self.numbers)} numbers, but '{odd[0]}' is not expected or missing.")
        examples = numbers.get("examples", 1.0)
        if not (1 <= examples < 2**40 and examples == int(examples)):
            raise InputError(f"it must have a whole number of examples, but it has {examples}.")
        return Sent(state, dict(numbers))


def rehearsed(method: Method, received: State, classes: int, round: int) -> Expected:
    """Return the expected structure, from one ``client_update`` on noise images without a client state.

    Args:
        method: The method.
        received: What the server sends to a client.
        classes: The number of classes.
        round: The number of the round.
    """
    brief = type(method).build(method.config, replace(method.task, recipe=replace(method.task.recipe, epochs=1)))
    channels, (height, width) = method.task.network.channels, sides(method.task.recipe.preprocessing.resolution)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (IMAGES, height, width, channels), generator=generator, dtype=torch.uint8)
    noise = Examples(pixels, torch.arange(IMAGES) % min(classes, CLASSES))
    context = Context(0, "rehearsal", method.task.network.workspace(), round)
    sent, _ = brief.client_update(received, None, noise, context)
    tensors = kinds(sent.tensors)
    return Expected(tensors, frozenset(sent.numbers), nbytes(sent.tensors) + HEADER * (1 + len(tensors)))


def kinds(state: State) -> dict[tuple[str, str], Kind]:
    """Return the type and shape of every tensor of a state."""
    return {(group, name): (t.dtype, t.shape) for group, tensors in state.items() for name, t in tensors.items()}


def read_block(block: NDArray[np.uint8]) -> State:
    """Return the tensors of a received block as views into it; any error in it is an ``InputError``."""
    try:
        with np.errstate(all="ignore"):  # sizes may overflow
            return pack.unpacked(block, "it")
    except (RuntimeError, IndexError, OverflowError, RecursionError) as error:
        raise InputError(f"it must be whole, but it was changed ({str(error).splitlines()[0]}).") from error


def _path(key: tuple[str, str]) -> str:
    return "/".join(key)[:80]


def _words(kind: Kind) -> str:
    return f"{str(kind[0]).removeprefix('torch.')} {tuple(kind[1])}"
