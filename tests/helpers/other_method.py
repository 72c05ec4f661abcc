"""Workers that are shared by many methods: each imports torch, so the method travels with the item."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedbasis.engines.base import Result, WorkerContext, Workers, WorkFunction
from fedbasis.methods.base import Method
from fedbasis.tensors.params import State


@dataclass(frozen=True)
class MethodItem:
    """An item of any method's task."""

    method: Method
    function: WorkFunction
    item: Any


def do_with_method(_: WorkerContext, shared: State, item: MethodItem) -> Result:
    return item.function(WorkerContext(item.method), shared, item.item)


class ForMethod:
    """Workers with another method than theirs."""

    def __init__(self, workers: Workers, method: Method) -> None:
        self._workers, self._method, self.same_disk = workers, method, workers.same_disk

    def run(
        self, function: WorkFunction, shared: State, items: Sequence[Any], names: Sequence[str]
    ) -> Iterator[Result]:
        return self._workers.run(
            do_with_method, shared, [MethodItem(self._method, function, item) for item in items], names
        )

    def close(self) -> None:
        self._workers.close()

    def peak_memory(self) -> int:
        return self._workers.peak_memory()
