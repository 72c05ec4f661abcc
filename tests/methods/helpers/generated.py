"""What the tests of methods with generated or remembered models share."""

from typing import Any

from fedbasis.methods.base import Adaptation, Context, Task
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Examples
from fedbasis.networks.models import Network
from fedbasis.serving.personalize import personalize
from fedbasis.tensors.params import State, Tensors


def make_task(recipe: Recipe, norm: str = "none", **settings: Any) -> Task:
    return Task(Network("cnn-small", 3, 12, {"norm": norm, "width": 4}), recipe, 4, **settings)


def new_client(method: Any, server: State, how: str, data: Examples, **plan: Any) -> tuple[Context, Tensors, float]:
    context = Context(7, "new", method.task.network.workspace())
    outcome = personalize(
        method, method.serving.published(server), how, data, context, Adaptation(statistics="frozen", **plan)
    )
    return context, outcome.last.learned, outcome.losses[-1]
