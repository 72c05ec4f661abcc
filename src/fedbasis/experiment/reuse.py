"""Runs that differ only in personalization need one training: the second reuses the first one's.

The published state of a finished run is written to the new run's folder as its last checkpoint. So the new run resumes
like one that was stopped after its last round, and ends with the same bits as if it had trained itself.
"""

import shutil
from pathlib import Path

from fedbasis.experiment import Prepared
from fedbasis.serving import artifact
from fedbasis.serving.personalize import CLIENT_STATE
from fedbasis.training.runs import Run
from pflbed.files import replacing
from pflbed.foreign import read_json_object


def reuse_training(prepared: Prepared, out: Path) -> Run | None:
    """Copy the training of a finished run below ``out`` with the same training; return that run, or None."""
    run = prepared.run(out)
    if CLIENT_STATE in prepared.plan.ways:  # client states are not published
        return None
    with run.locked():
        if run.done or run.checkpoint.exists() or run.previous_checkpoint.exists():
            return None
        finished = _same_training(prepared, out)
        if finished is not None:
            # Trusted: it is the network that this run's own configuration names.
            card, server = artifact.load(finished.bases, "bases", trust=True)
            with replacing(run.metrics) as temporary:
                shutil.copyfile(finished.metrics, temporary)
            run.save_checkpoint(server, int(card.provenance["rounds"]))
        return finished


def _same_training(prepared: Prepared, out: Path) -> Run | None:
    for folder in sorted(out.glob("*-*")):
        run = Run(folder)
        if not run.done or not run.bases.is_dir():  # records of a run may be kept without its models
            continue
        if read_json_object(folder / "done", "The file").get("training") == prepared.training_digest:
            return run
    return None
