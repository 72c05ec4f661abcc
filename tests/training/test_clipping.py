"""Updates that are too long are shortened, one at a time."""

from collections.abc import Iterator
from typing import ClassVar

import torch

from fedbasis.methods.base import Sent
from fedbasis.networks.batches import Recipe
from fedbasis.tensors.averaging import Averaging
from fedbasis.tensors.params import State
from fedbasis.training.clipping import clip_updates, clipped
from methods.helpers.robust import a_round, with_averaging


class TestClipping:
    start: ClassVar[State] = {"m": {"w": torch.tensor([1.0, 1.0])}}

    def test_all_tensors_are_one_vector(self) -> None:
        sent: State = {"m": {"w": torch.tensor([4.0, 1.0])}, "change": {"c": torch.tensor([4.0])}}  # 3, 0 and 4: 5
        near = clipped(sent, self.start, 2.5)
        assert near["m"]["w"].tolist() == [2.5, 1.0]
        assert near["change"]["c"].tolist() == [2.0]
        assert clipped(sent, self.start, 5.0) is sent

    def test_choices_stay(self) -> None:
        sent: State = {"m": {"w": torch.tensor([1e30, 1.0])}, "choice": {"k": torch.tensor(3)}}
        near = clipped(sent, self.start, 1.0)
        torch.testing.assert_close(near["m"]["w"], torch.tensor([2.0, 1.0]))
        assert near["choice"]["k"] == 3


def test_a_stream_stays_a_stream(recipe: Recipe) -> None:
    """Clipping looks at one update at a time."""
    server, updates = a_round("fedavg", recipe)
    asked = []

    def stream() -> Iterator[tuple[str, Sent]]:
        for client, sent in updates:
            asked.append(client)
            yield client, sent

    got = iter(clip_updates(with_averaging(Averaging(clip=1.0), "fedavg", recipe), server, stream()))
    next(got)
    assert asked == [updates[0][0]]
