"""A personal model as one ONNX file: ``fedbasis export MODEL --to onnx`` or ``--to transformers``.

The file is the network's skeleton followed by its weights, so it is made as a client without torch makes it. It is
compared with torch before it is written.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import torch
from torch import nn

from fedbasis.edge.packages import onnx, session
from fedbasis.edge.skeleton import describe, float_arrays, model_metadata, skeleton, with_weights
from fedbasis.edge.verify import IMAGES, LARGEST, relative
from fedbasis.networks.models import NetworkSource, sides
from fedbasis.serving import artifact
from fedbasis.serving.new_client import LEARNED
from fedbasis.tensors.params import Tensors
from fedbasis.tensors.seeding import numpy_generator
from pflbed.errors import InputError
from pflbed.files import hidden_beside, replacing, write_json

MAX_ONNX = 2**31 - 1
"""Bytes of a protobuf message."""
BICUBIC = 3
"""Pillow's number of the interpolation with which images are scaled."""


def export_onnx(
    model: Path, out: Path, *, overwrite: bool = False, trust: bool = False, network: NetworkSource | None = None
) -> float:
    """Write a personal model as one ONNX file: ``images`` [N, C, H, W], preprocessed, to ``logits``.

    Class names and preprocessing are in the file's metadata, as JSON texts.

    Args:
        model: What ``fedbasis personalize`` wrote.
        out: The file.
        overwrite: Whether a file that is there already is replaced.
        trust: Whether code that the folder names may be run.
        network: Your own network, in place of the one that the card names.

    Returns:
        The relative difference of the logits from torch in float64.
    """
    _require_free(out, overwrite)
    _, data, error = _model_file(model, "images", trust, network)
    with replacing(out) as temporary:
        temporary.write_bytes(data)
    return error


def export_transformers(
    model: Path, out: Path, *, overwrite: bool = False, trust: bool = False, network: NetworkSource | None = None
) -> float:
    """Write a personal model as a folder that Transformers.js and Optimum read.

    Args:
        model: What ``fedbasis personalize`` wrote.
        out: The folder.
        overwrite: Whether a folder that is there already is replaced.
        trust: Whether code that the folder names may be run.
        network: Your own network, in place of the one that the card names.

    Returns:
        The relative difference of the logits from torch in float64.
    """
    _require_free(out, overwrite)
    card, data, error = _model_file(model, "pixel_values", trust, network)
    if card.architecture.channels != 3:
        raise InputError(
            "Transformers reads images with 3 channels, but this model takes "
            f"{card.architecture.channels}; use --to onnx."
        )
    with new_folder(out) as folder:
        (folder / "onnx").mkdir()
        (folder / "onnx" / "model.onnx").write_bytes(data)
        write_json(folder / "config.json", transformers_config(card))
        write_json(folder / "preprocessor_config.json", preprocessor_config(card))
    return error


def transformers_config(card: artifact.Card) -> dict[str, Any]:
    """Return the content of ``config.json``."""
    return {
        "model_type": "resnet",  # the readers know a list of types; this one runs a graph of pixel_values to logits
        "architectures": ["ResNetForImageClassification"],
        "id2label": {str(i): name for i, name in enumerate(card.classes)},
        "label2id": {name: i for i, name in enumerate(card.classes)},
        "num_labels": len(card.classes),
        "num_channels": card.architecture.channels,
        "transformers.js_config": {"dtype": "fp32"},
    }


def preprocessor_config(card: artifact.Card) -> dict[str, Any]:
    """Return the content of ``preprocessor_config.json``: scaled and cropped as ``fedbasis`` decodes images."""
    pixels = card.preprocessing
    height, width = sides(pixels.resolution)
    inputs = sides(card.architecture.resolution)
    size = {"shortest_edge": height} if height == width else {"height": height, "width": width}
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": size,
        "resample": BICUBIC,
        "do_center_crop": True,
        "crop_size": {"height": inputs[0], "width": inputs[1]},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(pixels.mean),
        "image_std": list(pixels.std),
    }


def _model_file(
    folder: Path, image: str, trust: bool, network: NetworkSource | None
) -> tuple[artifact.Card, bytes, float]:
    onnx()  # before anything takes time
    card, state = artifact.load(folder, "model", trust, network)
    if LEARNED in state:
        raise InputError(
            f"An ONNX model is one network, but what '{card.method}' predicts with needs more than that; use "
            "'fedbasis predict'."
        )
    architecture = artifact.network_of(card, network)
    bare = skeleton(architecture, image)
    describe(bare, model_metadata(card))
    data = with_weights(bare.SerializeToString(deterministic=True), float_arrays(state[""]))
    if len(data) > MAX_ONNX:
        raise InputError(f"An ONNX file must have less than 2 GiB, but this model has {len(data):,} bytes.")
    onnx().checker.check_model(data, full_check=True)
    return card, data, _difference(data, image, architecture.build(), state[""], architecture.input_shape)


def _difference(data: bytes, image: str, module: nn.Module, tensors: Tensors, shape: tuple[int, ...]) -> float:
    generator = numpy_generator(0, "verify an ONNX model")
    images = generator.normal(size=(IMAGES, *shape)).astype(np.float32)
    module.load_state_dict(tensors)
    with torch.no_grad():
        expected = module.double().eval()(torch.from_numpy(images).double())
    (logits,) = session(data).run(None, {image: images})
    found = relative(logits, expected)
    if not found <= LARGEST:
        raise InputError(
            f"The ONNX model must agree with torch to {LARGEST:g}, but its logits differ by {found:.1g}; nothing was "
            "written. Use another version of torch, or report this."
        )
    return found


def _require_free(out: Path, overwrite: bool) -> None:
    if out.exists() and not overwrite:
        raise InputError(
            f"The output {out} must not exist yet, but it does; choose another name, or replace it with --overwrite."
        )


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder to write to, which then replaces ``out``; it appears whole or not at all."""
    with hidden_beside(out) as folder:
        yield folder
        aside = folder.with_name("old")
        if out.exists():
            out.rename(aside)
        try:
            folder.rename(out)
        except OSError:
            if aside.exists():
                aside.rename(out)
            raise
        rmtree(aside, ignore_errors=True)
