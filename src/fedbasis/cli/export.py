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


class StatisticsName(StrEnum):
    """The normalization statistics of a new client."""

    own = "own"
    frozen = "frozen"
    shrunk = "shrunk"


class PageBits(StrEnum):
    """Bits of a difference between embedded bases; 32: they are not coded."""

    four = "4"
    eight = "8"
    all = "32"


PAGE_BITS: dict[PageBits, Literal[4, 8] | None] = {PageBits.four: 4, PageBits.eight: 8, PageBits.all: None}


def export(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Published bases, the run folder that holds them, or a model.")
    ],
    to: Annotated[
        Target,
        typer.Option(
            help="edge: graphs with which a new client personalizes the bases in any ONNX runtime. page: one HTML file "
            "that personalizes them in a browser, offline."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="With --to page: the file to write, such as fit.html.", show_default=False)
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
            help="With --to page: bits of a difference between the embedded bases; 32: as they are; unset: 4.",
            show_default=False,
        ),
    ] = None,
    runtime: Annotated[
        Path | None,
        typer.Option(
            help="With --to page: a folder with onnxruntime-web; unset: from the cache, or from npm.",
            show_default=False,
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="With --to page: the heading of the page.", show_default=False)
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            help="With --to page: a folder <class>/<image> whose images the page offers as an example.",
            show_default=False,
        ),
    ] = None,
    draw: Annotated[
        bool | None,
        typer.Option(
            "--draw/--no-draw",
            help="With --to page: whether images can be drawn; unset: if they are small and classes are digits or "
            "letters.",
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

    of_page: dict[str, object] = {"--out": out, "--bits": bits, "--runtime": runtime, "--title": title}
    of_page |= {"--examples": examples, "--draw": draw}
    if to == Target.page:
        if statistics is not None:
            raise InputError(
                "--statistics is for --to edge, but --to page was asked for; export the graphs with --to edge "
                "--statistics first, the page then uses them."
            )
        _write_page(source, out, bits, runtime, title, examples, draw, overwrite, trust, network)
        return
    if wrong := [name for name, value in of_page.items() if value is not None]:
        raise InputError(f"{wrong[0]} is for --to page, but --to {to.value} was asked for; leave it out.")
    writable(bases_at(source))
    made = export_edge(
        source, statistics=None if statistics is None else statistics.value, overwrite=overwrite, trust=trust,
        network=network,
    )  # fmt: skip
    say(f"Verified against torch in float64: the largest relative difference is {made.errors.largest:.0e}.")
    for name, size in made.sizes.items():
        say(f"{made.folder / name}  {size:,} bytes")
    say(f"A step of 16 images needs about {made.memory / 1e6:,.0f} MB.")


def _write_page(
    source: Path,
    out: Path | None,
    bits: PageBits | None,
    runtime: Path | None,
    title: str | None,
    examples: Path | None,
    draw: bool | None,
    overwrite: bool,
    trust: bool,
    network: str | None,
) -> None:
    from fedbasis.edge.page import TITLE, write_page

    if out is None:
        raise InputError("--to page writes one file, but --out is missing; add it, such as --out fit.html.")
    if out.exists() and not overwrite:
        raise InputError(f"The output {out} must not exist yet, but it does; replace it with --overwrite.")
    writable(out.parent)
    made = write_page(
        source, out, bits=PAGE_BITS[bits or PageBits.four], title=TITLE if title is None else title, draw=draw,
        examples=examples, runtime_folder=runtime, trust=trust, network=network,
    )  # fmt: skip
    runtime_size = made.parts["runtime.wasm"] + made.parts["runtime.mjs"]
    say(
        f"{made.size:,} bytes, of which the bases are {made.parts['bases']:,} and the runtime {runtime_size:,}. "
        "Open it in a browser; it needs no network."
    )
    say(f"Page: {out}")
