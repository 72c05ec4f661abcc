"""A federation's folder: private keys stay private, and what was meant is read back."""

import stat
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.cli.build import build_fab_from_disk
from typer.testing import CliRunner

from fedbasis.cli.federation import federation as commands
from fedbasis.flower.project import Project
from pflbed.errors import InputError


class TestProject:
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's own
    def test_private_keys_are_private_and_never_in_the_app(self, project: Project) -> None:
        for path in project.keys.iterdir():
            private = b"PRIVATE KEY" in path.read_bytes()
            assert private == (path.suffix == ".key")
            assert not private or stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(project.keys.stat().st_mode) == 0o700
        with zipfile.ZipFile(BytesIO(build_fab_from_disk(project.app))) as bundle:
            assert "experiments/ditto.toml" in bundle.namelist()
            assert all(b"PRIVATE" not in bundle.read(name) for name in bundle.namelist())
        assert "keys/" in (project.folder / ".gitignore").read_text().splitlines()

    def test_reads_back_what_was_meant(self, project: Project) -> None:
        (plan,) = project.plans()
        assert plan.federation.clients == ("a", "b")
        assert plan.experiment.method_name == "ditto"
        assert [node.name for node in project.nodes()] == ["a", "b"]

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["init", "{here}"], "must not exist yet"),
            (["init", "{here}/x", "--method", "fedfoo"], "The method must be one of local, fedavg"),
            (["init", "{here}/x", "--method", "fedavg", "--model", "__main__:factory"], "name it by the script's file"),
            (["init", "{here}/x", "--method", "fedavg", "--model", "no_such:factory"], "must be importable"),
            (["init", "{here}/x", "--config", "{here}/five.toml"], "'data.channels' must be 1 or 3, but it is 5"),
            (["init", "{here}/x", "--data", "{here}/nothing"], "must be digits4 or a folder"),
            (["up", "{here}"], "it does not; 'fedbasis federation init' writes them"),
            (["personalize", "{project}", "--node", "z"], "'z' is not; there are a, b"),
            (["personalize", "{project}"], "must have a new node, but it has none"),
        ],
    )
    def test_mistakes_get_a_sentence(
        self, arguments: list[str], sentence: str, project: Project, tmp_path: Path
    ) -> None:
        (tmp_path / "five.toml").write_text("data = { channels = 5 }\nmethod = { name = 'fedavg' }\n")
        filled = [word.format(here=tmp_path, project=project.folder) for word in arguments]
        error = CliRunner().invoke(commands, filled).exception
        assert isinstance(error, InputError)
        assert sentence in str(error)
        assert not (tmp_path / "x").exists()
