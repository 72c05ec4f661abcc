"""The commands ``fedbasis personalize`` and ``predict``: what an engineer who serves new clients needs, offline."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pflbed.errors import InputError
from pflbed.terminal import writable

console = Console(emoji=False)
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run the code that the folder names: a network or a method that is not built in."),
]
OwnNetwork = Annotated[
    str | None,
    typer.Option(
        "--network", metavar="MODULE:NAME", help="Your own network, in place of the one that the folder names."
    ),
]


class Keep(StrEnum):
    """Which epoch's model is written."""

    last = "last"
    best = "best"


def personalize(
    bases: Annotated[Path, typer.Argument(metavar="BASES", help="Published bases, or the run folder that holds them.")],
    data: Annotated[Path, typer.Option(help="The new client's images, as <class>/<image>.")],
    out: Annotated[Path, typer.Option(help="The folder to write the personal model to; it must not exist.")],
    how: Annotated[
        str | None,
        typer.Option(
            help="coefficients+classifier, coefficients, lp, ft or none; unset: the first for FedBasis, ft for FedAvg."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How often to go through the images.")] = 20,
    rate: Annotated[
        float, typer.Option(min=1e-9, help="Learning rate of the classifier, lp or ft; coefficients have their own.")
    ] = 0.005,
    batch: Annotated[int, typer.Option(min=1, help="How many images a step sees.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Decides the order of the images and which are held out.")] = 0,
    keep: Annotated[
        Keep, typer.Option(help="The model of the last epoch, or of the best on held-out images.")
    ] = Keep.last,
    as_json: Annotated[
        bool, typer.Option("--json", help="For machines: one json object instead of the picture.")
    ] = False,
    trust: Trust = False,
    network: OwnNetwork = None,
) -> None:
    """Fit the bases to a new client's folder of images and write one ordinary model.

    A fifth of the images is held out to measure the accuracy before and after, if there are at least 20. The images
    stay where they are, nothing is sent, and no copy of them is written.
    """
    from fedbasis.cli.display import print_bad, value_table
    from fedbasis.methods.base import Adaptation
    from fedbasis.serving.new_client import ENOUGH, serve_folder, write_model
    from fedbasis.serving.tables import as_record

    if out.exists():
        raise InputError(f"The output {out} must not exist yet, but it does; choose another name or remove it.")
    writable(out.parent)
    plan = Adaptation(epochs=epochs, rate=rate, batch=batch)
    served = serve_folder(bases, data, how, plan, seed, keep=keep.value, trust=trust, network=network)
    write_model(served, out)
    if as_json:
        summary = {
            "model": str(out), "how": served.way, "epoch": served.fitted.epoch, "images": served.images,
            "held_out": served.held_out, "before": served.before, "after": served.after,
            "learned": {name: as_record(table) for name, table in served.tables.items()},
            "skipped": [{"path": path, "reason": reason} for path, reason in served.bad],
        }  # fmt: skip
        sys.stdout.write(json.dumps(summary) + "\n")
        return
    if served.bad:
        print_bad(console, served.bad)
    for table in served.tables.values():
        console.print(value_table(table))
    judged = (
        f"{served.held_out} held-out images"
        if served.held_out
        else f"the {served.images} training images (fewer than {ENOUGH}: none held out)"
    )
    console.print(
        f"Accuracy on {judged}: {100 * served.before:.1f} % before, [bold]{100 * served.after:.1f} %[/bold] after "
        f"{served.fitted.epoch} epochs of {served.way} on {served.images} images.",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"Model: {out}", highlight=False, markup=False, soft_wrap=True)


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A personal model, as 'personalize' wrote it.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="Image files, or folders of them.")],
    labelled: Annotated[
        bool, typer.Option("--labelled", help="An image's folder is its true class: score it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One json object per image, with all probabilities.")] = False,
    trust: Trust = False,
    network: OwnNetwork = None,
) -> None:
    """Print the class and its probability for every image."""
    import torch

    from fedbasis.cli.display import print_bad
    from fedbasis.serving.new_client import predict_images, read_loose

    card, pixels, paths, bad = read_loose(model, images, labelled)
    _, probabilities = predict_images(model, torch.from_numpy(pixels), trust, network)
    best = probabilities.max(dim=1)
    right = 0
    for path, chance, index, row in zip(
        paths, best.values.tolist(), best.indices.tolist(), probabilities.tolist(), strict=True
    ):
        true = path.absolute().parent.name
        right += card.classes[index] == true
        if as_json:
            line = {"image": str(path), "class": card.classes[index], "probability": chance}
            line |= {"true": true} if labelled else {}
            sys.stdout.write(json.dumps({**line, "all": dict(zip(card.classes, row, strict=True))}) + "\n")
        else:
            line_of_text = f"{path}  {card.classes[index]}  {chance:.3f}"
            console.print(line_of_text, highlight=False, markup=False, soft_wrap=True)
    if labelled and not as_json:
        console.print(f"{right} of {len(paths)} right ({100 * right / len(paths):.1f} %)", highlight=False)
    if bad:
        print_bad(Console(stderr=True, emoji=False), bad)
