"""A message that claims more than is allowed is not put together."""

import pytest

pytest.importorskip("flwr")

from flwr.app import Array
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedbasis.flower.message_limit import limited
from fedbasis.flower.payload import Payload, to_record
from pflbed.errors import InputError


def test_a_message_that_would_grow_to_ten_gigabytes_is_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    piece = ArrayChunk(memoryview(bytes(2**20)))
    content = to_record([Payload({})])
    monkeypatch.setattr(Array, "slice_array", lambda array: [(piece.object_id, piece)] * 10240)
    pieces = {key: part.deflate() for key, part in get_all_nested_objects(content).items()}
    assert sum(map(len, pieces.values())) < 2**21
    with limited(2**24), pytest.raises(InputError, match="at most 16777216 bytes, but one array has 10737418240"):
        inflate_object_from_contents(content.object_id, pieces)
