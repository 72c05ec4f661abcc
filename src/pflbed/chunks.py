"""A large array is written and verified in chunks of rows, each with a checksum, so that it can be resumed.

While it is written, the rows are in ``<name>.part``, and a journal lists the finished chunks, one line of JSON each. In
the partial file every chunk has room for all its rows. At the end the gaps of bad rows are removed, the card with all
checksums is written, and the partial file is renamed. Data is used later only if its checksum is right.
"""

import hashlib
import io
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflbed.errors import InputError
from pflbed.files import write_json
from pflbed.foreign import map_array, read_json_lines, read_json_object
from pflbed.workers import cores

MAX_CARD = 512 * 2**20
"""Bytes of a card; one chunk has some hundred."""


@dataclass(frozen=True)
class Chunk:
    """A finished chunk: the sha256 of its good rows' bytes, and its bad rows, each with the reason."""

    sha256: str
    bad: tuple[tuple[int, str], ...]

    @classmethod
    def parse(cls, raw: Any, rows: range) -> "Chunk":
        """Check the JSON of a chunk; raises one of ``ValueError, KeyError, TypeError``."""
        bad = tuple((row, why) for row, why in raw["bad"])
        numbers = [row for row, _ in bad]
        texts = [raw["sha256"], *(why for _, why in bad)]
        if not all(type(row) is int and row in rows for row in numbers) or sorted(set(numbers)) != numbers:
            raise ValueError(f"the bad rows must rise within {rows}, got {numbers}")
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a digest and a reason must be text")
        return cls(raw["sha256"], bad)

    def as_dict(self) -> dict[str, Any]:
        """The JSON that ``parse`` reads."""
        return {"sha256": self.sha256, "bad": self.bad}


