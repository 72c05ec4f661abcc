"""Clients from a dataset of another library: a torch-style Dataset or a Hugging Face dataset. Imports neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from pflbed.client_data import Clients
from pflbed.errors import InputError, did_you_mean
from pflbed.images import Resolution, fit, flat, shape_of
from pflbed.in_memory import spec_of, split_arrays
from pflbed.parts import image_number
from pflbed.spec import ALL

Column = str | Callable[[int], Any] | Sequence[Any]
"""A column of rows that are dicts, a function of the row's index, or one value per row."""
GRAY_MODES = ("1", "L", "I;16", "I;16B", "I;16L")


def from_dataset(
    dataset: Any,
    *,
    image: str = "image",
    label: str = "label",
    domain: Column | None = None,
    user: Column | None = None,
    resolution: Resolution | None = None,
    channels: int | None = None,
    classes: Sequence[str] | None = None,
    clients: int = 20,
    new: int = 10,
    seed: int = 0,
    **spec: Any,
) -> Clients:
    """Split a torch-style Dataset or a Hugging Face dataset into clients. All images are read into memory.

    A row is (image, label), (image, label, domain) or a dict. An image is a Pillow image, a numpy array or a tensor:
    uint8 or float from 0 to 1, [H, W], [H, W, C] or [C, H, W]. The smaller of the first and the last dimension is
    taken as the channels; if they are equal, a tensor is [C, H, W] and an array is [H, W, C].

    Args:
        dataset: Any object with ``len(dataset)`` and ``dataset[i]``.
        image: The column of the image, if rows are dicts.
        label: The column of the label, if rows are dicts. A label is a whole number or a name.
        domain: The domain of every image: a column, a function of the row's index, or one value per row. None takes
            the third value of a row if there is one, else a single domain "data".
        user: The user of every image, given in the same ways. Every client is then one user (a natural partition).
        resolution: Scale and crop all images to this square or (height, width). Required if their sizes differ.
        channels: 3 converts to RGB and 1 to gray. None keeps the channels; where gray and RGB are mixed, gray images
            become RGB.
        classes: The names of the classes in order. None takes them from ``dataset.features[label].names`` or
            ``dataset.classes`` if there are any, else the labels that occur.
        clients: Participating clients per domain.
        new: New clients per domain.
        seed: Another seed gives another split.
        **spec: Further fields of ``Spec``, such as ``alpha``, ``partition`` or ``part``.

    Returns:
        The clients by name.

    Example:
        >>> rows = [(np.zeros((8, 8, 3), dtype=np.uint8), i % 2) for i in range(80)]
        >>> from_dataset(rows, clients=3, new=2)
        Clients(3 participating and 2 new clients, 80 images of 8x8x3, 2 classes)
    """
    if resolution is not None or channels is not None:
        shape_of(1 if resolution is None else resolution, 3 if channels is None else channels)
    count = _count(dataset)
    images: list[NDArray[np.uint8]] = []
    labels: list[Any] = []
    chosen = spec_of(clients, new, seed, user is not None, spec)
    contents: list[int] = []
    domains, users = _Values(dataset, domain, "domain", 2), _Values(dataset, user, "user", None)
    for i, row in _rows(dataset, count):
        found = _cell(row, image, 0, i)
        images.append(_sized(_pixels(found, channels, i), resolution))
        if chosen.part != ALL:  # which part it is in must not depend on the size that is asked for
            contents.append(image_number(_pixels(found, None, i)))
        labels.append(_plain(_cell(row, label, 1, i)))
        domains.add(i, row)
        users.add(i, row)
    whole_numbers = all(isinstance(value, int) for value in labels)
    named = classes if classes is not None else _class_names(dataset, label) if whole_numbers else None
    return split_arrays(
        _stacked(images),
        labels if whole_numbers else [str(value) for value in labels],
        domains.values(count),
        users.values(count),
        named,
        chosen,
        np.array(contents, dtype=np.uint64) if contents else None,
    )


class _Values:
    """One value per row, from wherever the user says that it is."""

    def __init__(self, dataset: Any, where: Column | None, what: str, position: int | None) -> None:
        self._where, self._what, self._position = where, what, position
        self._names = _feature_names(dataset, where) if isinstance(where, str) else None
        self._found: list[Any] = []

    def add(self, i: int, row: Any) -> None:
        where = self._where
        if isinstance(where, str):
            if not isinstance(row, Mapping):
                raise InputError(
                    f"{self._what} can name a column only if rows are dicts, got {where!r} for rows of type "
                    f"{type(row).__name__}; give a function of the row's index or one value per row"
                )
            value = _plain(_cell(row, where, 0, i))
            self._found.append(self._names[value] if self._names and isinstance(value, int) else value)
        elif callable(where):
            self._found.append(where(i))
        elif where is None and self._position is not None and not isinstance(row, Mapping) and len(row) > 2:
            self._found.append(_plain(row[self._position]))

    def values(self, count: int) -> list[Any] | None:
        if self._where is not None and not isinstance(self._where, str) and not callable(self._where):
            self._found = [_plain(value) for value in self._where]
        if not self._found and self._where is None:
            return None
        if len(self._found) != count:
            raise InputError(
                f"{self._what} must have one value per row, got {len(self._found)} for {count} rows; give the same for "
                "every row"
            )
        return self._found


