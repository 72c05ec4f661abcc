"""The wire format of protocol buffers, as far as ONNX files need it: fields are read one by one, within bounds.

The packages onnx and protobuf are not needed, and nothing of a file is believed before it was looked at.
"""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Kinds of values."""


class FormatError(ValueError):
    """Bytes are no message."""


def fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield the fields of a message: number, kind, and an integer (for ``VARINT``) or bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise FormatError("a field has the number 0")
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, at = _varint(data, at)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise FormatError(f"a field has kind {kind}")
        if length > len(data) - at:
            raise FormatError("a field is longer than its message")
        yield number, kind, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at + place >= len(data):
            raise FormatError("a number is cut short")
        byte = data[at + place]
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value & (2**64 - 1), at + place + 1
    raise FormatError("a number is too long")


def integers(kind: int, value: int | memoryview) -> Iterator[int]:
    """Yield the numbers of a repeated field, packed or not, with their sign."""
    if kind == VARINT and isinstance(value, int):
        yield _signed(value)
        return
    assert isinstance(value, memoryview)
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield _signed(number)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def field(number: int, data: bytes) -> bytes:
    """Return a field of bytes."""
    return varint(number << 3 | BYTES) + varint(len(data)) + data


def varint(number: int) -> bytes:
    """Return a number."""
    made = bytearray()
    while True:
        number, low = number >> 7, number & 127
        made.append(low | (128 if number else 0))
        if not number:
            return bytes(made)
