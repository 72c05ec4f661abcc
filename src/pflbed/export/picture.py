"""The exported image of a row: its file, byte for byte, or a PNG if it has no file of its own."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path

from pflbed.dataset import Dataset
from pflbed.errors import InputError
from pflbed.folders import SUFFIXES
from pflbed.images import UNREADABLE, careful, flat, reason
from pflbed.safe_paths import inside


@dataclass(frozen=True)
class Picture:
    """An image file; exactly one of ``file`` and ``png`` is set."""

    name: str
    """A file name with an image's suffix; not checked for anything else, see ``safe_name``."""
    file: Path | None = None
    """Inside the data folder, links followed."""
    png: bytes = b""

    def content(self) -> bytes:
        """The bytes of an image file."""
        return self.png if self.file is None else self.file.read_bytes()


def picture(dataset: Dataset, path: str) -> Picture:
    """Open a row's image; only the header is read of one that is a file."""
    try:
        with careful(), dataset.source.open_image(dataset.root, path) as image:
            # Pillow says which file an image was opened from. What a source makes from records has no file name, and
            # a file that happens to have the record's path is not taken for it.
            if opened := getattr(image, "filename", ""):
                file = inside(dataset.root, str(Path(os.fsdecode(opened)).absolute()))
                return Picture(_file_name(path, image.format or ""), file)
            stream = io.BytesIO()
            flat(image).save(stream, "png")
    except InputError:
        raise
    except (*UNREADABLE, KeyError) as error:
        raise InputError(
            f"Every image of a benchmark must be readable, but {path[:200]!r} in {dataset.root} is not "
            f"({reason(error, dataset.root)}); restore it, give its folder with --data, or build the benchmark again"
        ) from error
    # Records of different files often have the same number, so the whole path is the name.
    return Picture(f"{path.replace('/', '__')}.png", png=stream.getvalue())


def _file_name(path: str, kind: str) -> str:
    """Add a suffix where there is none, as tools go by it."""
    name = path.rpartition("/")[2]
    if Path(name).suffix.lower() in SUFFIXES or not kind:
        return name
    return f"{name}.{'jpg' if kind in ('JPEG', 'MPO') else kind.lower()}"
