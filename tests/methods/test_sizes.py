"""Counted numbers against the tensors that the methods really have, and the table of the theory page."""

import re
from pathlib import Path

import pytest

from battery import QUICK, make
from fedbasis.methods import METHODS
from fedbasis.methods.fedbasis.config import FedBasisConfig
from fedbasis.methods.pfedhn import PFedHN, PFedHNConfig
from fedbasis.methods.sizes import of_fedbasis, of_pfedhn
from fedbasis.networks.models import Network
from fedbasis.tensors.params import only

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "theory.md"
ROWS = {
    "ResNet-18, PACS": (Network("resnet18", 7, 224), 4, 80),
    "ResNet-18, Office-Home": (Network("resnet18", 65, 224), 4, 80),
    "ResNet-18, GLD23k": (Network("resnet18", 203, 224), 8, 117),
    "ResNet-10 of width 16, PACS": (Network("resnet10", 7, 32, {"width": 16}), 4, 80),
    "collins-cifar10": (Network("collins-cifar10", 10, 32), 3, 100),
    "collins-cifar100": (Network("collins-cifar100", 100, 32), 3, 100),
}
"""The network, K and M of the page's rows."""


@pytest.mark.parametrize("major", [True, False])
def test_bases_are_as_many_numbers_as_counted(major: bool) -> None:
    task = make("fedavg", QUICK).task
    config = FedBasisConfig(bases=3, major=major, warm_start=0, init="random")
    state = METHODS["fedbasis"].build(config, task).init(0)
    counted = of_fedbasis(task.network, 3, major)
    assert sum(t.numel() for tensors in state.values() for t in only(tensors, task.parameters).values()) == (
        counted.shared
    )
    assert counted.own == 3 * len(task.layout.blocks)
    with_head = of_fedbasis(task.network, 3, major, classifier=True)
    assert with_head.own - counted.own == sum(t.numel() for n, t in task.initial(0).items() if n in task.head)


def test_a_hypernetwork_is_as_many_numbers_as_counted() -> None:
    task = make("fedavg", QUICK).task
    state = PFedHN.build(PFedHNConfig(embedding=5, hidden=7, layers=2), task).init(0)
    bias = only(state["model"], task.parameters)
    counted = of_pfedhn(task.network, 5, 7, 2)
    assert sum(t.numel() for t in (*state["hypernetwork"].values(), *bias.values())) == counted.shared
    assert state["start"]["embedding"].numel() == counted.own


def test_the_page_has_these_numbers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if re.match(r"\| (ResNet|collins)", line)}
    assert rows.keys() == ROWS.keys()
    for name, (network, bases, clients) in ROWS.items():
        ours = of_fedbasis(network, bases)
        head = of_fedbasis(network, bases, classifier=True)
        theirs = of_pfedhn(network, 1 + clients // 4)
        cells = [cell.strip() for cell in rows[name].strip("|").split("|")][1:]
        assert cells == [
            f"{ours.model:,}", f"{bases} + 1", f"{clients}", f"{ours.shared:,}", f"{ours.shared / clients:,.0f}",
            f"{ours.own} / {head.own:,}", f"{theirs.shared:,}", f"{theirs.shared / clients:,.0f}", f"{theirs.own}",
        ]  # fmt: skip
