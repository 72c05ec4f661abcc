"""The command ``fedbasis bundle``: a copy of published bases, as they are or coded to a few bits."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from fedbasis.cli.console import console, say
from fedbasis.cli.serving import OwnNetwork, Trust
from pflbed.errors import InputError
from pflbed.terminal import writable


class BitCount(StrEnum):
    """Bits of a difference."""

    three = "3"
    four = "4"
    eight = "8"


COUNTS: dict[BitCount, Literal[3, 4, 8]] = {BitCount.three: 3, BitCount.four: 4, BitCount.eight: 8}


def bundle(
    bases: Annotated[Path, typer.Argument(metavar="BASES", help="Published bases, or the run folder that holds them.")],
    out: Annotated[Path, typer.Option(help="The folder to write; it must not exist.")],
    compact: Annotated[
        bool, typer.Option("--compact", help="Code the bases: one reference in bfloat16, and small differences to it.")
    ] = False,
    bits: Annotated[
        BitCount | None, typer.Option(help="With --compact: bits of a difference; unset: 3.", show_default=False)
    ] = None,
    trust: Trust = False,
    network: OwnNetwork = None,
) -> None:
    """Copy published bases into a new folder, with --compact in a fraction of the bytes.

    'personalize', 'inspect' and the library read both. Four bases and a major basis, of 3 bits, are smaller than one
    float32 model.
    """
    from fedbasis.serving.bundle import bundle as write_bundle

    if bits is not None and not compact:
        raise InputError("--bits is for coded bases, but --compact is missing; add it, or leave --bits out.")
    if out.exists():
        raise InputError(f"The output {out} must not exist yet, but it does; choose another name or remove it.")
    writable(out.parent)
    coding = COUNTS[bits or BitCount.three] if compact else None
    written = write_bundle(bases, out, coding, trust=trust, network=network)
    if written.errors:
        table = Table(title="Largest relative error of a basis", title_justify="left")
        for column in ("block", "of its norm", "of its distance from the mean"):
            table.add_column(column, justify="left" if column == "block" else "right")
        for block, error in written.errors.items():
            spread = "-" if error.of_spread is None else f"{100 * error.of_spread:.2f} %"
            table.add_row(block, f"{100 * error.of_model:.3f} %", spread)
        console.print(table)
    models = (f"{size:,} bytes ({size / written.one_model:.2f} models)" for size in (written.before, written.after))
    say("Before: {}, after: {}.".format(*models))
    say(f"Bases: {out}")
