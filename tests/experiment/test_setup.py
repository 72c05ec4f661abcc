"""What an experiment is prepared from."""

from pathlib import Path

import numpy as np

import pflbed
from fedbasis.experiment import prepare
from fedbasis.experiment.config import parse
from small_experiments import raw


def test_a_limit_takes_as_many_of_every_class_and_changes_the_run(dataset: Path, tmp_path: Path) -> None:
    whole, part = (prepare(parse(raw(dataset, data=d))) for d in ({}, {"limit": 20}))
    table = part.benchmark.table
    counts = np.bincount(table.labels + 3 * table.domains)
    assert counts.tolist() == [20] * 6
    assert set(table.paths) < set(whole.benchmark.table.paths)
    assert part.run(tmp_path) != whole.run(tmp_path)
    row = int(part.benchmark.rows(part.benchmark.new[0])[0])
    place = whole.benchmark.table.paths.index(table.paths[row])
    clients = pflbed.clients(whole.benchmark, next(iter(whole.clients.values())).train.source)
    assert np.array_equal(part.clients[part.benchmark.new[0]].train.pixels[0], clients.pixels[place])
