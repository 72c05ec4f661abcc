"""A published folder with a model card, ready for a model hub: ``fedbasis export FOLDER --to hub``.

The folder holds the artifact as it is, the graphs of ``--to edge`` if they are there, and ``README.md`` with the YAML
front matter that the Hugging Face Hub reads. ``fedbasis.load("hf://org/name@revision")`` reads such a folder back.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from fedbasis.edge.bundle import FILES
from fedbasis.edge.model import new_folder
from fedbasis.networks.models import NetworkSource, sides
from fedbasis.serving import artifact
from fedbasis.serving.new_client import bases_at
from fedbasis.serving.personalize import label
from pflbed.errors import InputError
from pflbed.plain_text import printable

README = "README.md"
UNKNOWN = "unknown"


def export_hub(
    source: Path,
    out: Path,
    *,
    license_name: str = UNKNOWN,
    datasets: list[str] | None = None,
    overwrite: bool = False,
    trust: bool = False,
    network: NetworkSource | None = None,
) -> Path:
    """Copy bases or a personal model into a new folder, with a model card.

    Args:
        source: The artifact, or a run folder that holds bases.
        out: The folder to write.
        license_name: The license of the tensors, by its identifier on the hub.
        datasets: Names of the data sets they were trained on, as the hub knows them.
        overwrite: Whether a folder that is there already is replaced.
        trust: Whether code that the folder names may be run.
        network: Your own network, in place of the one that the card names.

    Returns:
        The model card.
    """
    if out.exists() and not overwrite:
        raise InputError(
            f"The output {out} must not exist yet, but it does; choose another name, or replace it with --overwrite."
        )
    folder = bases_at(source)
    card = artifact.read_card(folder)
    artifact.load(folder, card.kind, trust, network)  # a damaged artifact is not published
    with new_folder(out) as made:
        for name in (artifact.CARD, artifact.TENSORS, *FILES):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, made / name)
        (made / README).write_text(model_card(card, license_name, datasets or []), encoding="utf-8")
    return out / README


def front_matter(card: artifact.Card, license_name: str, datasets: list[str]) -> dict[str, Any]:
    """Return what the hub reads about a folder."""
    made: dict[str, Any] = {
        "license": license_name,
        "library_name": "fedbasis",
        "pipeline_tag": "image-classification",
        "tags": ["federated-learning", "personalization", "image-classification", card.method],
        "metrics": ["accuracy"],
    }
    return made | ({"datasets": datasets} if datasets else {})


def model_card(card: artifact.Card, license_name: str, datasets: list[str]) -> str:
    """Return the text of ``README.md``; texts of the card are quoted, so that they cannot change its structure."""
    lines = ["---"]
    for key, value in front_matter(card, license_name, datasets).items():
        values = value if isinstance(value, list) else None
        lines += [f"{key}: {_quoted(value)}"] if values is None else [f"{key}:", *(f"- {_quoted(v)}" for v in values)]
    lines.append("---\n")
    way = str(card.provenance.get("personalized_by", "none"))
    title = f"{label(card.method, 'none')} bases" if card.kind == "bases" else f"Personal model ({way})"
    height, width = sides(card.architecture.resolution)
    facts = {
        "Method": card.method,
        "Network": f"{card.architecture.name}, {height} x {width} pixels, {card.architecture.channels} channels",
        "Classes": ", ".join(card.classes),
        "Made with": f"fedbasis {card.version}",
        "sha256 of the tensors": card.sha256,
    }
    names = {"rounds": "Rounds", "clients": "Clients", "images": "Training images", "held_out": "Held-out images"}
    facts |= {names[key]: str(card.provenance[key]) for key in names if key in card.provenance}
    lines += [f"# {_text(title)}\n", USES[card.kind], "| | |", "| --- | --- |"]
    lines += [f"| {key} | {_text(value)} |" for key, value in facts.items()]
    before, after = (card.provenance.get(key) for key in ("before", "after"))
    if isinstance(before, float) and isinstance(after, float):
        lines.append(f"\nAccuracy on the client's held-out images: {before:.3f} before, {after:.3f} after.")
    if card.kind == "model":
        lines.append("\nA personal model can tell something about the images that it was fitted to.")
    return "\n".join(lines) + "\n"


USES = {
    "bases": "Shareable basis models for image classification. A new client learns how to combine them from a few "
    "images of its own:\n\n```bash\nfedbasis personalize FOLDER --data IMAGES --out MODEL\n```\n",
    "model": "An image classifier that was fitted to one client's images:\n\n```bash\nfedbasis predict FOLDER "
    "IMAGES...\n```\n",
}


def _text(value: str) -> str:
    return " ".join(printable(value).split()).replace("|", "\\|").replace("<", "&lt;")


def _quoted(value: str) -> str:
    """Quote a text for YAML, whose double-quoted texts include those of JSON."""
    return json.dumps(printable(value), ensure_ascii=False)
