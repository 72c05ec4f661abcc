"""Published bases and a personal model of the tiny network."""

from pathlib import Path

import pytest

from fedbasis.networks.models import Network
from fedbasis.serving import artifact
from serving.artifacts import bases_of, card_of


@pytest.fixture
def bases(tmp_path: Path, tiny: Network) -> Path:
    artifact.save(tmp_path / "bases", bases_of(tiny), card_of(tiny))
    return tmp_path / "bases"


@pytest.fixture
def model(tmp_path: Path, tiny: Network) -> Path:
    state = {"": artifact.whole_model(tiny, tiny.initial(0))}
    artifact.save(tmp_path / "model", state, card_of(tiny, kind="model", settings={}))
    return tmp_path / "model"
