"""Show and clear the cache of both command lines. Only files that they wrote themselves are removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as Grid

from pflbed.errors import InputError
from pflbed.lock import is_held
from pflbed.terminal import note, say, say_json

CONTENT = {
    "decoded images": ("images/*.npy", "images/*.npy.*part", "images/*.npy.*journal", "images/*-[0-9]*.json"),
    "checks of images": ("images/*-check.json",),
    "Digits-4": ("digits4-*.npy", "digits4-*.json"),
    "tracebacks": ("tracebacks/*.txt",),
    "places of images": ("benchmarks/*.json",),
}
"""What the cache holds: patterns of files, by what they are for."""
KEPT = "places of images"
"""Forgotten with --all only: a benchmark then needs --data."""

app = typer.Typer(
    name="cache",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Show or clear the cache: decoded images, checks of images, Digits-4 and tracebacks.",
)


def held() -> dict[str, list[Path]]:
    """The files of the cache by what they are for."""
    root = _folder()
    return {what: sorted(set(_files(root, patterns))) for what, patterns in CONTENT.items()}


def clear_cache(everything: bool = False) -> tuple[int, int]:
    """Remove what can be made again, or everything.

    Args:
        everything: Also forget where the images of benchmarks are.

    Returns:
        How many files were removed, and their bytes.
    """
    removed = size = 0
    for what, files in held().items():
        if what == KEPT and not everything:
            continue
        for file in files:
            array, found, _ = file.name.partition(".npy")
            if found and is_held(file.with_name(f"{array}.npy.lock")):  # being written at this moment
                continue
            try:
                bytes_here = file.lstat().st_size
                file.unlink()
            except FileNotFoundError:  # another process removed it
                continue
            removed, size = removed + 1, size + bytes_here
    return removed, size


@app.command()
def show(as_json: Annotated[bool, typer.Option("--json", help="For machines: one json object.")] = False) -> None:
    """Show where the cache is, and how much it holds of what."""
    found = {what: (len(files), sum(_size(file) for file in files)) for what, files in held().items()}
    if as_json:
        content = {what: {"files": count, "bytes": size} for what, (count, size) in found.items()}
        say_json({"folder": str(_folder()), "content": content})
        return
    grid = Grid()
    grid.add_column("what")
    for heading in ("files", "megabytes"):
        grid.add_column(heading, justify="right")
    for what, (count, size) in found.items():
        grid.add_row(what, f"{count:,}", f"{size / 1e6:,.1f}")
    say(grid)
    say(f"Cache: {_folder()}")
    note("The variable FEDBASIS_CACHE names another folder.")


@app.command()
def clear(
    everything: Annotated[
        bool, typer.Option("--all", help="Also forget where the images of benchmarks are; then they need --data.")
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Remove decoded images, checks, Digits-4 and tracebacks; all but tracebacks is made again when needed."""
    if not yes:
        try:
            sure = typer.confirm(f"Remove what {_folder()} caches?")
        except typer.Abort:
            raise InputError("This must be confirmed, but nobody answered; give --yes.") from None
        if not sure:
            return
    removed, size = clear_cache(everything)
    say(f"Removed {removed:,} files, {size / 1e6:,.1f} MB.")


def _folder() -> Path:
    from pflbed.cache import cache_dir  # imports numpy, which no help text needs

    return cache_dir()


def _files(root: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        yield from (file for file in root.glob(pattern) if file.is_file() or file.is_symlink())


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except OSError:
        return 0
