"""One colour means one thing: contrast on both pages, colour-blind readers, and curves that never hide each other."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedbasis.report.colors import OTHERS, OWN_COLOR, SOLID, family_colors, method_styles, shades
from fedbasis.report.figures import Line, apart
from fedbasis.report.svg import Sheet, style
from fedbasis.report.training import TOGETHER, training
from helpers.report_page import groups_of, write_run
from pflbed.plots import COLORS, MARKERS, bubble_sizes, domain_style

PAGES = ("#ffffff", "#fbfbfa", "#1b1f25", "#14171b")
"""Cards and pages, light and dark, as in page.css."""
BLIND = {  # Machado, Oliveira and Fernandes (2009), full severity
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
Vector = NDArray[np.float64]


def linear(color: str) -> Vector:
    parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    light: Vector = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return light


def contrast(first: str, second: str) -> float:
    dark, light = sorted(float(linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (first, second))
    return (light + 0.05) / (dark + 0.05)


def lab(light: Vector) -> Vector:
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    white = matrix @ np.clip(light, 0, 1) / [0.9505, 1.0, 1.089]
    x, y, z = np.where(white > 0.008856, np.cbrt(white), 7.787 * white + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("color", [OWN_COLOR, *OTHERS, *COLORS])
def test_every_colour_is_seen_on_light_and_on_dark(color: str) -> None:
    assert min(contrast(color, page) for page in (PAGES[0], PAGES[2], PAGES[3])) >= 3
    assert contrast(color, PAGES[1]) >= 2.95


def test_shades_of_the_text_are_seen_too() -> None:
    for ink, page in (("#1c2128", "#ffffff"), ("#e4e8ed", "#1b1f25")):
        mixed = [
            round(shades(3)[0] * int(ink[i : i + 2], 16) + (1 - shades(3)[0]) * int(page[i : i + 2], 16))
            for i in (1, 3, 5)
        ]
        assert contrast("#{:02x}{:02x}{:02x}".format(*mixed), page) >= 3


@pytest.mark.parametrize("kind", BLIND)
def test_solid_lines_differ_for_colour_blind_readers(kind: str) -> None:
    seen = {color: lab(np.array(BLIND[kind]) @ linear(color)) for color in (OWN_COLOR, *OTHERS[:SOLID])}
    assert min(np.linalg.norm(seen[a] - seen[b]) for a, b in combinations(seen, 2)) > 12


def test_methods_keep_their_colour_and_fedbasis_has_its_own(tmp_path: Path) -> None:
    names = ["fedavg", "ditto", "fedrep", "fedbn", "knn-per", "pfedhn", "fedprox", "fedbasis"]
    groups = groups_of([write_run(tmp_path / name, name, {}) for name in names])
    styles = [method_styles(groups)[group.anchor] for group in groups]
    assert styles[-1].color == OWN_COLOR
    assert OWN_COLOR not in {one.color for one in styles[:-1]}
    assert len({(one.color, one.dash) for one in styles}) == len(names)
    assert [one.dash for one in styles[:SOLID]] == ["-"] * SOLID
    assert not set(COLORS) & {OWN_COLOR, *OTHERS}
    assert family_colors(["FedBasis, rate 1", "Ditto"]) == {"FedBasis, rate 1": OWN_COLOR, "Ditto": OTHERS[0]}


def test_every_figure_of_training_has_fedbasis_and_the_strongest_other(tmp_path: Path) -> None:
    names = [f"method{i}" for i in range(9)]
    runs = [write_run(tmp_path / name, name, {"ft": [0.1 * i] * 4}) for i, name in enumerate(names)]
    runs.append(write_run(tmp_path / "own", "fedbasis", {"coefficients": [0.2] * 4}))
    with style():
        panels = training(groups_of(runs), Sheet())
    named = [[key.name for key in panel.legend] for panel in panels]
    assert len(named) == 2
    assert all(mine[:2] == ["FedBasis", "method8"] and len(mine) <= TOGETHER for mine in named)
    assert {name for mine in named for name in mine} == {*names, "FedBasis"}


def test_equal_curves_are_dashed_in_turns() -> None:
    nan = float("nan")
    same = [Line([1, 2, 3], [nan, 1.0, 2.0], color=color) for color in OTHERS[:2]]
    drawn = apart([*same, Line([1, 2, 3], [nan, 1.0, 3.0])])
    assert drawn[2].dash == "-"
    assert [line.dash for line in drawn[:2]] == [(0.0, (5.0, 5.0)), (5.0, (5.0, 5.0))]


def test_domains_differ_in_colour_and_shape() -> None:
    assert len({domain_style(i) for i in range(24)}) == 24
    colors, shapes = zip(*(domain_style(i) for i in range(6)), strict=True)
    assert (len(set(colors)), len(set(shapes))) == (6, 6)
    assert set(shapes) <= set(MARKERS)
    sizes = bubble_sizes(71)
    assert list(sizes) == [1, 10, 71]
    assert list(sizes.values()) == sorted(sizes.values())
