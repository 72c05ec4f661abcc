"""The worker of this process."""

from battery import make
from fedbasis.engines.base import Result, WorkerContext
from fedbasis.engines.in_process import InProcess
from fedbasis.networks.batches import Recipe
from fedbasis.tensors.params import State


def test_the_cache_of_another_shared_state_is_dropped(recipe: Recipe) -> None:
    here = InProcess(make("fedavg", recipe))

    def remember(worker: WorkerContext, shared: State, item: int) -> Result:
        known = dict(worker.cache)
        worker.cache["seen"] = item
        return {}, known

    assert [rest for _, rest in here.run(remember, {}, [1, 2], ["a", "b"])] == [{}, {"seen": 1}]
    assert [rest for _, rest in here.run(remember, {}, [3], ["c"])] == [{}]
