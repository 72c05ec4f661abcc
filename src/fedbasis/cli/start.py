"""The commands ``fedbasis init`` and ``weights``: what an experiment on one's own data needs."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedbasis.cli.console import console, say
from pflbed.errors import InputError
from pflbed.terminal import writable


def init(
    data: Annotated[Path, typer.Argument(metavar="FOLDER", help="Your images, as <domain>/<class>/<image>.")],
    out: Annotated[Path, typer.Option(help="The configuration to write; it must not exist.")] = Path("experiment.toml"),
) -> None:
    """Write a commented configuration for a folder of images, after reading what is in it."""
    from fedbasis.experiment.starter import look_into, starter

    if out.exists():
        raise InputError(f"The configuration {out} must not exist yet, but it does; choose another name with --out.")
    writable(out.parent)
    found = look_into(data)
    out.write_text(starter(data.absolute(), found), encoding="utf-8")
    say(f"{data}: {found.text}.")
    say(f"Read {out}, then: fedbasis train {out}")


def weights() -> None:
    """List the pretrained weights that come with the package, and where others come from."""
    from fedbasis.networks.weights import ELSEWHERE, SHIPPED

    for card in SHIPPED.values():
        table = Table(title=f"--weights {card.name}", title_justify="left", title_style="bold", show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        options = ", ".join(f"{key} = {value}" for key, value in card.options.items())
        table.add_row("network", f"{card.network} ({options}), images of {card.resolution} pixels")
        for name in ("trained_on", "how", "accuracy", "licence", "sha256"):
            table.add_row(name.replace("_", " "), str(getattr(card, name)))
        console.print(table)
    for network, source in ELSEWHERE:
        say(f"{network}: {source}; then --weights FILE.")
