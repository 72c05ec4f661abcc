"""Runs that differ only in how they serve clients need one training: the second takes over what the first learned.

What a finished run published is put into the new run's folder as its last checkpoint. So the new run goes on as one
that was stopped after its last round, and ends with the same bits as if it had trained itself.
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
    """Spare a run its training if a finished run below ``out`` trained alike; return the lender."""
    run = prepared.run(out)
    if CLIENT_STATE in prepared.plan.ways:  # client states are not published
        return None
    with run.locked():
        if run.done or run.checkpoint.exists() or run.previous_checkpoint.exists():
            return None
        donor = _trained_alike(prepared, out)
        if donor is not None:
            card, server = artifact.load(donor.bases, "bases", trust=True)  # the network that this run names itself
            with replacing(run.metrics) as temporary:
                shutil.copyfile(donor.metrics, temporary)
            run.save_checkpoint(server, int(card.provenance["rounds"]))
        return donor


def _trained_alike(prepared: Prepared, out: Path) -> Run | None:
    for folder in sorted(out.glob(f"{prepared.experiment.slug}-*")):
        run = Run(folder)
        if run.done and read_json_object(folder / "done", "The file").get("training") == prepared.training_digest:
            return run
    return None
