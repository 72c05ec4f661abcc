"""The command ``fedbasis bases``: bases from the local models of any finished run."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedbasis.cli.console import console, say
from fedbasis.cli.serving import OwnNetwork, Trust
from pflbed.errors import InputError
from pflbed.terminal import writable


class Unit(StrEnum):
    """What is clustered."""

    block = "block"
    network = "network"


def bases(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run folder, of any method.")],
    out: Annotated[Path, typer.Option(help="The folder to write the bases to; it must not exist.")],
    data: Annotated[str | None, typer.Option(help="Where the run's images are; unset: where they were.")] = None,
    number: Annotated[int, typer.Option("--bases", min=1, help="How many bases, besides the major one.")] = 4,
    major: Annotated[bool, typer.Option(help="Add the mean of the local models as a major basis.")] = True,
    cluster: Annotated[Unit, typer.Option(help="Cluster the models block by block, or as a whole.")] = Unit.block,
    epochs: Annotated[int | None, typer.Option(min=1, help="Local epochs; unset: those of the run.")] = None,
    trust: Trust = False,
    network: OwnNetwork = None,
) -> None:
    """Make bases from the local models of a finished run: one more local round, whose models are clustered.

    'fedbasis personalize' then combines them for a new client, whatever method trained the run.
    """
    from fedbasis.cli.display import value_table
    from fedbasis.experiment.post_processing import bases_of_run

    if out.exists():
        raise InputError(f"The output {out} must not exist yet, but it does; choose another name or remove it.")
    writable(out.parent)
    made = bases_of_run(
        run, data, trust=trust, network=network, bases=number, major=major, cluster=cluster.value, epochs=epochs
    )
    made.save(out)
    for table in made.tables():
        console.print(value_table(table))
    clients = made.card.provenance["clients"]
    say(f"{number} bases from the local models of {clients} clients, after {made.card.provenance['from_method']}.")
    say(f"Bases: {out}")
