"""What travels to workers: classes and functions of a script by value, tensors as plain bytes."""

import subprocess
import sys
from typing import Any

import torch
from torch import nn

from fedbasis.engines.transport import dumps, loads


def test_what_a_script_defines_travels_by_value() -> None:
    script: dict[str, Any] = {"__name__": "__main__"}
    exec("class Thing:\n    value = 3\n\ndef twice(x):\n    return 2 * x", script)
    path = [entry for entry in sys.path if entry]
    code = (
        f"import sys; sys.path[:0] = {path!r}\n"
        "from fedbasis.engines.transport import loads\n"
        "thing, twice = loads(sys.stdin.buffer.read())\n"
        "print(twice(thing.value))"
    )
    data = dumps((script["Thing"](), script["twice"]))
    assert subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True).stdout == b"6\n"


def test_a_module_travels_as_bytes_and_shares_nothing() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    next(module[2].parameters()).requires_grad_(False)
    data = dumps(module)
    again = loads(data)
    assert data.find(module.state_dict()["0.weight"].numpy().tobytes()) > 0
    for (name, one), (other_name, other) in zip(module.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other_name
        assert torch.equal(one, other)
        assert one.data_ptr() != other.data_ptr()
    assert not any(tensor.is_shared() for tensor in again.state_dict().values())
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in module.parameters()]
