"""The terms of a federation: what is wrong gets a sentence, and what changes the result changes the run."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedbasis.flower.project import Project, toml
from fedbasis.flower.settings import Federation, read_federation
from pflbed.errors import InputError


class TestSettings:
    def test_what_is_written_is_what_was_meant(self) -> None:
        values = {"a": 1, "b": [1.5, "x"], "t": {"name": 'q"uo\\te', "none": None, "in": {"k-1": True}}}
        assert tomllib.loads(toml(values)) == {"a": 1, "b": [1.5, "x"], "t": {"name": 'q"uo\\te', "in": {"k-1": True}}}

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ('clients = ["a"]', "'classes' is missing"),
            ('clients = ["a", "a"]\nclasses = ["x", "y"]', "'a' is there twice"),
            ('clients = ["a"]\nclasses = ["x", "y"]\ndownload = "int8"', "'download'"),
            ('clients = ["a"]\nclasses = ["x", "y"]\nminimum = 0.0', "'minimum'"),
            ("clients = ", "must be TOML, but it is not"),
        ],
    )
    def test_wrong_terms_get_a_sentence(self, text: str, reason: str, tmp_path: Path) -> None:
        (tmp_path / "federation.toml").write_text(text)
        with pytest.raises(InputError, match=reason):
            read_federation(tmp_path)

    def test_the_terms_that_change_the_result_change_the_run(self) -> None:
        terms: dict[str, Any] = {"clients": ("a", "b"), "classes": ("x", "y")}
        assert Federation(**terms).identity == Federation(**terms, deadline=1.0, minimum=0.1).identity
        identities = [Federation(**terms, download=how).identity for how in ("float32", "bfloat16", "compact")]
        assert len(set(identities)) == 3


def test_noise_that_nodes_could_subtract_is_refused(project: Project) -> None:
    (experiment,) = (project.app / "experiments").glob("*.toml")
    private = experiment.read_text() + "\n[privacy]\nnoise_multiplier = 1.0\n"
    experiment.write_text(private.replace("[train]", '[train]\nweighting = "uniform"'))
    with pytest.raises(InputError, match=r"must have noise_seed = 'secret' in a federation, but it is 'run'"):
        project.plans()
    experiment.write_text(experiment.read_text() + 'noise_seed = "secret"\n')
    assert project.plans()[0].experiment.privacy.noise_seed == "secret"


def test_the_download_is_set_in_one_place(project: Project) -> None:
    (experiment,) = (project.app / "experiments").glob("*.toml")
    experiment.write_text(experiment.read_text().replace("[train]", '[train]\ndownload = "bfloat16"'))
    with pytest.raises(InputError, match=r"set in federation.toml, but .* has train.download = 'bfloat16'"):
        project.plans()


def test_compact_downloads_have_no_privacy(project: Project) -> None:
    (experiment,) = (project.app / "experiments").glob("*.toml")
    experiment.write_text(experiment.read_text() + '\n[privacy]\nnoise_multiplier = 1.0\nnoise_seed = "secret"\n')
    assert project.plans()
    terms = project.app / "federation.toml"
    terms.write_text('download = "compact"\n' + terms.read_text().replace('download = "float32"', ""))
    with pytest.raises(InputError, match=r"must not be 'compact', but .* has \[privacy\]"):
        project.plans()
