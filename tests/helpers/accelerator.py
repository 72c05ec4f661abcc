"""A stand-in for a GPU: torch's ``meta`` device, where tensors have shapes and no numbers.

Operations that mix it with the CPU raise, as on a GPU. What a GPU allows and ``meta`` does not, copying numbers back to
the CPU, gives ones here, and is counted: every such copy makes the program wait for the device.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedbasis.tensors.params import State

DEVICE = "meta"


def on_device(state: State) -> State:
    """Return a state with its tensors on the device."""
    return {group: {name: tensor.to(DEVICE) for name, tensor in named.items()} for group, named in state.items()}


def _there(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE


class Accelerator(TorchDispatchMode):
    """Counts what goes to the device (``sent``), what comes back (``fetched``), and steps that wait (``scalars``)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.pixels_sent = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count copies between the devices, and make those that ``meta`` refuses."""
        given = dict(kwargs or {})
        if func is torch.ops.aten._to_copy.default:
            goal = given.get("device")
            if _there(args[0]) and goal is not None and torch.device(goal).type == "cpu":
                self.counts["fetched"] += 1
                return torch.ones(args[0].shape, dtype=given.get("dtype") or args[0].dtype)
            if not _there(args[0]) and goal is not None and torch.device(goal).type == DEVICE:
                self.counts["sent"] += 1
                self.pixels_sent += args[0].numel() * (args[0].dtype == torch.uint8)
        if func is torch.ops.aten.copy_.default and _there(args[0]) != _there(args[1]):
            self.counts["sent" if _there(args[0]) else "fetched"] += 1
            return args[0] if _there(args[0]) else args[0].fill_(1)
        if func is torch.ops.aten._local_scalar_dense.default and _there(args[0]):
            self.counts["scalars"] += 1
            return 1.0 if args[0].is_floating_point() else 1
        if func is torch.ops.aten.equal.default and _there(args[0]) and _there(args[1]):
            self.counts["scalars"] += 1
            return True
        if func is torch.ops.aten._fused_sgd_.default:
            assert len({tensor.device for group in args[:3] for tensor in group}) <= 1, "a step on two devices"
            if any(map(_there, args[0])):
                return None  # torch has no rule for its shapes; they stay as they are
        return func(*args, **given)

    def __enter__(self) -> Self:
        """Count from zero."""
        self.counts.clear()
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]
