"""Training alone against torch's own SGD."""

import torch
from torch import nn

from fedbasis.methods.base import Adaptation, Context, Task
from fedbasis.networks import batches as drawn
from fedbasis.serving.personalize import personalize
from methods.helpers.linear import SEED, build, clients, equal, run
from shapes import shapes_examples


class TestLocal:
    def test_equals_one_training_after_another_of_torch(self, task: Task) -> None:
        """Against torch's own SGD on an ordinary module, a fresh one for every round in which the client is drawn."""
        data = clients(2)
        server, kept, log = run(build("local", task), data, [["c0", "c1"], ["c1"], ["c0"]])
        assert equal(server["model"], task.initial(SEED))
        assert all(sent.tensors == {} for round_ in log for sent in round_.values())
        module = task.network.build(SEED).train()
        recipe = task.recipe
        for number in (0, 2):
            optimizer = torch.optim.SGD(module.parameters(), recipe.rate, recipe.momentum, weight_decay=recipe.decay)
            generator = Context(SEED, "c0", task.network.workspace(), number).generator("batches")
            for _ in range(recipe.epochs):
                for rows in drawn.batches(len(data["c0"]), recipe.batch, generator):
                    optimizer.zero_grad()
                    logits = module(recipe.preprocessing(data["c0"].pixels[rows]))
                    nn.functional.cross_entropy(logits, data["c0"].labels[rows]).backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        state = module.state_dict()
        for name, tensor in kept["c0"]["model"].items():
            torch.testing.assert_close(tensor, state[name], rtol=1e-4, atol=1e-5)

    def test_new_client_is_fine_tuned_from_the_initial_model(self, task: Task) -> None:
        server, _, _ = run(build("local", task), clients(2), [["c0", "c1"]])
        plan, data = Adaptation(epochs=2, rate=0.05), shapes_examples(12)
        context = Context(SEED, "new", task.network.workspace())
        mine = personalize(build("local", task), server, "ft", data, context, plan)
        average = build("fedavg", task)
        theirs = personalize(average, average.init(SEED), "ft", data, context, plan)
        assert equal(mine.last.tensors, theirs.last.tensors)
