"""A row of a table is a run, of a method or of a variant, and a way; every study has its number of seeds."""

import pytest

from fedbasis.studies import STUDIES, studies
from fedbasis.studies.base import Setup
from fedbasis.studies.new_clients import EVERY, PROPOSED, WAYS, NewClients
from fedbasis.studies.plan import plan
from fedbasis.studies.scales import SCALES
from fedbasis.studies.variants import PRINTED, row_title, variant

CPU = Setup(SCALES["cpu"], seeds_by_study=True, strict=False)


def test_a_variant_has_its_own_title_and_settings() -> None:
    assert row_title((PRINTED, "coefficients+classifier")) == "FedBasis (as printed)"
    assert row_title(("fedbasis", "coefficients+classifier")) == "FedBasis"
    assert row_title(("fedavg", "ft")) == "FedAvg + FT"
    assert variant("fedavg").method == "fedavg"
    assert variant(PRINTED).method == "fedbasis"


@pytest.mark.parametrize("scale", SCALES)
def test_both_fedbases_are_in_the_main_tables_and_differ(scale: str) -> None:
    setup = Setup(SCALES[scale], strict=False, tuned=False)  # as they are: the number of bases may be tuned
    for name in ("new-clients", "all-methods", "variance", "meta-rates"):
        found = {request.name: request.experiment.method.model_dump() for request in STUDIES[name].requests(setup)}
        assert found[PRINTED]["coefficient_optimizer"] == "sgd"
        assert found["fedbasis"]["coefficient_optimizer"] == "adam"
        assert found[PRINTED]["bases"] == found["fedbasis"]["bases"]


def test_the_main_tables_have_the_controls() -> None:
    titles = [row_title(key) for key in PROPOSED]
    for row in ("FedBasis (as printed)", "FedBasis", "FedBasis without coefficients", "FedAvg + LP",
                "FedAvg + FT (frozen statistics)", "FedAvg + FT (prox)", "kNN-Per + FT"):  # fmt: skip
        assert row in titles
    titles = [row_title(key) for key in EVERY]
    assert {"FedAvg + LP (frozen statistics)", "FedAvg + LP (own statistics)"} <= set(titles)
    assert len(set(titles)) == len(titles)
    assert set(PROPOSED) <= set(EVERY)
    assert {name for name, _ in EVERY} == set(WAYS)


@pytest.mark.parametrize("scale", SCALES)
def test_every_row_of_the_main_tables_is_served(scale: str) -> None:
    setup = Setup(SCALES[scale], strict=False)
    for study in (STUDIES["new-clients"], STUDIES["all-methods"], STUDIES["variance"]):
        assert isinstance(study, NewClients)
        served = {request.name: request.experiment.personalize.ways for request in study.requests(setup)}
        rows = study.rows(SCALES[scale])
        assert len(set(rows)) == len(rows)
        assert all(how in (served[name] or ()) for name, how in rows if name in served)
        tuned_too = "FedBasis + class prior + FT" in {row_title(key) for key in rows}
        assert tuned_too == (scale == "photo")  # where fine-tuning is the strongest baseline


def test_methods_leave_out_variants_too() -> None:
    setup = Setup(SCALES["cpu"], methods=("fedbasis",), strict=False)
    assert {request.name for request in STUDIES["new-clients"].requests(setup)} == {"fedbasis", PRINTED}
    setup = Setup(SCALES["cpu"], methods=("fedavg",), strict=False)
    assert {request.name for request in STUDIES["new-clients"].requests(setup)} == {"fedavg"}


def test_main_tables_have_three_seeds_and_others_at_least_one() -> None:
    seeds = {name: CPU.of(study).seeds for name, study in STUDIES.items()}
    main = {"new-clients", "all-methods", "variance", "parts"}
    assert {name: found for name, found in seeds.items() if len(found) != 1} == dict.fromkeys(main, (0, 1, 2))
    assert {CPU.of(study).seeds for name, study in STUDIES.items() if name not in main} == {(0,)}
    items = plan(studies(["new-clients", "ablation"]), CPU)
    assert {item.request.seed for item in items if "new-clients" in item.studies} == {0, 1, 2}
    assert {item.request.seed for item in items if "ablation" in item.studies} == {0}
    given = Setup(SCALES["cpu"], seeds=(0, 1), strict=False)
    assert {item.request.seed for item in plan(studies(["new-clients", "ablation"]), given)} == {0, 1}
    smoke = Setup(SCALES["smoke"], seeds_by_study=True)
    assert smoke.of(STUDIES["new-clients"]).seeds == (0,)


def test_best_is_looked_at_every_epoch() -> None:
    for request in STUDIES["new-clients"].requests(CPU):
        assert request.experiment.personalize.validate_every == 1
