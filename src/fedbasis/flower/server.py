"""The app of the server: it trains the experiments of an app at the same time, or has new nodes personalize.

A run folder is the same as with any engine: an existing run is resumed, and it ends with bases and ``done``. The
outcome is written to ``outcome.json``, which the process that started the app reads.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, MessageType
from flwr.serverapp import Grid, ServerApp

from fedbasis.engines.base import NoUpdate
from fedbasis.flower.batching import LITTLE, RequestBatcher
from fedbasis.flower.deployment import OUTCOME
from fedbasis.flower.engine import Nodes
from fedbasis.flower.payload import Payload, pack_state
from fedbasis.flower.settings import FederatedRun, read_plans
from fedbasis.serving import artifact
from pflbed.errors import InputError
from pflbed.files import write_json

PERSONALIZE = f"{MessageType.QUERY}.personalize"


def server_app(app: Path) -> ServerApp:
    """Return the Flower app of the server, from the folder with its settings."""
    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        out = Path(str(context.run_config["out"]))
        try:
            if context.run_config["task"] == "personalize":
                result = personalize(read_plans(app), grid, out, str(context.run_config["nodes"]).splitlines())
            else:
                result = train_all(read_plans(app), grid, out)
        except Exception as error:
            what = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            write_json(out / OUTCOME, {"error": f"{what}{error}"})
            raise
        write_json(out / OUTCOME, result)

    return server


def train_all(plans: Sequence[FederatedRun], grid: Grid, out: Path) -> dict[str, Any]:
    """Train every experiment for all rounds."""
    federation = plans[0].federation
    batcher = RequestBatcher(grid, len(plans), MessageType.TRAIN, federation.deadline, federation.minimum)
    _side_by_side(plans, batcher, lambda plan: _train(plan, batcher, out))
    return {"runs": [str(plan.run(out).folder) for plan in plans]}


def _side_by_side(plans: Sequence[FederatedRun], batcher: RequestBatcher, work: Callable[[FederatedRun], None]) -> None:
    """Run ``work`` for every experiment in its own thread; a failure does not stop the others."""
    torch.set_num_threads(plans[0].experiment.machine.threads)
    errors: list[Exception] = []

    def alone(plan: FederatedRun) -> None:
        with batcher.turn:
            try:
                work(plan)
            except Exception as error:  # noqa: BLE001  raised below, when the others are done
                errors.append(error)
            finally:
                batcher.leave()

    threads = [threading.Thread(target=alone, args=(plan,), daemon=True) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _train(plan: FederatedRun, batcher: RequestBatcher, out: Path) -> None:
    run, clients = plan.run(out), plan.federation.clients
    if run.done:
        return
    training = plan.training_run(out)
    training.check()
    with run.locked():
        settings = plan.experiment.as_dict()
        settings["data"]["source"] = f"{len(clients)} nodes"
        training.start(settings)
        write_json(run.federation, plan.federation.model_dump(mode="json"))
        nodes = Nodes(plan, training.method, batcher, run)
        training.train(nodes)
        training.finish(nodes)


def personalize(plans: Sequence[FederatedRun], grid: Grid, out: Path, names: Sequence[str]) -> dict[str, Any]:
    """Send the published bases to nodes; each personalizes a model, which stays there, and returns its accuracies."""
    batcher = RequestBatcher(grid, len(plans), PERSONALIZE, plans[0].federation.deadline)
    results: dict[str, Any] = {}

    def fit(plan: FederatedRun) -> None:
        run = plan.run(out)
        if not run.done:
            raise InputError(f"New clients need trained bases, but the run {run.folder} is not done; train it.")
        card, server = artifact.load(run.bases, "bases", trust=True)
        block = pack_state(server)
        words: dict[str, str | int] = {
            "experiment": plan.name, "run": run.folder.name, "seed": plan.experiment.seed,
            "card": card.model_dump_json(), "digest": hashlib.sha256(block.data).hexdigest(),
        }  # fmt: skip
        answers = batcher.ask({name: Payload({**words, "client": name}, {}, block) for name in names}, LITTLE)
        results[plan.name] = {name: _answer(answer) for name, answer in answers.items()}

    _side_by_side(plans, batcher, fit)
    return {"personalized": results}


def _answer(answer: Payload | NoUpdate) -> dict[str, Any]:
    if isinstance(answer, NoUpdate):
        return {"error": answer.reason}
    return {"error": answer.word("error")} if answer.word("error") else {"how": answer.word("how"), **answer.numbers}
