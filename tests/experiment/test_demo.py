"""The commands that the demo prints can be pasted, whatever the paths."""

import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from fedbasis.experiment.demo import NEW_CLIENT, export_client, next_commands
from pflbed import Client, from_arrays


@pytest.fixture(scope="module")
def clients() -> dict[str, Client]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (60, 8, 8, 3), dtype=np.uint8)
    made = from_arrays(images, np.arange(60) % 3, domains=["photo"] * 60, clients=1, new=1)
    return {NEW_CLIENT: made["photo/n00"]}


def test_commands_quote_what_a_shell_would_split(
    clients: dict[str, Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "my runs"
    client = export_client(clients, out / "new-client-1")
    images = [path.relative_to(client) for path in client.rglob("*.png")]
    assert len(images) == len(clients[NEW_CLIENT].train.labels)
    monkeypatch.setattr(sys, "argv", ["some/where/.venv/bin/fedbasis", "demo"])
    words = [shlex.split(line) for line in next_commands(out / "run", client, out, out / "report.html")]
    assert {line[0] for line in words[:3]} == {"some/where/.venv/bin/fedbasis"}  # not on the path: called by its place
    assert words[0][1:] == ["personalize", f"{out / 'run'}", "--data", f"{client}", "--out", f"{out / 'my-model'}"]
    assert words[1][1:3] == ["predict", f"{out / 'my-model'}"]
    assert Path(words[1][3]).is_file()
    assert words[-1][-1] == str(out / "report.html")


def test_a_model_that_is_there_is_not_in_the_way(
    clients: dict[str, Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = export_client(clients, tmp_path / "new-client-1")
    (tmp_path / "my-model").mkdir()
    program = tmp_path / "bin/fedbasis"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr(sys, "argv", [str(program), "demo"])
    first = next_commands(tmp_path / "run", client, tmp_path, tmp_path / "report.html")[0]
    assert first.startswith("fedbasis personalize ")  # it is on the path
    assert first.endswith(str(tmp_path / "my-model-2"))
