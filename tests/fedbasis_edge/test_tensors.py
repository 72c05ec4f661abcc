"""safetensors files without the package of that name."""

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from fedbasis_edge.tensors import parse, serialize
from pflbed.errors import InputError

ARRAYS: dict[str, Any] = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.array(2.5, dtype=np.float32),
    "count": np.array(7, dtype=np.int64),
    "empty": np.zeros((0, 3), dtype=np.float32),
    "ü": np.ones(3, dtype=np.float32),
}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name]) for name in one
    )


def test_what_is_written_is_read_by_the_package_and_the_other_way_round() -> None:
    assert same(load(serialize(ARRAYS)), ARRAYS)
    assert same(parse(save(ARRAYS), "the file"), ARRAYS)
    assert same(parse(serialize(ARRAYS), "the file"), ARRAYS)


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' + b" " * 7 + b"x",
        b"[]",
    ],
)
def test_a_header_that_does_not_fit_is_refused(header: bytes) -> None:
    with pytest.raises(InputError, match=r"the file|The header of the file"):
        parse(len(header).to_bytes(8, "little") + header + bytes(4), "the file")


@pytest.mark.parametrize(
    "data", [b"", b"\x02", (2**63).to_bytes(8, "little") + b"{}", (9).to_bytes(8, "little") + b"{}"]
)
def test_a_file_that_is_cut_short_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="its header does not fit"):
        parse(data, "the file")