def _count(dataset: Any) -> int:
    if hasattr(dataset, "keys"):
        splits = ", ".join(map(str, list(dataset.keys())[:12]))
        raise InputError(f"A dataset must be one split, got several ({splits}); give one of them")
    try:
        count = len(dataset)
    except TypeError:
        raise InputError(
            f"A dataset must have a length and rows by index, got {type(dataset).__name__}, which has no length; load "
            "it into a list first"
        ) from None
    if not count:
        raise InputError("A dataset must have at least one row, got none; check how it was made")
    return count


def _rows(dataset: Any, count: int) -> Iterator[tuple[int, Any]]:
    for i in range(count):
        row = dataset[i]
        if not isinstance(row, Mapping) and not (isinstance(row, tuple | list) and len(row) >= 2):
            raise InputError(
                f"A row must be (image, label), (image, label, domain) or a dict, got {type(row).__name__} in row {i}; "
                "wrap the dataset"
            )
        yield i, row


def _cell(row: Any, column: str, position: int, i: int) -> Any:
    if not isinstance(row, Mapping):
        return row[position]
    if column not in row:
        raise InputError(f"row {i} must have the column {column!r}{did_you_mean(column, [str(key) for key in row])}")
    return row[column]


def _plain(value: Any) -> Any:
    """A Python int for whole numbers of numpy and torch, anything else as it is."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if value is None or isinstance(value, float | bool):
        raise InputError(f"A label, domain or user must be a whole number or a name, got {value!r}; convert it")
    return value


def _feature_names(dataset: Any, column: str) -> list[str] | None:
    """The names of a Hugging Face ClassLabel column."""
    features = getattr(dataset, "features", None)
    names = getattr(features[column], "names", None) if isinstance(features, Mapping) and column in features else None
    return list(names) if names else None


def _class_names(dataset: Any, label: str) -> list[str] | None:
    names = _feature_names(dataset, label) or getattr(dataset, "classes", None)
    return list(names) if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names) else None


def _pixels(image: Any, channels: int | None, i: int) -> NDArray[np.uint8]:
    """One image as uint8 [H, W, C] at its own size."""
    if isinstance(image, Image.Image):
        gray = channels == 1 or (channels is None and image.mode in GRAY_MODES)
        upright = flat(image)
        return fit(upright, (upright.height, upright.width), 1 if gray else 3)
    tensor = hasattr(image, "detach")
    array = np.asarray(image.detach().cpu().numpy() if tensor else image)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or 0 in array.shape:
        raise InputError(f"An image must have the shape [H, W], [H, W, C] or [C, H, W], got {array.shape} in row {i}")
    if array.shape[0] < array.shape[2] or (tensor and array.shape[0] == array.shape[2]):
        array = array.transpose(1, 2, 0)
    if array.dtype.kind == "f":
        if not (array.min() >= 0 and array.max() <= 1):
            raise InputError(
                f"pixels that are floats must lie in 0..1, got {array.min():g}..{array.max():g} in row {i}; undo the "
                "normalization"
            )
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise InputError(f"pixels must be uint8 or floats in 0..1, got {array.dtype} in row {i}; convert them")
    return np.ascontiguousarray(_converted(array, channels, i))


def _converted(array: NDArray[np.uint8], channels: int | None, i: int) -> NDArray[np.uint8]:
    """Gray to RGB or RGB to gray, if asked for."""
    if channels is None or array.shape[2] == channels:
        return array
    if array.shape[2] == 1:
        return np.repeat(array, channels, axis=2)
    if array.shape[2] == 3:
        return np.asarray(Image.fromarray(np.ascontiguousarray(array)).convert("L"))[:, :, None]
    raise InputError(
        f"An image of {array.shape[2]} channels cannot become one of {channels}, got one in row {i}; leave channels out"
    )


def _sized(array: NDArray[np.uint8], resolution: Resolution | None) -> NDArray[np.uint8]:
    """Scale and crop as ``fit`` does, every channel for itself."""
    if resolution is None:
        return array
    height, width, _ = shape_of(resolution)
    if array.shape[:2] == (height, width):
        return array
    planes = [
        ImageOps.fit(Image.fromarray(np.ascontiguousarray(plane)), (width, height), method=Image.Resampling.BICUBIC)
        for plane in array.transpose(2, 0, 1)
    ]
    return np.stack([np.asarray(plane, dtype=np.uint8) for plane in planes], axis=2)


def _stacked(images: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """All images in one array; gray images become RGB where there are both."""
    sizes = {image.shape[:2] for image in images}
    if len(sizes) > 1:
        some = " and ".join(f"{height}x{width}" for height, width in sorted(sizes)[:2])
        raise InputError(f"All images must have one size, got {some}; give a resolution to scale them to")
    depths = {image.shape[2] for image in images}
    if depths == {1, 3}:
        images = [np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image for image in images]
    elif len(depths) > 1:
        listed = ", ".join(map(str, sorted(depths)))
        raise InputError(f"All images must have the same number of channels, got {listed}; give channels=3 or 1")
    return np.stack(images)
