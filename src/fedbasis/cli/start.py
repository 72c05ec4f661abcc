"""The commands ``fedbasis init``, ``weights`` and ``cache``: what an experiment on one's own data needs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedbasis.cli.console import console, say
from pflbed.errors import InputError
from pflbed.terminal import writable


class CacheAction(StrEnum):
    """What to do with the cache."""

    show = "show"
    clear = "clear"


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


def cache(
    action: Annotated[
        CacheAction, typer.Argument(help="show: list what is there. clear: remove all of it.")
    ] = CacheAction.show,
) -> None:
    """Show or clear the decoded images that are kept so that they are decoded once.

    The cache is fedbasis in your cache folder, or the folder that the variable FEDBASIS_CACHE names.
    """
    from pflbed.cache import cache_dir, cached_files, clear_cache

    if action is CacheAction.clear:
        count, size = clear_cache()
        say(f"{cache_dir()}: removed {count} files, {size / 1e6:.1f} MB.")
        return
    files = cached_files()
    for path, size in files:
        say(f"{size / 1e6:>10.1f} MB  {path.relative_to(cache_dir())}")
    total = sum(size for _, size in files) / 1e6
    say(f"{cache_dir()}: {len(files)} files, {total:.1f} MB; 'fedbasis cache clear' removes them.")
