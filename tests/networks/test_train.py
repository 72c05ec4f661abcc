"""Local training against torch: batches, preprocessing, optimizers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedbasis.networks.augment import augmented
from fedbasis.networks.batches import Recipe, batches, draw_batches
from fedbasis.networks.inputs import Examples, Preprocessing
from fedbasis.networks.models import Network
from fedbasis.networks.optimizers import FlatAdam
from fedbasis.networks.train import backward_passes, local_sgd
from fedbasis.tensors.seeding import torch_generator
from pflbed.errors import InputError
from shapes import shapes_examples


@given(st.integers(1, 60), st.integers(1, 20))
def test_batches_cover_all_rows_once_and_none_is_single(count: int, batch: int) -> None:
    parts = batches(count, batch, torch_generator(0))
    assert sorted(torch.cat(parts).tolist()) == list(range(count))
    if batch > 1 and count > 1:
        assert min(map(len, parts)) > 1


def test_local_sgd_equals_torch_sgd_by_hand(tiny: Network) -> None:
    recipe = Recipe(preprocessing=Preprocessing(12), epochs=2, batch=8, rate=0.05, momentum=0.9, decay=1e-2)
    data, model = shapes_examples(20), tiny.workspace()
    module = tiny.build()
    local_sgd(model, data, recipe, torch_generator("o"))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2)
    generator = torch_generator("o")
    module.train()
    for _ in range(2):
        for rows in batches(len(data), 8, generator):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(recipe.preprocessing(data.pixels[rows])), data.labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    got = model.tensors()
    for name, tensor in module.state_dict().items():
        if name in got:
            torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=1e-5)


def test_preprocessing() -> None:
    pixels = torch.randint(0, 256, (2, 5, 5, 3), dtype=torch.uint8, generator=torch_generator(0))
    got = Preprocessing(5)(pixels)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(got, ((pixels / 255 - mean) / std).permute(0, 3, 1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("crop", [None, (8, 6)])
def test_inputs_have_the_same_numbers_in_both_layouts(crop: tuple[int, int] | None) -> None:
    pixels = torch.randint(0, 256, (3, 9, 7, 3), dtype=torch.uint8, generator=torch_generator(0))
    how = Preprocessing((9, 7), crop=crop)
    last, first = how(pixels), how(pixels, channels_last=False)
    assert torch.equal(last, first)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert first.is_contiguous()


def test_only_networks_with_convolutions_get_channels_last_inputs(tiny: Network) -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 4))
    data, recipe = shapes_examples(12), Recipe(preprocessing=Preprocessing(12), epochs=1, batch=8)
    for network, contiguous in ((tiny, False), (Network("linear", 4, 12, source=linear), True)):
        model = network.workspace()
        batch = next(iter(draw_batches(data, recipe, torch_generator(0))))
        inputs, labels = batch.inputs(data, recipe, model)
        assert inputs.is_contiguous() == contiguous
        assert torch.equal(labels, data.labels[batch.rows])


def test_shifting_moves_whole_images_and_flipping_mirrors() -> None:
    pixels = torch.zeros(64, 9, 9, 3, dtype=torch.uint8)
    pixels[:, 4, 3] = 200
    moved = augmented(pixels, "shift", torch_generator(0))
    assert bool((moved.sum(dim=(1, 2, 3)) == 600).all())
    assert len({tuple(map(int, m.sum(-1).nonzero()[0])) for m in moved}) > 10
    flipped = augmented(pixels, "flip+shift", torch_generator(0), reach=0)
    columns = {int(m.sum(-1).nonzero()[0][1]) for m in flipped}
    assert columns == {3, 5}
    assert torch.equal(augmented(pixels, "none", torch_generator(0)), pixels)


def test_frozen_statistics_stay(tiny: Network, recipe: Recipe) -> None:
    model = tiny.workspace()
    before = [s.clone() for s in model.statistics]
    for _ in backward_passes(model, shapes_examples(12), recipe, torch_generator(0), statistics="frozen"):
        pass
    assert all(torch.equal(a, b) for a, b in zip(before, model.statistics, strict=True))


def test_wrong_pixels_are_refused() -> None:
    with pytest.raises(InputError, match="uint8"):
        Examples(torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(InputError, match="one label per image"):
        Examples(torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))


def test_adam_on_psi_is_torchs_own_bit_for_bit() -> None:
    one, other = (torch.zeros(5, 4, dtype=torch.float64) for _ in range(2))
    ours, theirs = FlatAdam(one, 0.1), torch.optim.Adam([other], lr=0.1)
    draws = torch.Generator().manual_seed(3)
    for _ in range(30):
        one.grad = other.grad = torch.randn(5, 4, dtype=torch.float64, generator=draws)
        ours.step()
        theirs.step()
        assert torch.equal(one, other)
    assert one.abs().max() > 0.1
