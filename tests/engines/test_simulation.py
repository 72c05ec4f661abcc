"""A round of clients whose data are here."""

from pathlib import Path

import torch

from battery import same
from fedbasis.engines.base import ClientVersions
from fedbasis.engines.client_state import ClientStates
from fedbasis.experiment import prepare
from fedbasis.networks.inputs import Examples
from helpers import Serial
from small_experiments import small


def test_examples_and_images_are_taken_alike(dataset: Path) -> None:
    prepared = prepare(small(dataset))
    method, name = prepared.method, prepared.benchmark.participating[0]
    images = prepared.training[name]
    server, examples = method.init(0), Examples(torch.from_numpy(images.pixels), torch.from_numpy(images.labels))
    sents = [
        next(iter(Serial(method, {name: data}, 0).map(server, [name], 0)))[1].tensors for data in (images, examples)
    ]
    assert same(*sents)


def test_client_states_are_versions() -> None:
    versions: ClientVersions = ClientStates()  # mypy checks it
    versions.remove()
