"""The command ``fedbasis export``: bases and personal models for programs that have no torch."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedbasis.cli.console import say
from fedbasis.cli.serving import OwnNetwork, Trust
from pflbed.errors import InputError
from pflbed.terminal import writable


class Target(StrEnum):
    """What to export to."""

    edge = "edge"
    onnx = "onnx"
    transformers = "transformers"
    hub = "hub"


class StatisticsName(StrEnum):
    """The normalization statistics of a new client."""

    own = "own"
    frozen = "frozen"
    shrunk = "shrunk"


STATISTICS: dict[StatisticsName, Literal["own", "frozen", "shrunk"]] = {
    StatisticsName.own: "own",
    StatisticsName.frozen: "frozen",
    StatisticsName.shrunk: "shrunk",
}


def export(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Published bases, the run folder that holds them, or a model.")
    ],
    to: Annotated[
        Target,
        typer.Option(
            help="edge: graphs beside the bases, with which a new client personalizes in any ONNX runtime. onnx: a "
            "personal model as one file. transformers: a personal model as a folder for Transformers.js and Optimum. "
            "hub: bases or a model in a folder with a model card."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The file or folder to write; not for edge, which adds to the bases' folder.")
    ] = None,
    statistics: Annotated[
        StatisticsName | None,
        typer.Option(
            help="With --to edge: the new client's normalization statistics; unset: as 'personalize' has them.",
            show_default=False,
        ),
    ] = None,
    license_name: Annotated[
        str | None,
        typer.Option(
            "--license", help="With --to hub: the license of the tensors, such as cc-by-4.0; unset: unknown.",
            show_default=False,
        ),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="With --to hub: a data set they were trained on, by its name on the hub; may be repeated."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there already.")] = False,
    trust: Trust = False,
    network: OwnNetwork = None,
) -> None:  # fmt: skip
    """Write bases or a personal model for programs that have no torch: ONNX runtimes, browsers, model hubs.

    Graphs are compared with torch in float64 before they are written.
    """
    from fedbasis.edge.bundle import export_edge
    from fedbasis.edge.hub import UNKNOWN, export_hub
    from fedbasis.edge.model import export_onnx, export_transformers
    from fedbasis.serving.new_client import bases_at

    if statistics is not None and to is not Target.edge:
        raise InputError("--statistics is for --to edge; leave it out.")
    if (license_name is not None or dataset) and to is not Target.hub:
        raise InputError("--license and --dataset are for the model card of --to hub; leave them out.")
    chosen = None if statistics is None else STATISTICS[statistics]
    if to is Target.edge:
        if out is not None:
            raise InputError("--to edge writes into the folder of the bases, so --out must be left out.")
        if (folder := bases_at(source)).is_dir():
            writable(folder)
        made = export_edge(source, statistics=chosen, overwrite=overwrite, trust=trust, network=network)
        say(_verified(made.errors.largest))
        for name, size in made.sizes.items():
            say(f"{made.folder / name}  {size:,} bytes")
        say(f"A step of {made.batch} images needs about {made.memory / 1e6:,.0f} MB and the runtime.")
        return
    if out is None:
        raise InputError(f"--to {to.value} needs --out, but it is missing; name the file or folder to write.")
    writable(out.parent)
    if to is Target.hub:
        card = export_hub(
            source, out, license_name=license_name or UNKNOWN, datasets=dataset, overwrite=overwrite, trust=trust,
            network=network,
        )  # fmt: skip
        say(f"Model card: {card}")
        return
    write = export_onnx if to is Target.onnx else export_transformers
    say(_verified(write(source, out, overwrite=overwrite, trust=trust, network=network)))
    say(f"Model: {out}")


def _verified(error: float) -> str:
    return f"Verified against torch in float64: the largest relative difference is {error:.0e}."
