"""The command ``fedbasis export``: bases and personal models for programs that have no torch."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedbasis.cli.console import say
from fedbasis.cli.serving import OwnNetwork, Trust
from pflbed.terminal import writable


class Target(StrEnum):
    """What to export to."""

    edge = "edge"


class StatisticsName(StrEnum):
    """The normalization statistics of a new client."""

    own = "own"
    frozen = "frozen"
    shrunk = "shrunk"


def export(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Published bases, the run folder that holds them, or a model.")
    ],
    to: Annotated[
        Target,
        typer.Option(help="edge: graphs with which a new client personalizes the bases in any ONNX runtime."),
    ],
    statistics: Annotated[
        StatisticsName | None,
        typer.Option(
            help="With --to edge: the new client's normalization statistics; unset: as 'personalize' has them.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there already.")] = False,
    trust: Trust = False,
    network: OwnNetwork = None,
) -> None:
    """Write bases or a personal model for programs that have no torch: ONNX runtimes, browsers, model hubs."""
    from fedbasis.edge.bundle import export_edge
    from fedbasis.serving.new_client import bases_at

    writable(bases_at(source))
    made = export_edge(
        source, statistics=None if statistics is None else statistics.value, overwrite=overwrite, trust=trust,
        network=network,
    )  # fmt: skip
    say(f"Verified against torch in float64: the largest relative difference is {made.errors.largest:.0e}.")
    for name, size in made.sizes.items():
        say(f"{made.folder / name}  {size:,} bytes")
    say(f"A step of 16 images needs about {made.memory / 1e6:,.0f} MB.")
