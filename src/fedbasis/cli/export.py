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
    page = "page"
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


class PageBits(StrEnum):
    """Bits of a difference between the bases of a page; 32: they are not coded."""

    three = "3"
    four = "4"
    eight = "8"
    whole = "32"


PAGE_BITS: dict[PageBits, Literal[3, 4, 8] | None] = {
    PageBits.three: 3, PageBits.four: 4, PageBits.eight: 8, PageBits.whole: None,
}  # fmt: skip


def export(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Published bases, the run folder that holds them, or a model.")
    ],
    to: Annotated[
        Target,
        typer.Option(
            help="edge: graphs beside the bases, with which a new client personalizes in any ONNX runtime. page: "
            "one HTML file that personalizes the bases in a browser, offline. onnx: a personal model as one file. "
            "transformers: a personal model as a folder for Transformers.js and Optimum. "
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
    bits: Annotated[
        PageBits | None,
        typer.Option(
            help="With --to page: bits of a difference between the embedded bases; 32: as they are; unset: 3.",
            show_default=False,
        ),
    ] = None,
    runtime: Annotated[
        Path | None,
        typer.Option(help="With --to page: a folder with onnxruntime-web; unset: the cache, or npm.",
                     show_default=False),
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="With --to page: the heading of the page.", show_default=False)
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(help="With --to page: a folder <class>/<image> that the page offers as an example.",
                     show_default=False),
    ] = None,
    draw: Annotated[
        bool | None,
        typer.Option(
            "--draw/--no-draw",
            help="With --to page: whether images can be drawn; unset: if they are small and of digits or letters.",
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
    from fedbasis.edge.page import TITLE, write_page
    from fedbasis.serving.new_client import bases_at

    of_page = {"--bits": bits, "--runtime": runtime, "--title": title, "--examples": examples, "--draw": draw}
    if to is not Target.page and (given := [name for name, value in of_page.items() if value is not None]):
        raise InputError(f"{given[0]} is for --to page; leave it out.")
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
    if to is Target.page:
        if out.exists() and not overwrite:
            raise InputError(f"The output {out} must not exist yet, but it does; replace it with --overwrite.")
        page = write_page(
            source, out, bits=PAGE_BITS[bits or PageBits.three], title=title or TITLE, draw=draw, examples=examples,
            runtime_folder=runtime, trust=trust, network=network,
        )  # fmt: skip
        say(
            f"{page.size:,} bytes, of which {page.parts['bases']:,} are the bases and "
            f"{page.parts['runtime.wasm'] + page.parts['runtime.mjs']:,} the runtime. It needs no network."
        )
        say(f"Page: {out}")
        return
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
