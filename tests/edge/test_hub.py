"""Folders for a model hub: the artifact and a model card."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import fedbasis as fb
from fedbasis.edge.hub import export_hub
from fedbasis.networks.models import Network
from fedbasis.serving import artifact
from pflbed.errors import InputError
from serving.artifacts import bases_of, card_of


def front_matter(path: Path) -> tuple[dict[str, Any], str]:
    _, head, body = path.read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(head), body


def test_bases_with_a_model_card(tiny: Network, tmp_path: Path) -> None:
    provenance = {"rounds": 20, "clients": 8}
    artifact.save(tmp_path / "bases", bases_of(tiny), card_of(tiny, provenance=provenance))
    (tmp_path / "bases" / "edge.json").write_text("{}")
    made = export_hub(tmp_path / "bases", tmp_path / "hub", license_name="cc-by-4.0", datasets=["flwrlabs/pacs"])
    head, body = front_matter(made)
    assert head == {
        "license": "cc-by-4.0",
        "library_name": "fedbasis",
        "pipeline_tag": "image-classification",
        "tags": ["federated-learning", "personalization", "image-classification", "fedbasis"],
        "metrics": ["accuracy"],
        "datasets": ["flwrlabs/pacs"],
    }
    for text in ("# FedBasis bases", "| Rounds | 20 |", "cnn-small, 12 x 12", "circle, cross, square", "personalize"):
        assert text in body
    names = {path.name for path in (tmp_path / "hub").iterdir()}
    assert names == {"card.json", "tensors.safetensors", "edge.json", "README.md"}
    loaded = fb.load(tmp_path / "hub")
    assert isinstance(loaded, fb.Trained)


def test_a_model_whose_card_holds_anything(tiny: Network, tmp_path: Path) -> None:
    """Texts of a card stay texts: neither the front matter nor the table can be changed by them."""
    state = {"": artifact.whole_model(tiny, tiny.initial(0))}
    provenance = {"before": 0.5, "after": 0.75, "personalized_by": "lp\n---\nlicense: mit"}
    names = ["a|b", "c\n# d", "<script>"]
    artifact.save(tmp_path / "m", state, card_of(tiny, kind="model", classes=names, provenance=provenance, settings={}))
    head, body = front_matter(export_hub(tmp_path / "m", tmp_path / "hub"))
    assert head["license"] == "unknown"
    assert "datasets" not in head
    assert "0.500 before, 0.750 after" in body
    assert "can tell something about the images" in body
    assert "\n# d" not in body
    assert "<script>" not in body
    assert "a\\|b" in body
    with pytest.raises(InputError, match="must not exist yet"):
        export_hub(tmp_path / "m", tmp_path / "hub")
    (tmp_path / "m" / "tensors.safetensors").write_bytes(b"cut")
    with pytest.raises(InputError, match="must be whole safetensors"):
        export_hub(tmp_path / "m", tmp_path / "other")
    assert not (tmp_path / "other").exists()
