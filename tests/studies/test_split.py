"""FEMNIST's label mismatch, from files in LEAF's layout."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedbasis.studies import STUDIES
from fedbasis.studies.base import Results, Setup
from fedbasis.studies.scales import SCALES
from pflbed.dataset import find
from pflbed.errors import InputError
from pflbed.mismatch import halved_users


def leaf(folder: Path, **writers: list[int]) -> None:
    data = {name: {"x": [[0.5] * 784 for _ in labels], "y": labels} for name, labels in writers.items()}
    content = {"users": list(data), "num_samples": [len(labels) for labels in writers.values()], "user_data": data}
    (folder / "all_data").mkdir(parents=True)
    (folder / "all_data" / "all_data_0.json").write_text(json.dumps(content))


def test_the_mismatch_of_writers_is_that_of_their_halves(tmp_path: Path) -> None:
    leaf(tmp_path, same=[3] * 6, two=[1, 2], alone=[5])
    found, writers = halved_users(find(str(tmp_path), "femnist").table)
    assert writers == 3
    assert found == pytest.approx((0 + 2 + 0) / 3)  # one class; a class in each half; a single image is in both


def test_it_is_between_none_and_all_and_depends_on_the_seed_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    leaf(tmp_path, **{f"w{i}": rng.integers(0, 62, 40).tolist() for i in range(30)})
    table = find(str(tmp_path), "femnist").table
    found, _ = halved_users(table)
    assert 0.5 < found < 2
    assert halved_users(table) == (found, 30)
    assert halved_users(table, seed=1)[0] != found


def test_split_has_the_row_if_the_files_are_given(tmp_path: Path) -> None:
    leaf(tmp_path, two=[1, 2], three=[1, 1, 2])
    study = STUDIES["split"]
    section = study.chapter(Setup(SCALES["smoke"], places={"femnist": str(tmp_path)}), Results({}))
    rows = {head.text: [cell.text for cell in cells] for head, cells in section.tables[0].rows}
    measured = halved_users(find(str(tmp_path), "femnist").table)[0]
    assert rows["FEMNIST, every writer a client (LEAF)"] == ["–", f"{measured:.4f}", "0.77"]
    assert any("2 writers" in line for line in section.text)
    without = study.chapter(Setup(SCALES["smoke"]), Results({}))
    assert not [head for head, _ in without.tables[0].rows if "FEMNIST" in head.text]
    assert any("--data femnist=FOLDER" in line for line in without.text)


def test_a_table_without_users_is_refused() -> None:
    with pytest.raises(InputError, match="names no users"):
        halved_users(find("digits4").table)