class ChunkedArray:
    """The .npy file at ``place`` with ``count`` rows of uint8, and its card; ``head`` identifies the content."""

    def __init__(self, place: Path, count: int, row_shape: tuple[int, ...], rows: int, head: dict[str, Any]) -> None:
        self.place, self.card, self.row_shape = place, place.with_suffix(".json"), row_shape
        self.part, self.journal, self.lock = (
            place.with_name(f"{place.name}.{end}") for end in ("part", "journal", "lock")
        )
        self.head = {**head, "count": count, "shape": list(row_shape), "rows": rows}
        self.spans = [range(first, min(first + rows, count)) for first in range(0, count, rows)]
        self._row_bytes = int(np.prod(row_shape))
        self._begin = len(self._header(count))
        self.slots = [self._begin + span.start * self._row_bytes for span in self.spans]
        """The offset of every chunk in the partial file."""

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Use files of this call only, where there is no lock; they cannot be resumed."""
        own = f"{self.place.name}.{os.urandom(6).hex()}"
        self.part, self.journal = self.place.with_name(f"{own}.part"), self.place.with_name(f"{own}.journal")
        try:
            yield
        finally:
            self.discard()

    def whole(self) -> list[Chunk] | None:
        """All chunks, if the finished file exists and all its checksums are right."""
        chunks = self._read_card()
        if len(chunks) < len(self.spans):
            return None
        packed = self._packed(chunks)
        try:
            with self.place.open("rb") as file:
                right = file.read(self._begin) == self._header((packed[-1] - self._begin) // self._row_bytes)
            right = right and self.place.stat().st_size == packed[-1]
        except OSError:
            return None
        right = right and len(self._verified(self.place, chunks, packed)) == len(chunks)
        return [chunks[i] for i in range(len(self.spans))] if right else None

    def begin(self) -> dict[int, Chunk]:
        """Create the partial file; return the chunks that can be reused from an interrupted run or a damaged file."""
        chunks = self._read_journal()
        if not chunks:
            self.part.unlink(missing_ok=True)  # a worker of a killed run may still write to the old file
        chunks = self._verified(self.part, chunks, self.slots)
        finished = self._read_card()
        packed = self._packed(finished)
        missing = {i: chunk for i, chunk in finished.items() if i not in chunks}
        self.part.touch()
        with self.part.open("r+b") as file:
            file.write(self._header(self.head["count"]))
            file.truncate(self._begin + self.head["count"] * self._row_bytes)
            for i, chunk in self._verified(self.place, missing, packed).items():
                with self.place.open("rb") as old:
                    old.seek(packed[i])
                    file.seek(self.slots[i])
                    file.write(old.read(self._size(i, chunk)))
                chunks[i] = chunk
        self.journal.write_text(json.dumps(self.head) + "\n", encoding="utf-8")
        self.log(chunks)
        return chunks

    def log(self, chunks: dict[int, Chunk]) -> None:
        """Append finished chunks to the journal."""
        with self.journal.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({"chunk": i, **chunk.as_dict()}) + "\n" for i, chunk in chunks.items())

    def finish(self, chunks: dict[int, Chunk]) -> list[Chunk]:
        """Remove the gaps, write the card, and rename the partial file."""
        packed = self._packed(chunks)
        with self.part.open("r+b") as file:
            for i, slot in enumerate(self.slots):
                if packed[i] != slot:
                    file.seek(slot)
                    pixels = file.read(self._size(i, chunks[i]))
                    file.seek(packed[i])
                    file.write(pixels)
            file.truncate(packed[-1])
            file.seek(0)
            file.write(self._header((packed[-1] - self._begin) // self._row_bytes))
            file.flush()
            os.fsync(file.fileno())  # the content must be on disk before the name
        ordered = [chunks[i] for i in range(len(self.spans))]
        # The card is written first: if killed in between, the next run resumes from the partial file and its journal.
        write_json(self.card, {**self.head, "chunks": [chunk.as_dict() for chunk in ordered]})
        self.part.replace(self.place)
        self.discard()
        return ordered

    def discard(self) -> None:
        """Remove the partial file and the journal."""
        self.part.unlink(missing_ok=True)
        self.journal.unlink(missing_ok=True)

    def load(self) -> NDArray[np.uint8]:
        """Memory-map the finished array, read-only."""
        return map_array(self.place, "The cached array", (None, *self.row_shape))

    def _header(self, count: int) -> bytes:
        """The header of an .npy file; numpy pads it for any number of rows, so it can be overwritten."""
        file = io.BytesIO()
        shape = (count, *self.row_shape)
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        return file.getvalue()

    def _size(self, i: int, chunk: Chunk) -> int:
        return (len(self.spans[i]) - len(chunk.bad)) * self._row_bytes

    def _packed(self, chunks: dict[int, Chunk]) -> list[int]:
        """The offset of every chunk in the finished file, and the end of the last one."""
        sizes = [self._size(i, chunk) for i, chunk in sorted(chunks.items())]
        return [self._begin + int(offset) for offset in np.cumsum([0, *sizes])]

    def _verified(self, path: Path, chunks: dict[int, Chunk], offsets: list[int]) -> dict[int, Chunk]:
        """The chunks whose bytes in a file have the right checksum; in threads, because hashing releases the GIL."""
        try:
            content = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError):  # not there, or empty
            return {}

        def right(i: int) -> bool:
            found = content[offsets[i] : offsets[i] + self._size(i, chunks[i])]
            return hashlib.sha256(found.data).hexdigest() == chunks[i].sha256

        with ThreadPoolExecutor(cores()) as pool:
            return {i: chunk for (i, chunk), ok in zip(chunks.items(), pool.map(right, chunks), strict=True) if ok}

    def _read_card(self) -> dict[int, Chunk]:
        """The chunks in the card, or none if it does not match or is damaged."""
        try:
            card = read_json_object(self.card, "The card", MAX_CARD)
            chunks = card.pop("chunks")
            if card != self.head:
                return {}
            return {i: Chunk.parse(raw, rows) for i, (raw, rows) in enumerate(zip(chunks, self.spans, strict=True))}
        except (InputError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _read_journal(self) -> dict[int, Chunk]:
        """The chunks in the journal, up to the first damaged line."""
        chunks: dict[int, Chunk] = {}
        try:
            lines = read_json_lines(self.journal, "The journal")
            if next(lines, None) != self.head:
                return {}
            for raw in lines:
                chunks[range(len(self.spans))[raw["chunk"]]] = Chunk.parse(raw, self.spans[raw["chunk"]])
        except (InputError, ValueError, KeyError, TypeError, IndexError):
            pass
        return chunks
