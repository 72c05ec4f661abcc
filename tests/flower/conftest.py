"""A federation's folder with two nodes."""

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedbasis.flower.project import Project, create
from helpers.cli_images import CLASSES, write_images


@pytest.fixture
def project(tmp_path: Path) -> Project:
    experiment = {"data": {"resolution": 12}, "train": {"rounds": 2, "epochs": 1}, "method": {"name": "ditto"}}
    images = write_images(tmp_path / "images", 4)
    return create(tmp_path / "project", experiment, {"a": str(images), "b": str(images)}, {}, CLASSES)
