"""Pretrain the small ResNet of ``--weights tiny-imagenet``: Tiny-ImageNet at 32 pixels, 200 classes.

    python benchmarks/pretrain.py FOLDER --out tiny-imagenet.safetensors

FOLDER holds the training images as ``<class>/<image>``. The classifier is not stored: every data set has its own.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import nn

from fedbasis.networks.augment import augmented
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.tensors.files import write_tensors
from fedbasis.tensors.seeding import torch_generator
from pflbed.cache import decode
from pflbed.folders import scan_client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    decoded = decode(given.folder, scan_client(given.folder), 32)
    pixels, labels = torch.from_numpy(decoded.images[:]), torch.from_numpy(decoded.table.labels.copy())
    classes = len(decoded.table.class_names)
    module = Network("resnet10", classes, 32, {"width": given.width}).build(given.seed).train()
    steps = given.epochs * (len(labels) // given.batch)
    optimizer = torch.optim.SGD(module.parameters(), given.rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, given.rate, total_steps=max(1, steps))
    prepare, generator = Preprocessing(32), torch_generator(given.seed, "pretrain")
    for epoch in range(given.epochs):
        began, right = time.perf_counter(), 0
        order = torch.randperm(len(labels), generator=generator)
        for rows in torch.split(order[: len(order) // given.batch * given.batch], given.batch):
            inputs = prepare(augmented(pixels[rows], "flip+shift", generator))
            logits = module(inputs)
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            right += int((logits.argmax(1) == labels[rows]).sum())
        share = right / max(1, len(labels) // given.batch * given.batch)
        print(
            f"epoch {epoch + 1}/{given.epochs}  {100 * share:.1f} % right  {time.perf_counter() - began:.0f} s",
            flush=True,
        )
    kept = {name: tensor for name, tensor in module.state_dict().items() if not name.startswith("fc.")}
    write_tensors(given.out, {"": kept})


if __name__ == "__main__":
    main()
