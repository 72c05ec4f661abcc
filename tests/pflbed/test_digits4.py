"""The embedded dataset is what it says: four domains, ten digits, no source in two places, the same every time."""

from pathlib import Path

import numpy as np
import pytest

from pflbed import Spec, build
from pflbed.benchmark import SPLITS
from pflbed.cache import Decoded, cache_dir
from pflbed.sources import digits4
from pflbed.sources.typeset import faces


@pytest.fixture(scope="module")
def made() -> Decoded:
    """As any process of this session has made it."""
    return digits4.make()


def test_every_domain_has_enough_of_every_digit(made: Decoded) -> None:
    assert made.images.shape == (len(made.table), 28, 28, 3)
    assert made.images.dtype == np.uint8
    assert made.table.domain_names == ("mnist", "uci", "photo", "typeset")
    for number in range(4):
        counts = np.bincount(made.table.labels[made.table.domains == number], minlength=10)
        assert counts.sum() >= 1500
        assert counts.min() >= 100
    assert (made.table.domains == 1).sum() == 1797


def test_every_image_shows_something_and_domains_look_different(made: Decoded) -> None:
    assert made.images.astype(np.float64).std(axis=(1, 2, 3)).min() > 5
    means = [made.images[made.table.domains == number].astype(np.float64) for number in range(4)]
    colour = [np.abs(images[..., 0] - images[..., 2]).mean() for images in means]
    assert colour[0] == colour[1] == 0
    assert min(colour[2:]) > 5
    for digit in range(10):  # a digit's mean image is not that of all digits
        rows = (made.table.labels == digit) & (made.table.domains == 0)
        assert np.abs(made.images[rows].mean(axis=0) - means[0].mean(axis=0)).max() > 40


def test_no_image_is_repeated(made: Decoded) -> None:
    assert len({image.tobytes() for image in made.images}) == len(made.images)


def test_no_source_stands_in_two_domains(made: Decoded) -> None:
    assert made.table.groups is not None
    owners: dict[str, set[int]] = {}
    for group, domain in zip(made.table.groups, made.table.domains, strict=True):
        owners.setdefault(group, set()).add(int(domain))
    assert all(len(domains) == 1 for domains in owners.values())
    assert len([group for group in owners if group.startswith("mnist:")]) == 4000


def test_no_source_stands_in_two_splits(made: Decoded) -> None:
    bench = build(made.table, Spec())
    assert made.table.groups is not None
    seen: dict[str, set[str]] = {}
    for group, split in zip(made.table.groups, bench.split, strict=True):
        seen.setdefault(group, set()).add(SPLITS[split])
    assert all(len(splits - {"unused"}) <= 1 for splits in seen.values())
    assert (bench.split == "unused").sum() <= 100
    assert len(bench.participating) == 80
    assert len(bench.new) == 40


def test_typefaces_are_digits_of_different_designs() -> None:
    names = [face.name for face in faces()]
    assert len(names) == len(set(names)) >= 15
    assert not any(name.startswith(("cmex", "cmsy", "LastResort")) for name in names)


def test_a_damaged_cache_is_not_trusted(made: Decoded, tmp_path: Path) -> None:
    cache = cache_dir()
    content, card = (cache / "digits4-v1.npy").read_bytes(), (cache / "digits4-v1.json").read_text()
    damaged = (
        (content[:-1000], card),
        (content[:-1] + bytes([content[-1] ^ 1]), card),
        (content, card.replace('"mnist:', '"other:', 1)),
        (content, card[:-100]),
        (b"", card),
    )
    for array, text in damaged:
        (tmp_path / "digits4-v1.npy").write_bytes(array)
        (tmp_path / "digits4-v1.json").write_text(text)
        assert digits4.read_cached(tmp_path) is None
    kept = digits4.read_cached(cache)
    assert kept is not None
    assert np.array_equal(kept.images, made.images)


def test_made_again_it_is_the_same(made: Decoded, tmp_path: Path) -> None:
    (tmp_path / "digits4-v1.npy").write_bytes(b"cut short")
    (tmp_path / "digits4-v1.json").write_text("{}")
    steps: list[tuple[int, int]] = []
    again = digits4.make(tmp_path, progress=lambda done, total: steps.append((done, total)))
    assert [done for done, _ in steps] == [2000, 3797, 5797, 7797]
    assert steps[-1] == (7797, 7797)
    assert again.table.digest == made.table.digest
    assert again.table.paths == made.table.paths
    assert np.array_equal(again.images, made.images)
    assert digits4.make(tmp_path, progress=lambda done, total: steps.append((done, total))).table.groups
    assert len(steps) == 4
