"""Payloads come back as they were, and nothing but an error of input comes of changed bytes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, RecordDict

from fedbasis.flower.expected import read_block
from fedbasis.flower.payload import Payload, from_bytes, from_record, pack_state, to_bytes, to_record
from fedbasis.tensors.params import State
from helpers.flower_methods import same
from pflbed.errors import InputError

STATE: State = {"model": {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(7)}, "empty": {}}


class TestParcels:
    def test_come_back_as_they_were(self) -> None:
        sent = [Payload({"run": "ü", "round": 3}, {"loss": 0.5}, pack_state(STATE)), Payload({}), Payload({"a": 1})]
        got = from_record(to_record(sent))
        assert [(p.words, p.numbers, bytes(p.block)) for p in got] == [
            (p.words, p.numbers, bytes(p.block)) for p in sent
        ]
        assert same(read_block(got[0].block), STATE)

    @given(st.integers(0, 10**6), st.binary(max_size=8), st.booleans())
    def test_nothing_but_an_error_of_input_comes_of_changed_bytes(self, place: int, junk: bytes, cut: bool) -> None:
        whole = to_bytes([Payload({"round": 1}, {"loss": 1.0}, pack_state(STATE))])
        place %= len(whole)
        changed = whole[:place] + junk + whole[place if cut else place + len(junk) :]
        try:
            for payload in from_bytes(changed):
                read_block(payload.block)
        except InputError:
            pass

    @pytest.mark.parametrize(
        "content",
        [
            RecordDict(),
            RecordDict({"fedbasis": ArrayRecord({"other": Array("uint8", (1,), "fedbasis", b"x")})}),
            RecordDict({"fedbasis": ArrayRecord({"fedbasis": Array("uint8", (1,), "numpy.ndarray", b"x")})}),
            RecordDict({"fedbasis": ArrayRecord({"fedbasis": Array("uint8", (1,), "fedbasis", b"x")})}),
        ],
    )
    def test_other_messages_are_refused(self, content: RecordDict) -> None:
        with pytest.raises(InputError, match="it must"):
            from_record(content)
