"""Holding out rows: of every class or of all rows, each row with the same chance."""

from collections import Counter
from functools import partial

import torch

from fedbasis.networks.hold_out import hold_out
from fedbasis.tensors.seeding import torch_generator

LABELS = torch.tensor([0] * 6 + [1] * 3 + [2])


def test_takes_a_share_of_every_class_and_never_all() -> None:
    seen = set()
    for seed in range(5):
        draw = partial(torch.randperm, generator=torch_generator(seed))
        held = hold_out(LABELS, lambda rows: rows // 2, draw)
        assert [int(held[label == LABELS].sum()) for label in range(3)] == [3, 1, 0]
        seen.add(tuple(held.tolist()))
    assert len(seen) > 1


def test_classes_are_drawn_one_after_another_as_in_a_plain_loop() -> None:
    labels = torch.tensor([2, 0, 2, 2, 1, 0, 2, 1])
    held = hold_out(labels, lambda rows: rows - 1, partial(torch.randperm, generator=torch_generator("draw")))
    generator, wanted = torch_generator("draw"), set()
    for label in (0, 1, 2):
        rows = [row for row, other in enumerate(labels.tolist()) if other == label]
        wanted |= {rows[place] for place in torch.randperm(len(rows), generator=generator)[: len(rows) - 1].tolist()}
    assert set(held.nonzero()[:, 0].tolist()) == wanted


def test_from_all_rows_at_once_the_classes_do_not_matter() -> None:
    counts = Counter[int]()
    for seed in range(400):
        draw = partial(torch.randperm, generator=torch_generator(seed))
        held = hold_out(LABELS, lambda rows: rows // 5, draw, by_class=False)
        assert int(held.sum()) == 2
        counts.update(held.nonzero()[:, 0].tolist())
    assert sorted(counts) == list(range(10))
    assert all(50 < count < 110 for count in counts.values())  # 80 expected, with a deviation of 8


def test_nothing_of_nothing() -> None:
    assert hold_out(torch.empty(0, dtype=torch.int64), lambda rows: rows, torch.arange).tolist() == []
    assert not hold_out(LABELS, lambda rows: 0, torch.arange).any()
