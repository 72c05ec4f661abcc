"""A configuration to start from, for a folder of images: what is in it decides clients, resolution and network.

Every key of the file is explained by a comment made from the field's own description, and so is the reference of all
keys. Both come from the classes that check a configuration, so they cannot differ from it.
"""

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedbasis.experiment.config import Experiment
from fedbasis.methods import METHODS
from pflbed import InputError, scan
from pflbed.images import open_file
from pflbed.table import Table

SAMPLE = 200
"""So many images are opened to find out how large they are."""
PER_CLIENT = 40
"""So many images a client should have, where there are enough."""


@dataclass(frozen=True)
class FolderSummary:
    """What a folder ``<domain>/<class>/<image>`` holds."""

    table: Table
    side: int
    """The median of the images' shorter sides."""

    @property
    def text(self) -> str:
        """Describe it in a sentence."""
        table = self.table
        return (
            f"{len(table):,} images, {len(table.domain_names)} domains ({', '.join(table.domain_names[:6])}), "
            f"{len(table.class_names)} classes ({', '.join(table.class_names[:6])}"
            f"{', ...' if len(table.class_names) > 6 else ''}), about {self.side} pixels"
        )


def look_into(folder: Path) -> FolderSummary:
    """Read a folder's names, and open a few images to find out their size."""
    table = scan(folder)
    step = max(1, len(table) // SAMPLE)
    sides = []
    for path in islice(table.paths[::step], SAMPLE):
        try:
            with open_file(folder, path) as image:
                sides.append(min(image.size))
        except (OSError, ValueError, SyntaxError):
            continue
    if not sides:
        raise InputError(f"The images in {folder} must be readable, but none of {SAMPLE} tried is; check the files.")
    return FolderSummary(table, int(statistics.median(sides)))


def starter(folder: Path, found: FolderSummary) -> str:
    """Write a commented configuration for a folder."""
    table = found.table
    smallest = min(int((table.domains == number).sum()) for number in range(len(table.domain_names)))
    clients = max(2, min(20, int(0.6 * smallest) // PER_CLIENT))
    new = max(1, min(10, int(0.2 * smallest) // PER_CLIENT))
    resolution = 32 if found.side <= 48 else 64 if found.side <= 128 else 96
    chosen: dict[str, dict[str, Any]] = {
        "data": {"source": str(folder), "resolution": resolution, "clients": clients, "new_clients": new},
        "model": {"name": "resnet10", "options": {"width": 16}, "weights": "tiny-imagenet"},
        "train": {"rounds": 20, "epochs": 2, "batch": 16, "augment": "flip+shift"},
        "personalize": {"epochs": 20, "rates": [0.005, 0.01, 0.05]},
        "method": {"name": "fedbasis", "bases": min(4, clients * len(table.domain_names))},
    }
    lines = [
        f"# {found.text}.",
        "# Start it with: fedbasis train THIS_FILE    All keys: fedbasis train --keys",
        "seed = 0",
    ]
    for section, values in chosen.items():
        fields = _fields(section)
        lines += ["", f"[{section}]"]
        for key, value in values.items():
            about = fields[key].description if key in fields else "which method; see 'fedbasis methods'"
            lines += [f"# {about}", f"{key} = {toml_value(value)}"]
    return "\n".join(lines) + "\n"


def _fields(section: str) -> Mapping[str, FieldInfo]:
    if section == "method":
        return METHODS["fedbasis"].Config.model_fields
    kind = Experiment.model_fields[section].annotation
    return kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}


def keys() -> Iterator[tuple[str, str, str, str]]:
    """List every key of a configuration: its table, its name, its default, and what it means."""
    yield "", "seed", "0", str(Experiment.model_fields["seed"].description)
    for section, field in Experiment.model_fields.items():
        kind = field.annotation
        if section != "method" and isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from ((section, key, _default(about), _meaning(about)) for key, about in kind.model_fields.items())
    yield "method", "name", "required", "which method; see 'fedbasis methods'"
    for name, method in METHODS.items():
        for key, about in method.Config.model_fields.items():
            yield f"method (name = '{name}')", key, _default(about), _meaning(about)


def _default(about: FieldInfo) -> str:
    if about.is_required():
        return "required"
    return "unset" if about.default is None else toml_value(about.default)


def _meaning(about: FieldInfo) -> str:
    choices = get_args(about.annotation) if get_origin(about.annotation) is Literal else ()
    listed = f"one of {', '.join(toml_value(choice) for choice in choices)}" if choices else ""
    return "; ".join(filter(None, (about.description or "", listed)))


def toml_value(value: Any) -> str:
    """Write a plain value as TOML does."""
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{key} = {toml_value(inner)}" for key, inner in value.items()) + " }" if value else "{}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
