"""At the paper's scale every run has the paper's settings: numbers written down from the paper, study by study."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from fedbasis.studies import STUDIES
from fedbasis.studies.base import RunRequest, Setup
from fedbasis.studies.grids import chosen_on
from fedbasis.studies.scales import SCALES
from pflbed.errors import InputError

PAPER = Setup(SCALES["paper"], seeds=(0, 1, 2), strict=False)
LOCAL = {"rate": 0.01, "momentum": 0.9, "decay": 1e-4, "epochs": 5}
"""Section 5.1: SGD with momentum 0.9, weight decay 1e-4, rate 0.01, 5 local epochs."""
BEDS: dict[str, dict[str, Any]] = {
    "pacs": {"rounds": 100, "batch": 16, "participation": 1.0, "bases": 4, "clients": (20, 10), "pixels": (256, 224)},
    "office-home": {
        "rounds": 100, "batch": 16, "participation": 1.0, "bases": 4, "clients": (20, 10), "pixels": (256, 224)
    },
    "gld23k": {
        "rounds": 200, "batch": 64, "participation": 0.1, "bases": 8, "clients": (117, 116), "pixels": (256, 224)
    },
}  # fmt: skip
"""Section 5.1 and table 2: 80/40 clients are 20/10 of each of four domains."""
MAIN = ("new-clients", "all-methods", "variance")


def requests(name: str) -> list[RunRequest]:
    found = STUDIES[name].requests(PAPER)
    assert {request.seed for request in found} <= {0, 1, 2}
    return found


def settings(request: RunRequest) -> dict[str, Any]:
    e = request.experiment
    return {
        "rounds": e.train.rounds, "batch": e.train.batch, "participation": e.train.participation,
        "clients": (e.data.clients, e.data.new_clients), "pixels": (e.data.resolution, e.data.crop),
    }  # fmt: skip


PRINTED: dict[str, dict[str, dict[str, Any]]] = {
    "pacs": {
        "data": {"dataset": "pacs", "resolution": 256, "crop": 224, "clients": 20, "new_clients": 10, "alpha": 0.3,
                 "partition": "dirichlet", "split": (60, 20, 5, 15), "sizes": {"S": 0.5, "M": 1.0}},
        "train": {**LOCAL, "rounds": 100, "batch": 16, "participation": 1.0, "augment": "resized-crop+flip"},
        "personalize": {"epochs": 20, "rates": (0.005, 0.01, 0.05), "decay": 1e-4},
        "fedbasis": {"bases": 4, "tau": 0.1, "major": True, "warm_start": 0.3, "coordinate_descent": True,
                     "coefficient_epochs": None, "aggregation": "mean", "coefficient_optimizer": "sgd"},
    },
    "gld23k": {
        "data": {"dataset": "gld23k", "resolution": 256, "crop": 224, "clients": 117, "new_clients": 116,
                 "partition": "natural", "split": (80, 0, 20, 0), "sizes": {"S": 0.1, "M": 0.2, "L": 0.4}},
        "train": {**LOCAL, "rounds": 200, "batch": 64, "participation": 0.1, "augment": "resized-crop+flip"},
        "personalize": {"epochs": 20, "rates": (0.005, 0.01, 0.05), "decay": 1e-4},
        "fedbasis": {"bases": 8, "tau": 0.1, "major": True, "warm_start": 0.3, "coordinate_descent": True,
                     "coefficient_epochs": None, "aggregation": "mean", "coefficient_optimizer": "sgd"},
    },
}  # fmt: skip
"""What the paper prints: section 5.1, appendix B ("standard ImageNet-style pre-processing"), tables 1 and 2."""
PRINTED["office-home"] = {**PRINTED["pacs"], "data": {**PRINTED["pacs"]["data"], "dataset": "office-home"}}
OURS: dict[str, dict[str, dict[str, Any]]] = {
    "pacs": {"data": {}, "train": {}, "personalize": {"batch": 16, "statistics": ("frozen", "own")},
             "fedbasis": {"preset": "paper", "rate": "per-basis", "cluster": "network", "coefficient_rate": 0.01,
                          "new_client_factor": 1.0}},
    "gld23k": {"data": {"min_rows": 1}, "train": {}, "personalize": {"batch": 64, "statistics": ("frozen", "own")},
               "fedbasis": {"preset": "paper", "rate": "per-basis", "cluster": "network", "coefficient_rate": 0.01,
                            "new_client_factor": 1.0, "cluster_rounds": 5}},
}  # fmt: skip
"""What it leaves open and we chose, as docs/how-to/reproduce.md lists it; all other settings have their defaults."""
OURS["office-home"] = OURS["pacs"]
CIFAR_PRINTED: dict[str, dict[str, Any]] = {
    "train": {"rounds": 100, "epochs": 5, "batch": 10, "rate": 0.01, "momentum": 0.5, "decay": 1e-4,
              "participation": 0.1, "augment": "padded-crop+flip"},
    "fedavg": {"epochs": 1},
}  # fmt: skip
"""From the public code of Collins et al. 2021: scripts/*_5shards.sh, models/Update.py, utils/train_utils.py."""
CIFAR_SETTINGS: dict[str, dict[str, Any]] = {
    "fedrep": {"head_epochs": 10}, "fedprox": {"mu": 0.1}, "apfl": {"alpha": 0.75}, "ditto": {"lam": 1.0},
    "l2gd": {"probability": None}, "lg-fedavg": {"global_blocks": 2},
}  # fmt: skip
"""The same: scripts/FedRep_*_5shards.sh, utils/options.py. L2GD trains for the recipe's epochs, like everybody."""


def compare_every_setting(section: BaseModel, written: Mapping[str, Any], *ignored: str) -> None:
    """Compare all settings with those written down; a setting that is not must have its default."""
    defaults = {name: info.get_default(call_default_factory=True) for name, info in type(section).model_fields.items()}
    assert written.keys() <= defaults.keys()
    expected = {name: value for name, value in {**defaults, **written}.items() if name not in ignored}
    assert {name: getattr(section, name) for name in expected} == expected


@pytest.mark.parametrize("name", MAIN)
def test_every_setting_is_printed_or_listed_as_ours(name: str) -> None:
    for request in requests(name):
        e, bed = request.experiment, request.testbed
        for section in ("data", "train", "personalize"):
            written = {**PRINTED[bed][section], **OURS[bed][section]}
            compare_every_setting(getattr(e, section), written, "source", "ways")
        compare_every_setting(e.model, {"name": "resnet18"})
        compare_every_setting(e.aggregation, {})
        compare_every_setting(e.privacy, {})
        if request.name == "fedbasis-paper":
            compare_every_setting(e.method, {**PRINTED[bed]["fedbasis"], **OURS[bed]["fedbasis"]})
        elif request.name == "fedbasis":  # our defaults, beside it
            more = {"cluster_rounds": 5} if bed == "gld23k" else {}
            compare_every_setting(e.method, {"bases": PRINTED[bed]["fedbasis"]["bases"], **more})
        else:
            compare_every_setting(e.method, {})  # docs/how-to/reproduce.md: not printed, so their defaults here


FORTY: dict[str, dict[str, Any]] = {
    "data": {"clients": 10, "new_clients": 0, "split": (80, 0, 5, 15)}, "train": {"rounds": 20},
    "personalize": {"whom": "participating", "rates": (0.01,)},
}  # fmt: skip
"""Appendix C, tables A and figure 2: 40 clients, 100 epochs in all; they are all served, at one rate."""
RANDOM = {"major": False, "warm_start": 0.0, "init": "random", "upload": "full"}
JOINT = {"coordinate_descent": False, "upload": "full"}
TOGETHER = {**RANDOM, **JOINT, "tau": 1.0}
FIVE_RATES = {"personalize": {"rates": (0.001, 0.005, 0.01, 0.05, 0.1)}}
ALONG: dict[str, dict[str, Any]] = {
    "data": {"sizes": "S"},
    "train": {"serve_every": 10},
    "personalize": {"rates": (0.005,)},
}
OTHER_STUDIES: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "regularized": {"pfedme": {"data": {"sizes": "S"}}},
    "ablation": {
        "joint": {"data": {"sizes": "M"}, "method": JOINT},
        "no major basis": {"data": {"sizes": "M"}, "method": {"major": False}},
        "tau = 1": {"data": {"sizes": "M"}, "method": {"tau": 1.0}},
    },
    "communication": {
        "every 5 epochs": {**FORTY, "method": TOGETHER},
        "every step": {
            **FORTY, "train": {"rounds": 1200, "epochs": 1}, "method": {**TOGETHER, "communicate_every": "step"}
        },
    },
    "meta-rates": {"": FIVE_RATES},
    "bases": {
        str(count): {"data": {"sizes": "S"}, "method": {"bases": count}} for count in (2, 6, 8)
    },
    "collapse": {"joint": {**FORTY, "method": TOGETHER}, "apart": {**FORTY, "method": RANDOM}},
    "rates": {"": FIVE_RATES},
    "coefficients": {},
    "pca": {
        name: {**FORTY, "personalize": {**FORTY["personalize"], "rates": (0.005,)}, "method": own}
        for name, own in (("pca-k", {"components": 39}), ("kmeans-k", {}))
    },
    "curves": {"per-fedavg-fo": ALONG, "fedbasis-paper": ALONG},
    "parts": {},
}  # fmt: skip
"""What a run of the other studies changes in the settings of the main table, by its name (empty: all of its runs)."""


@pytest.mark.parametrize("name", OTHER_STUDIES)
def test_the_other_studies_change_nothing_else_in_the_settings_of_the_main_table(name: str) -> None:
    changes = OTHER_STUDIES[name]
    found = requests(name)
    assert found
    assert changes.keys() - {""} <= {request.name for request in found}
    for request in found:
        e, bed = request.experiment, request.testbed
        change = changes.get(request.name, changes.get("", {}))
        for section in ("data", "train", "personalize"):
            written = {**PRINTED[bed][section], **OURS[bed][section], **change.get(section, {})}
            if isinstance(size := written.get("sizes"), str):
                written["sizes"] = {size: PRINTED[bed]["data"]["sizes"][size]}
            compare_every_setting(getattr(e, section), written, "source", "ways")
        for fixed, written in ((e.model, {"name": "resnet18"}), (e.aggregation, {}), (e.privacy, {})):
            compare_every_setting(fixed, written)
        of_method: dict[str, Any] = {}
        if e.method_name == "fedbasis":
            printed = e.method.model_dump()["preset"] == "paper"
            assert printed == (request.name not in ("fedbasis", "further ways"))  # our defaults, beside it
            of_method = {**PRINTED[bed]["fedbasis"], **OURS[bed]["fedbasis"]}
            if not printed:
                of_method = {key: of_method[key] for key in ("bases", "cluster_rounds") if key in of_method}
        compare_every_setting(e.method, {**of_method, **change.get("method", {})})


def test_every_study_with_runs_is_compared_setting_by_setting() -> None:
    compared = {*MAIN, "cifar-participating", "cifar-new", *OTHER_STUDIES}
    assert {name for name in STUDIES if requests(name)} == compared


@pytest.mark.parametrize("name", ["cifar-participating", "cifar-new"])
def test_every_setting_on_cifar_is_from_the_code_that_the_paper_refers_to(name: str) -> None:
    for request in requests(name):
        e = request.experiment
        compare_every_setting(e.train, {**CIFAR_PRINTED["train"], **CIFAR_PRINTED.get(request.name, {})})
        compare_every_setting(e.model, {"name": f"collins-{e.data.dataset}"})
        adapt = {"whom": e.personalize.whom, "epochs": 10, "rates": (0.01,), "batch": 10, "momentum": 0.5}
        compare_every_setting(e.personalize, adapt, "ways", "validate_every")
        if request.name == "fedbasis-paper":
            compare_every_setting(e.method, {**PRINTED["pacs"]["fedbasis"], **OURS["pacs"]["fedbasis"], "bases": 3})
        elif request.name == "fedbasis":
            compare_every_setting(e.method, {"bases": 3})
        else:
            compare_every_setting(e.method, CIFAR_SETTINGS.get(request.name, {}))


@pytest.mark.parametrize("name", MAIN)
def test_the_main_tables(name: str) -> None:
    found = requests(name)
    assert {request.testbed for request in found} == set(BEDS)
    assert {request.seed for request in found} == {0, 1, 2}
    methods = {"fedrep", "fedbn", "pfedhn", "per-fedavg-fo", "knn-per", "fedavg", "fedbasis", "fedbasis-paper"}
    assert {request.name for request in found} == methods
    for request in found:
        e, expected = request.experiment, BEDS[request.testbed]
        assert settings(request) == {key: value for key, value in expected.items() if key != "bases"}
        assert {key: getattr(e.train, key) for key in LOCAL} == LOCAL
        assert e.model.name == "resnet18"
        assert e.personalize.epochs == 20
        assert e.personalize.rates == (0.005, 0.01, 0.05)
        assert e.personalize.decay == 1e-4
        assert e.personalize.validate_every == 1
        if request.testbed == "gld23k":
            assert e.data.partition == "natural"
            assert dict(e.data.sizes) == {"S": 0.1, "M": 0.2, "L": 0.4}
            assert e.data.split[2] == 20
        else:
            assert (e.data.partition, e.data.alpha) == ("dirichlet", 0.3)
            assert e.data.split == (60, 20, 5, 15)
            assert dict(e.data.sizes) == {"S": 0.5, "M": 1.0}
        if request.name == "fedbasis":
            assert e.method.model_dump()["bases"] == expected["bases"]
            assert e.ways == ("lp", "coefficients+classifier", "prior+lp", "prior+coefficients+classifier")
        if request.name == "fedbasis-paper":
            own = e.method.model_dump()
            assert own["bases"] == expected["bases"]
            assert (own["tau"], own["major"], own["warm_start"]) == (0.1, True, 0.3)
            assert (own["aggregation"], own["rate"], own["cluster"]) == ("mean", "per-basis", "network")
            assert (own["coefficient_optimizer"], own["coefficient_epochs"]) == ("sgd", None)  # as many as on bases
            assert own["coordinate_descent"]
            assert e.ways == ("coefficients+classifier",)


def test_regularized_is_on_office_home_with_three_methods_and_a_control() -> None:
    found = requests("regularized")
    assert {request.testbed for request in found} == {"office-home"}
    ways = {request.name: request.experiment.ways for request in found}
    assert {"ft", "ft-prox"} <= set(ways.pop("fedavg"))  # the control, the run of the main table
    assert ways == {
        "per-fedavg-fo": ("ft", "ft-prox"), "pfedme": ("ft", "pfedme"), "fedbasis-paper": ("coefficients+classifier",),
        "fedbasis": ("lp", "coefficients+classifier", "prior+lp", "prior+coefficients+classifier"),
    }  # fmt: skip
    assert all(request.experiment.train.rounds == 100 for request in found)


def test_ablation_takes_one_design_away_at_a_time() -> None:
    found = requests("ablation")
    assert {request.testbed for request in found} == {"office-home", "gld23k"}
    designs = {
        (request.testbed, request.name): tuple(
            request.experiment.method.model_dump()[key] for key in ("coordinate_descent", "major", "tau")
        )
        for request in found
    }
    for testbed in ("office-home", "gld23k"):
        mine = {name: design for (where, name), design in designs.items() if where == testbed}
        assert mine == {
            "joint": (False, True, 0.1), "no major basis": (True, False, 0.1), "tau = 1": (True, True, 1.0),
            "FedBasis": (True, True, 0.1),
        }  # fmt: skip
    sizes = {tuple(request.experiment.data.sizes) for request in found if request.name != "FedBasis"}
    assert sizes == {("M",)}  # the only one in these tables


@pytest.mark.parametrize(
    ("name", "clients", "whom"), [("cifar-participating", (100, 0), "participating"), ("cifar-new", (80, 20), "new")]
)
def test_cifar(name: str, clients: tuple[int, int], whom: str) -> None:
    found = requests(name)
    assert {request.experiment.data.dataset for request in found} == {"cifar10", "cifar100"}
    for request in found:
        e = request.experiment
        assert (e.data.clients, e.data.new_clients) == clients
        assert (e.data.partition, e.data.classes_per_client, e.data.resolution) == ("shards", 5, 32)
        assert e.personalize.whom == whom
        assert e.personalize.epochs == 10
        assert e.model.name == f"collins-{e.data.dataset}"
        assert e.data.limit is None
        own = e.method.model_dump()
        if request.name in ("fedbasis", "fedbasis-paper"):
            assert own["bases"] == 3
    methods = {request.name for request in found}
    assert len(methods) == (14 if whom == "participating" else 5)  # the paper's, FedBasis as it is here, and kNN-Per


def test_communication_and_collapse_have_forty_clients_and_random_bases() -> None:
    for name in ("communication", "collapse"):
        for request in requests(name):
            e, own = request.experiment, request.experiment.method.model_dump()
            assert request.testbed == "pacs"
            assert 4 * e.data.clients == 40
            assert (own["bases"], own["init"], own["warm_start"]) == (4, "random", 0)
            assert (own["coefficient_optimizer"], own["coefficient_rate"]) == ("sgd", LOCAL["rate"])  # as printed
            assert (own["aggregation"], own["rate"]) == ("mean", "per-basis")
            assert e.model.weights is None
            if own["communicate_every"] == "step":
                assert e.train.rounds == 1200  # 100 epochs of about 12 batches
            else:
                assert (e.train.rounds, e.train.epochs) == (20, 5)  # 100 epochs in all
            assert own["coordinate_descent"] == (request.name == "apart")
    assert {request.name for request in requests("communication")} == {"every step", "every 5 epochs"}


def test_rates() -> None:
    for name, methods in (
        ("meta-rates", {"fedavg", "per-fedavg-fo", "per-fedavg-hf", "fedbasis", "fedbasis-paper"}),
        ("rates", {"fedavg", "per-fedavg-fo", "fedbasis", "fedbasis-paper"}),
    ):
        found = requests(name)
        assert {request.name for request in found} == methods
        assert {request.testbed for request in found} == {"office-home"}
        assert {request.experiment.personalize.rates for request in found} == {(0.001, 0.005, 0.01, 0.05, 0.1)}
        ways = {request.name: request.experiment.ways for request in found}
        assert (ways["fedavg"], ways["fedbasis"]) == (("ft", "ft@own", "lp"), ("lp", "coefficients+classifier"))
    assert {request.key for request in requests("rates")} <= {request.key for request in requests("meta-rates")}


def test_bases() -> None:
    found = requests("bases")
    assert {request.testbed for request in found} == {"pacs", "office-home"}
    counts = {request.name: request.experiment.method.model_dump().get("bases") for request in found}
    assert counts == {"1": None, "2": 2, "4": 4, "6": 6, "8": 8}  # one basis is FedAvg + FT
    assert {request.experiment.method_name for request in found if request.name == "1"} == {"fedavg"}
    main = {request.key for request in requests("new-clients")}
    assert {request.name for request in found if request.key in main} == {"1", "4"}
    assert {tuple(request.experiment.data.sizes) for request in found if request.key not in main} == {("S",)}


def test_coefficients_pca_and_curves() -> None:
    main = {request.key for request in requests("new-clients")}
    assert {request.key for request in requests("coefficients")} <= main  # the main table's own runs
    pca = {request.name: request.experiment for request in requests("pca")}
    assert 4 * pca["pca-k"].data.clients == 40
    assert pca["pca-k"].method.model_dump()["components"] == 39
    assert pca["kmeans-k"].method.model_dump()["centroids"] == 4
    assert {experiment.model.weights for experiment in pca.values()} == {None}
    curves = {request.name: request.experiment for request in requests("curves")}
    assert {request.testbed for request in requests("curves")} == {"office-home"}
    for name in ("per-fedavg-fo", "fedbasis-paper"):
        assert curves[name].train.serve_every == 10
        assert curves[name].personalize.rates == (0.005,)
    assert "ft-prox" in curves["regularized"].ways


def test_datasets_split_and_clients_train_nothing() -> None:
    assert [request for name in ("datasets", "split", "clients") for request in requests(name)] == []


@pytest.mark.parametrize(
    ("scale", "part"), [("smoke", "all"), ("cpu", "tables"), ("photo", "tables"), ("paper", "all")]
)
def test_every_run_of_a_table_is_on_the_part_of_its_scale(scale: str, part: str) -> None:
    """No table at the scale cpu has an image on which settings were chosen; the paper knows no such part."""
    setup = Setup(SCALES[scale], strict=False)
    parts = {request.experiment.data.part for study in STUDIES.values() for request in study.requests(setup)}
    assert parts == {part}
    assert {bed.data.get("part", "all") for bed in SCALES[scale].testbeds.values()} == {part}


def test_at_the_scale_photo_every_row_trains_the_same_upper_blocks() -> None:
    setup = Setup(SCALES["photo"], {"pacs": "features"}, "weights.safetensors", strict=False)
    found = STUDIES["new-clients"].requests(setup)
    assert {request.name for request in found} == {"per-fedavg-fo", "knn-per", "fedavg", "fedbasis-paper", "fedbasis"}
    for request in found:
        e = request.experiment
        assert (e.model.name, e.model.options) == ("efficientnet-lite0", {"first_block": 11})
        assert (e.data.source, e.data.dataset, e.data.resolution, e.data.channels) == ("features", "arrays", 6, 112)
        assert (e.train.augment, e.train.rounds, e.train.epochs, e.personalize.epochs) == ("flip", 20, 1, 10)
    ways = next(request.experiment.ways for request in found if request.name == "fedavg")
    assert {"none", "prior", "lp", "lp@frozen", "lp@own", "ft", "ft@frozen", "ft-prox"} <= set(ways)
    with pytest.raises(InputError, match="add --data pacs=FOLDER"):
        STUDIES["new-clients"].requests(Setup(SCALES["photo"], weights="weights.safetensors"))


def test_what_tuning_chose_on_pacs_is_used_where_nothing_was_tuned() -> None:
    photo = Setup(SCALES["photo"], {"pacs": "features"}, "weights.safetensors", strict=False)
    found = {request.name: request.experiment for request in STUDIES["new-clients"].requests(photo)}
    assert found["fedbasis"].method.warm_start == 0.9  # type: ignore[attr-defined]
    assert found["fedbasis-paper"].method.warm_start == 0.3  # type: ignore[attr-defined]  # as it is printed
    assert found["fedavg"].personalize.prox == 0.1
    assert found["knn-per"].personalize.prox == 1.0
    assert "warm_start = 0.9" in chosen_on(photo, "pacs", list(found))
    cpu = Setup(SCALES["cpu"], {"": "data"}, "weights.safetensors", strict=False)
    share = {testbed: cpu.raw(testbed, "fedbasis")["method"].get("warm_start") for testbed in cpu.scale.testbeds}
    assert share == {"pacs": 0.9, "cifar10": 0.9, "cifar100": 0.9, "cifar10-all": 0.9}
    pull = {testbed: cpu.raw(testbed, "fedavg")["personalize"].get("prox") for testbed in cpu.scale.testbeds}
    assert pull == {"pacs": 0.1, "cifar10": 0.1, "cifar100": 0.1, "cifar10-all": 0.1}
    assert "warm_start" not in replace(photo, tuned=False).raw("pacs", "fedbasis")["method"]  # a try of a tuning
