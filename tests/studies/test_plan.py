"""Every table and figure has its name, and a plan says which runs it needs."""

import pytest

from fedbasis.studies import STUDIES, studies
from fedbasis.studies.base import Setup
from fedbasis.studies.plan import plan
from fedbasis.studies.scales import SCALES
from pflbed.errors import InputError

NAMES = {
    "datasets": ("table-1",), "new-clients": ("table-2",), "regularized": ("table-3",),
    "ablation": ("table-4", "table-f"), "cifar-participating": ("table-5",), "cifar-new": ("table-6",),
    "communication": ("table-a",), "meta-rates": ("table-b",), "all-methods": ("table-c",), "variance": ("table-d",),
    "bases": ("table-e",), "collapse": ("figure-2",), "rates": ("figure-4a",), "coefficients": ("figure-4b",),
    "split": ("figure-3", "figure-a"), "clients": ("figure-b", "figure-c", "figure-d"), "pca": ("figure-e",),
    "curves": ("figure-f",), "parts": (),
}  # fmt: skip


def test_every_result_of_the_paper_has_its_name_and_its_number() -> None:
    assert {name: study.aliases for name, study in STUDIES.items()} == NAMES
    for name, aliases in NAMES.items():
        for alias in aliases:
            assert [study.name for study in studies([alias])] == [name]
    assert len(studies(["all"])) == 19
    assert [study.name for study in studies(["table-c", "table-2", "table-c"])] == ["new-clients", "all-methods"]
    with pytest.raises(InputError, match=r"there is no 'tabel-2' \(did you mean 'table-2'\?\)"):
        studies(["tabel-2"])


@pytest.mark.parametrize("scale", ["smoke", "cpu"])
def test_everybody_trains_for_the_scales_own_epochs(scale: str) -> None:
    setup = Setup(SCALES[scale], strict=False)
    found = {item.request.name: item.experiment for item in plan(studies(["cifar-participating", "table-2"]), setup)}
    head = found["fedrep"].train.epochs if scale == "smoke" else 10  # as its authors
    assert found["fedrep"].method.model_dump()["head_epochs"] == head
    if scale == "cpu":  # the other compares few methods
        assert found["l2gd"].method.model_dump()["probability"] is None


def test_figures_from_random_weights_ask_for_none() -> None:
    setup = Setup(SCALES["cpu"], {"": "x"}, weights=None)
    assert plan(studies(["collapse", "communication", "pca"]), setup)
    given = Setup(SCALES["cpu"], {"": "x"}, weights="resnet.safetensors")
    for item in plan(studies(["collapse", "communication", "pca"]), given):
        assert item.experiment.model.weights is None
