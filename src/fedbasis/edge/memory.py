"""How much memory a captured graph takes: a bound from the lifetimes of its values."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx


def peak_bytes(graph: fx.GraphModule, batch: int) -> int:
    """Return the largest sum of the bytes of values that are alive at once, in the order of the graph.

    Runtimes reuse memory in place and copy views, so this is a guide, not a promise.

    Args:
        graph: What ``capture`` returned.
        batch: Images of a batch.
    """
    nodes = list(graph.graph.nodes)
    last: dict[fx.Node, int] = {}
    for number, node in enumerate(nodes):
        for source in node.all_input_nodes:
            last[source] = number
    ends: dict[int, list[fx.Node]] = {}
    for node, number in last.items():
        ends.setdefault(number, []).append(node)
    now = peak = 0
    for number, node in enumerate(nodes):
        now += _bytes(node, batch)
        peak = max(peak, now)
        now -= sum(_bytes(done, batch) for done in ends.get(number, []))
    return peak


def _bytes(node: fx.Node, batch: int) -> int:
    value: Any = node.meta.get("val")
    if not isinstance(value, Tensor):
        return 0
    count = 1
    for side in value.shape:
        count *= side if isinstance(side, int) else _at(side, batch)
    return count * value.dtype.itemsize


def _at(side: torch.SymInt, batch: int) -> int:
    expression = side.node.expr
    values: Mapping[Any, int] = dict.fromkeys(expression.free_symbols, batch)
    return int(expression.subs(values))
