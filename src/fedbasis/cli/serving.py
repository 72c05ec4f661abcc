"""The commands ``fedbasis personalize`` and ``predict``: what an engineer who serves new clients needs, offline."""

import csv
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from fedbasis.cli.console import console, errors, say, shows_progress
from pflbed.errors import InputError
from pflbed.plain_text import printable
from pflbed.terminal import say_json, writable

if TYPE_CHECKING:
    from fedbasis.serving.artifact import Card

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


DEVICE_HELP = "cpu, cuda, cuda:1, mps ...; auto takes a GPU if there is one."


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
            help="auto (chosen by cross-validation on the client's images), none, prior (logits shifted by its "
            "class frequencies), lp, ft, ft-prox, bn, or one of the method's own ways (see 'fedbasis methods'), which "
            "may be followed by +lp or +ft; prior+ before a way starts it from there; unset: the method's default, for "
            "FedBasis coefficients+classifier. @frozen, @own or @shrunk at the end chooses the normalization "
            "statistics: the server's, the client's, a mean of both."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="How often to go through the images.")] = 20,
    rate: Annotated[
        float,
        typer.Option(min=1e-9, help="Learning rate of the classifier, lp or ft; of coefficients, a multiple."),
    ] = 0.005,
    batch: Annotated[int, typer.Option(min=1, help="How many images a step sees.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Decides the order of the images and which are held out.")] = 0,
    keep: Annotated[
        Keep, typer.Option(help="The model of the last epoch, or of the best on held-out images.")
    ] = Keep.last,
    as_json: Annotated[
        bool, typer.Option("--json", help="For machines: one json object instead of the table.")
    ] = False,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
    trust: Trust = False,
    network: OwnNetwork = None,
) -> None:
    """Fit the bases to a new client's folder of images and write one ordinary model.

    A fifth of the images is held out to measure the accuracy before and after, if there are at least 20. With --how
    auto and at least three images every image is held out once, and the result is never a model that is worse on them
    than the unpersonalized one. The images stay where they are, nothing is sent, and no copy of them is written.
    """
    from fedbasis.cli.display import print_bad, value_table
    from fedbasis.engines.choice import device_of
    from fedbasis.methods.base import Adaptation
    from fedbasis.serving.new_client import ENOUGH, serve_folder, write_model
    from fedbasis.serving.personalize import UNTRAINED
    from fedbasis.serving.tables import as_record

    if out.exists():
        raise InputError(f"The output {out} must not exist yet, but it does; choose another name or remove it.")
    writable(out.parent)
    plan = Adaptation(epochs=epochs, rate=rate, batch=batch)
    where = device_of(device)
    served = serve_folder(bases, data, how, plan, seed, keep=keep.value, trust=trust, network=network, device=where)
    write_model(served, out)
    if as_json:
        summary = {
            "model": str(out), "how": served.way, "epoch": served.fitted.epoch, "images": served.images,
            "held_out": served.held_out, "before": served.before, "after": served.after,
            **({"tried": {one.way: one.accuracy for one in served.choice.judged}} if served.choice else {}),
            "learned": {name: as_record(table) for name, table in served.tables.items()},
            "skipped": [{"path": path, "reason": reason} for path, reason in served.bad],
        }  # fmt: skip
        say_json(summary)
        return
    if served.bad:
        print_bad(console, served.bad)
    for table in served.tables.values():
        console.print(value_table(table))
    if served.choice is not None:
        if served.choice.judged:
            tried = ", ".join(f"{one.way} {100 * one.accuracy:.1f} %" for one in served.choice.judged)
            console.print(f"Tried: {tried}.", highlight=False, soft_wrap=True)
        say(f"Chosen: {served.way}, because {served.choice.reason}.")
    judged = (
        f"{served.held_out} held-out images"
        if served.held_out
        else f"the {served.images} training images (fewer than {ENOUGH}: none held out)"
    )
    console.print(
        f"Accuracy on {judged}: {100 * served.before:.1f} % before, [bold]{100 * served.after:.1f} %[/bold] after "
        f"{served.fitted.epoch} {'epoch' if served.fitted.epoch == 1 else 'epochs'} of {served.way} on {served.images} "
        "images.",
        highlight=False,
        soft_wrap=True,
    )
    if served.after <= served.before and served.way not in UNTRAINED:
        console.print(
            "[yellow]Note:[/yellow] the personal model is not better on these images than the one it started from; try "
            "another --how, more images, or keep the model without personalization (--how none).",
            highlight=False,
            soft_wrap=True,
        )
    if served.held_out and served.held_out < ENOUGH:
        console.print(
            f"[yellow]Note:[/yellow] {served.held_out} images measure an accuracy in steps of "
            f"{100 / served.held_out:.0f} points.",
            highlight=False,
            soft_wrap=True,
        )
    say(f"Model: {out}")


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A personal model, as 'personalize' wrote it.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="Image files, or folders of them.")],
    labelled: Annotated[
        bool, typer.Option("--labelled", help="The folder of an image is its true class: also print the accuracy.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One json object per image, with all probabilities.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated: image, class, probability.")] = False,
    batch: Annotated[int, typer.Option(min=1, max=100_000, help="Images that are predicted at once.")] = 64,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "auto",
    trust: Trust = False,
    network: OwnNetwork = None,
) -> None:
    """Print the class of every image and its probability.

    Images are read and predicted in batches, so that results appear while it works.
    """
    import torch

    from fedbasis.cli.display import print_bad
    from fedbasis.engines.choice import device_of
    from fedbasis.serving.new_client import Predictor, read_batches
    from pflbed.folders import find_images

    if as_json and as_csv:
        raise InputError("Predictions can be printed as json or as csv, but both were asked for; leave one out.")
    predictor = Predictor.load(model, trust, network, str(device_of(device)))
    classes = predictor.card.classes
    paths = find_images(images, classes if labelled else None)
    bad: list[tuple[str, str]] = []
    true, guessed = list[int](), list[int]()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if as_csv:
        writer.writerow(["image", "class", "probability", *(["true"] if labelled else [])])
    silent = not (shows_progress() and errors.is_terminal) or len(paths) <= batch
    with Progress(console=errors, transient=True, disable=silent) as progress:
        task = progress.add_task("predicting", total=len(paths))
        for part in read_batches(predictor.card, paths, batch):
            bad += part.bad
            rows = predictor(torch.from_numpy(part.pixels)) if part.paths else torch.zeros(0, len(classes))
            for path, row in zip(part.paths, rows.tolist(), strict=True):
                index = max(range(len(row)), key=row.__getitem__)
                name = path.absolute().parent.name
                if labelled:
                    true.append(classes.index(name))
                    guessed.append(index)
                if as_json:
                    line = {"image": str(path), "class": classes[index], "probability": row[index]}
                    line |= {"true": name} if labelled else {}
                    say_json({**line, "all": dict(zip(classes, row, strict=True))})
                elif as_csv:
                    texts = (str(path), classes[index], f"{row[index]:.6g}", *([name] if labelled else []))
                    writer.writerow([printable(text) for text in texts])
                else:
                    say(f"{path}  {classes[index]}  {row[index]:.3f}")
            sys.stdout.flush()
            progress.advance(task, len(part.paths) + len(part.bad))
    if bad:
        print_bad(errors, bad)
    if len(bad) == len(paths):
        raise InputError(f"At least one image must be readable, but none of {len(bad)} is: {bad[0][0]} ({bad[0][1]}).")
    if labelled:
        _print_accuracy(errors if as_json or as_csv else console, true, guessed, predictor.card)


def _print_accuracy(to: Console, true: list[int], guessed: list[int], card: "Card") -> None:
    """Print the plain accuracy, and the personalized one, in which a class counts as often as the client has it."""
    import numpy as np

    from pflbed import weighted_accuracy

    labels, predictions = np.array(true), np.array(guessed)
    right = int((labels == predictions).sum())
    say(f"{right} of {len(true)} right ({100 * right / len(true):.1f} %)", to=to)
    counts = card.provenance.get("label_counts")
    if not isinstance(counts, list) or len(counts) != len(card.classes):
        return
    share = np.array([float(count) if isinstance(count, int) and count > 0 else 0.0 for count in counts])
    present = np.bincount(labels, minlength=len(share))
    weights = share[labels] / np.maximum(present, 1)[labels]
    if weights.sum() > 0:
        score = weighted_accuracy(predictions, labels, weights)
        say(
            f"Personalized accuracy: {100 * score:.1f} % (every class counts as often as this client has it, as in the "
            "tables of 'train' and 'report')",
            to=to,
        )
