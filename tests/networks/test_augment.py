"""Random changes of images against naive ones, image by image: Pillow's crops and resizing, NumPy's padding."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image

from fedbasis.networks.augment import AREA, PADDING, RATIO, Augment, augmented, crop_boxes, resized_crops
from fedbasis.networks.batches import Recipe, draw_batches
from fedbasis.networks.inputs import Examples, Preprocessing
from fedbasis.networks.models import Network
from fedbasis.tensors.seeding import torch_generator
from pflbed.errors import InputError


def photographs(count: int, height: int, width: int, channels: int = 3) -> torch.Tensor:
    """Smooth random images: scaling noise would only compare roundings."""
    small = torch.rand(count, channels, 5, 5, generator=torch_generator("photographs"))
    large = torch.nn.functional.interpolate(small, (height, width), mode="bicubic")
    return (255 * large).clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous()


@pytest.mark.parametrize(("size", "channels"), [((24, 24), 3), ((40, 20), 3), ((24, 24), 1)])
def test_resized_crops_are_pillows(size: tuple[int, int], channels: int) -> None:
    pixels = photographs(30, 36, 32, channels)
    boxes = crop_boxes(30, 36, 32, torch_generator(1))
    mirrored = (torch.arange(30) % 2 == 0)[:, None]
    got = resized_crops(pixels, boxes, mirrored, size)
    assert got.shape == (30, *size, channels)
    assert got.dtype == torch.uint8
    for image, (top, left, height, width), flip, mine in zip(pixels, boxes.tolist(), mirrored, got, strict=True):
        part = Image.fromarray(image.squeeze(-1).numpy()).crop((left, top, left + width, top + height))
        part = part.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        if flip:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        expected = np.asarray(part, dtype=np.int64).reshape(*size, channels)
        assert np.abs(mine.numpy().astype(np.int64) - expected).max() <= 1  # both round, at different places


def test_boxes_lie_inside_and_have_the_areas_and_ratios_of_imagenet() -> None:
    boxes = crop_boxes(4000, 256, 256, torch_generator(0)).double()
    top, left, height, width = boxes.T
    assert bool((boxes[:, :2] >= 0).all())
    assert bool((top + height <= 256).all())
    assert bool((left + width <= 256).all())
    share, ratio = height * width / 256**2, width / height
    assert AREA[0] - 0.01 < float(share.min()) < 0.1
    assert 0.95 < float(share.max()) <= 1
    assert RATIO[0] - 0.02 < float(ratio.min()) < float(ratio.max()) < RATIO[1] + 0.02
    # The area is uniform where every ratio fits; sides log-uniform around 1.
    assert abs(float(ratio.log().mean())) < 0.01
    small = share[share < 0.5]
    assert abs(float(small.mean()) - (AREA[0] + 0.5) / 2) < 0.01
    free = 256 - height
    assert abs(float((top[free > 50] / free[free > 50]).mean()) - 0.5) < 0.02  # every place has the same chance


def test_an_image_into_which_no_box_fits_gives_its_centre() -> None:
    """Of 4 x 400 pixels no part of an allowed ratio has 8 % of the area."""
    boxes = crop_boxes(3, 4, 400, torch_generator(0))
    assert boxes.tolist() == [[0, (400 - 5) // 2, 4, 5]] * 3
    assert crop_boxes(3, 400, 4, torch_generator(0)).tolist() == [[(400 - 5) // 2, 0, 5, 4]] * 3


def test_padded_crops_are_windows_of_the_padded_image() -> None:
    pixels = torch.randint(1, 256, (200, 9, 7, 3), dtype=torch.uint8, generator=torch_generator(0))
    got = augmented(pixels, "padded-crop+flip", torch_generator(1))
    found = set()
    for image, mine in zip(pixels.numpy(), got.numpy(), strict=True):
        padded = np.pad(image, ((PADDING, PADDING), (PADDING, PADDING), (0, 0)))
        windows = {
            (top, left, flip): padded[top : top + 9, left : left + 7][:, :: -1 if flip else 1]
            for top in range(2 * PADDING + 1)
            for left in range(2 * PADDING + 1)
            for flip in (False, True)
        }
        same = [key for key, window in windows.items() if np.array_equal(window, mine)]
        assert len(same) == 1
        found.add(same[0])
    assert {key[0] for key in found} == {key[1] for key in found} == set(range(2 * PADDING + 1))
    assert {key[2] for key in found} == {False, True}


@pytest.mark.parametrize("how", ["flip", "shift", "flip+shift", "padded-crop+flip", "resized-crop+flip"])
def test_the_generator_decides_alone(how: str) -> None:
    pixels = photographs(12, 20, 20)
    before = torch.random.get_rng_state()
    one, same, other = (augmented(pixels, how, torch_generator(seed)) for seed in (0, 0, 1))  # type: ignore[arg-type]
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.shape == pixels.shape
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_flip_mirrors_half_of_the_images_and_changes_nothing_else() -> None:
    pixels = photographs(64, 6, 5, 112)
    changed = augmented(pixels, "flip", torch_generator(0))
    kept = (changed == pixels).flatten(1).all(1)
    mirrored = (changed == pixels.flip(2)).flatten(1).all(1)
    assert (kept ^ mirrored).all()
    assert 16 < int(mirrored.sum()) < 48


def test_inputs_are_random_crops_in_training_and_centres_otherwise(tiny: Network) -> None:
    pixels = photographs(8, 32, 40)
    how = Preprocessing((32, 40), crop=(28, 24))
    centre = how(pixels)
    whole = Preprocessing((32, 40))(pixels)
    assert torch.equal(centre, whole[:, :, 2:30, 8:32])
    random = augmented(pixels, "resized-crop+flip", torch_generator(0), size=(28, 24))
    assert random.shape == (8, 28, 24, 3)
    assert torch.equal(how(random), Preprocessing((28, 24))(random))  # not cropped again
    data = Examples(pixels, torch.arange(8))
    model = tiny.workspace()
    for other in get_args(Augment):
        recipe = Recipe(preprocessing=how, augment=other, epochs=1, batch=8)
        (batch,) = draw_batches(data, recipe, torch_generator(0))
        inputs, labels = batch.inputs(data, recipe, model)
        assert inputs.shape == (8, 3, 28, 24)
        assert torch.equal(labels, batch.rows)
    with pytest.raises(InputError, match="at least as large as the crop"):
        how(pixels[:, :20])


def test_a_box_of_the_whole_image_changes_nothing() -> None:
    pixels = photographs(3, 16, 16)
    whole = torch.tensor([[0, 0, 16, 16]] * 3)
    assert torch.equal(resized_crops(pixels, whole, torch.zeros(3, 1, dtype=torch.bool), (16, 16)), pixels)
    mirrored = resized_crops(pixels, whole, torch.ones(3, 1, dtype=torch.bool), (16, 16))
    assert torch.equal(mirrored, pixels.flip(2))
    assert math.isclose(RATIO[0] * RATIO[1], 1)
