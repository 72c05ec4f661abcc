"""The command ``fedbasis features``: activations of a pretrained network's lower blocks, for a whole dataset."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from fedbasis.cli.console import console, say, shows_progress
from pflbed.errors import InputError
from pflbed.terminal import writable


def features(
    data: Annotated[str, typer.Argument(metavar="DATA", help="The images: a folder <domain>/<class>/<image>.")],
    weights: Annotated[str, typer.Option(help="Pretrained weights (safetensors) of the network.")],
    out: Annotated[Path, typer.Option(help="The folder to write; it must not exist.")],
    source: Annotated[
        str | None, typer.Option(help="The dataset in the folder: pacs, office-home ...; unset: any images.")
    ] = None,
    network: Annotated[str, typer.Option(help="The network.")] = "efficientnet-lite0",
    blocks: Annotated[int, typer.Option(min=1, help="How many of its blocks are frozen, after the stem.")] = 11,
    resolution: Annotated[int, typer.Option(min=8, max=1024, help="Images are scaled and cropped to this.")] = 96,
) -> None:
    """Compute the activations of a pretrained network's lower blocks once, so that only its upper part is trained.

    They are stored as 8 bits a number, with the labels and domains of the images, as a folder of arrays. An experiment
    that has it as data.source, and the option first_block of the network, trains the blocks above. Copies of one
    picture stay together, and an image is in the tuning part exactly if it is so in the folder of images.
    """
    from fedbasis.networks.activations import LowerBlocks, stored
    from pflbed.dataset import find
    from pflbed.sources.arrays import write_arrays

    if out.exists():
        raise InputError(f"The folder {out} must not exist yet, but it does; choose another name with --out.")
    writable(out.parent)
    lower = LowerBlocks.load(network, weights, blocks, resolution)
    with Progress(console=console, transient=True, disable=not (shows_progress() and console.is_terminal)) as bar:
        checked = bar.add_task("Reading images", total=None)
        dataset, findings, _ = find(data, source).checked(lambda i, n: bar.update(checked, completed=i, total=n))
        decoded = dataset.decode(resolution)
        computed = bar.add_task("Activations", total=len(decoded.images))
        images, cut = stored(lower, decoded.images, lambda i, n: bar.update(computed, completed=i, total=n))
    about = {**lower.about, "source": dataset.source.name, "images": dataset.table.digest, "cut_off": cut}
    write_arrays(out, images, decoded.table, lower.normalization, about)
    count, height, width, channels = images.shape
    size = f"{height} x {width} x {channels}"
    say(f"{out}: {count:,} images, {size} bytes each; {100 * cut:.3f} % of the numbers cut off.")
    if findings.bad:
        say(f"Left out: {len(findings.bad)} images that cannot be read, such as {findings.bad[0][0]}.")
    say(f"Use it with data.source = '{out}', dataset = 'arrays', resolution = {height}, channels = {channels} and with")
    say(f"model.name = '{network}', options = {{first_block = {blocks}}}, weights = '{weights}'")
