"""The command ``fedbasis-edge``: personalize, predict and inspect, without torch."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from fedbasis_edge.bundle import ABOUT, Bundle, open_bundle
from fedbasis_edge.fit import ENOUGH, UNPERSONALIZED, Personal, personalize
from fedbasis_edge.model import EdgeModel, alpha_table, open_model, write_model
from pflbed.errors import InputError
from pflbed.folders import find_images
from pflbed.images import UNREADABLE, read_image, reason
from pflbed.plain_text import one_line

BARS = 8
EPILOG = """examples:
  fedbasis-edge personalize bases/ --data my-images/ --out model/    # my-images/<class>/<image>
  fedbasis-edge predict model/ photo.jpg
  fedbasis-edge inspect bases/

The images stay where they are, nothing is sent, and no copy of them is written."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except InputError as error:
        sys.stderr.write(f"Error: {one_line(str(error))}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("Stopped; nothing was written.\n")
        return 130
    except BrokenPipeError:  # whoever read the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedbasis-edge",
        description="Personalize published bases on this device, with numpy, onnxruntime and Pillow.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("personalize", help="Fit the bases to a folder of images and write one ordinary model.")
    one.set_defaults(run=_personalize)
    one.add_argument("bundle", type=Path, metavar="BUNDLE", help="What 'fedbasis export BASES --to edge' completed.")
    one.add_argument("--data", type=Path, required=True, metavar="DIR", help="The images, as <class>/<image>.")
    one.add_argument("--out", type=Path, required=True, metavar="MODEL", help="The folder of the model.")
    one.add_argument("--epochs", type=_positive, help="Passes over the images; as the bundle says if left out.")
    one.add_argument("--rate", type=float, help="The learning rate of the classifier; as the bundle says if left out.")
    one.add_argument("--batch", type=_positive, help="Images of a step, at least 2.")
    one.add_argument("--seed", type=int, default=0, help="Decides the order of the images and which are held out.")
    one.add_argument("--json", action="store_true", help="For machines: one json object instead of the table.")
    two = commands.add_parser("predict", help="Print the class of every image and its probability.")
    two.set_defaults(run=_predict)
    two.add_argument("model", type=Path, metavar="MODEL", help="What 'personalize' wrote.")
    two.add_argument("images", type=Path, nargs="+", metavar="IMAGES", help="Image files, or folders of them.")
    two.add_argument("--labelled", action="store_true", help="The folder of an image is its class: print the accuracy.")
    two.add_argument("--json", action="store_true", help="One json object per image, with all probabilities.")
    three = commands.add_parser("inspect", help="Say what a bundle or a model is.")
    three.set_defaults(run=_inspect)
    three.add_argument("folder", type=Path, metavar="FOLDER", help="A bundle or a model.")
    for command in (one, two):
        command.add_argument("--threads", type=int, default=0, help="Threads of the runtime; 0: one per core.")
        text = "Open the graphs without trying them in another process before; saves a second."
        command.add_argument("--trust", action="store_true", help=text)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 100000, got {text}")
    return int(text)


def _personalize(options: argparse.Namespace) -> None:
    if options.out.exists():
        raise InputError(f"The output {options.out} must not exist yet, but it does; choose another name or remove it.")
    if options.rate is not None and not 0 < options.rate < 1e6:
        raise InputError(f"--rate must be a positive number, but it is {options.rate}.")
    bundle = open_bundle(options.bundle)
    require_memory(bundle)
    shows = sys.stderr.isatty() and not options.json

    def progress(epoch: int, epochs: int, loss: float) -> None:
        end = "\n" if epoch == epochs else ""
        sys.stderr.write(f"\repoch {epoch}/{epochs}  loss {loss:.3f} {end}")
        sys.stderr.flush()

    made = personalize(
        bundle, options.data, seed=options.seed, epochs=options.epochs, rate=options.rate, batch=options.batch,
        threads=options.threads, progress=progress if shows else None, trust=options.trust,
    )  # fmt: skip
    write_model(made, options.out)
    if options.json:
        _say_json(
            {
                "model": str(options.out), "how": made.way, "epoch": made.epochs, "images": made.images,
                "held_out": made.held_out, "before": made.before, "after": made.after,
                "learned": {"alpha": alpha_table(made)},
                "skipped": [{"path": path, "reason": why} for path, why in made.bad],
            }
        )  # fmt: skip
        return
    _print_personal(made)
    _say(f"Model: {options.out}")


def _print_personal(made: Personal) -> None:
    for path, why in made.bad:
        _say(f"Left out: {path} ({why})")
    table = alpha_table(made)
    _say(table["title"])
    width = max(len(name) for name, _ in table["rows"])
    for name, row in table["rows"]:
        _say(f"  {name:{width}}  " + "  ".join(f"{_bar(value)} {value:.2f}" for value in row))
    judged = (
        f"{made.held_out} held-out images"
        if made.held_out
        else f"the {made.images} training images (fewer than {ENOUGH}: none held out)"
    )
    _say(
        f"Accuracy on {judged}: {100 * made.before:.1f} % before, {100 * made.after:.1f} % after {made.epochs} epochs "
        f"of {made.way} on {made.images} images."
    )
    if made.way == UNPERSONALIZED:
        _say(
            "Note: the personal model was worse on the held-out images, so the model is the one it started from; try "
            "more images."
        )


def _bar(value: float) -> str:
    return "█" * round(value * BARS) + "·" * (BARS - round(value * BARS))


def require_memory(bundle: Bundle) -> None:
    """Raise an ``InputError`` if this machine has less free memory than a step needs."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not known on this system
        return
    if bundle.memory > free:
        raise InputError(
            f"A training step of this bundle needs {bundle.memory / 2**20:,.0f} MiB, but {free / 2**20:,.0f} MiB are "
            "free; close other programs, or use bases of a smaller network."
        )


def _predict(options: argparse.Namespace) -> None:
    model = open_model(options.model, options.threads, options.trust)
    paths = find_images(options.images, model.classes if options.labelled else None)
    bad, right, readable = list[tuple[str, str]](), 0, 0
    for path in paths:
        row = _probabilities(model, path, bad)
        if row is None:
            continue
        index, readable = int(row.argmax()), readable + 1
        true = path.absolute().parent.name
        right += model.classes[index] == true
        if options.json:
            line = {"image": str(path), "class": model.classes[index], "probability": float(row[index])}
            line |= {"true": true} if options.labelled else {}
            _say_json({**line, "all": dict(zip(model.classes, row.tolist(), strict=True))})
        else:
            _say(f"{path}  {model.classes[index]}  {row[index]:.3f}")
    for path_text, why in bad:
        _say(f"Left out: {path_text} ({why})", sys.stderr)
    if not readable:
        raise InputError(f"At least one image must be readable, but none of {len(bad)} is: {bad[0][0]} ({bad[0][1]}).")
    if options.labelled:
        to = sys.stderr if options.json else sys.stdout
        _say(f"{right} of {readable} right ({100 * right / readable:.1f} %)", to)


def _probabilities(model: EdgeModel, path: Path, bad: list[tuple[str, str]]) -> Any:
    height, width = model.resolution
    try:
        pixels = read_image(path, height if height == width else model.resolution, model.channels)
    except (*UNREADABLE, InputError) as error:
        bad.append((str(path), reason(error, path.parent)))
        return None
    return model(np.asarray(pixels)[None])[0]


def _inspect(options: argparse.Namespace) -> None:
    folder = options.folder / "bases" if (options.folder / "bases").is_dir() else options.folder
    if (folder / ABOUT).exists():
        bundle = open_bundle(folder)
        height, width = bundle.resolution
        _say(f"Bundle of {len(bundle.groups)} models in {len(bundle.blocks)} blocks: {', '.join(bundle.blocks)}")
        _say(f"{len(bundle.classes)} classes: {', '.join(bundle.classes)}")
        _say(f"Images: {height} x {width} pixels, {bundle.channels} channels")
        _say(
            f"Training: {bundle.epochs} epochs, batches of {bundle.batch}, rates {bundle.rates[0]:g} (coefficients) "
            f"and {bundle.rates[1]:g} (classifier), {bundle.statistics} statistics"
        )
        total = sum(len(data) for data in bundle.files.values())
        _say(f"Size: {total / 2**20:.1f} MiB; a training step needs {bundle.memory / 2**20:.0f} MiB")
        return
    model = open_model(folder)
    provenance = model.card["provenance"]
    _say(f"Personal model of {len(model.classes)} classes: {', '.join(model.classes)}")
    for key in ("personalized_by", "epochs", "images", "held_out", "before", "after"):
        if key in provenance:
            _say(f"{key.replace('_', ' ')}: {provenance[key]}")


def _say(text: str, to: TextIO | None = None) -> None:
    (to or sys.stdout).write(f"{one_line(text)}\n")


def _say_json(value: Any) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")


if __name__ == "__main__":
    sys.exit(main())
