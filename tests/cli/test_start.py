"""The commands of the first hour: a configuration for one's own folder, weights, and the list of keys."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedbasis.cli import app
from fedbasis.experiment.config import read
from fedbasis.networks.models import Network
from fedbasis.networks.weights import SHIPPED, weights_path
from fedbasis.tensors.files import load_weights
from pflbed.errors import InputError

RUNNER = CliRunner()


def test_init_writes_a_configuration_that_is_right(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine.toml"
    ended = RUNNER.invoke(app, ["init", str(dataset), "--out", str(out)], catch_exceptions=False)
    assert ended.exit_code == 0
    assert "240 images, 2 domains (chalk, paint), 3 classes" in ended.output.replace("\n", " ")
    experiment = read(out)
    assert experiment.data.source == str(dataset)
    assert experiment.data.resolution == 32
    assert "# number of rounds" in out.read_text()
    assert tomllib.loads(out.read_text())["method"]["name"] == "fedbasis"
    with pytest.raises(InputError, match="must not exist yet"):
        RUNNER.invoke(app, ["init", str(dataset), "--out", str(out)], catch_exceptions=False)


def test_weights_come_with_the_package_and_fit_their_network() -> None:
    ended = RUNNER.invoke(app, ["weights"], catch_exceptions=False)
    for name, card in SHIPPED.items():
        assert f"--weights {name}" in ended.output
        network = Network(card.network, 7, card.resolution, card.options)
        expected = network.layout(network.build()).shapes
        loaded = load_weights(weights_path(name), expected)
        assert set(expected) - set(loaded) == {"fc.weight", "fc.bias"}
    with pytest.raises(InputError, match="did you mean 'tiny-imagenet'"):
        weights_path("tiny-imagnet")


def test_keys_are_listed_with_their_defaults() -> None:
    ended = RUNNER.invoke(app, ["train", "--keys"], catch_exceptions=False)
    assert ended.exit_code == 0
    assert "[train]\nrounds = 100\n" in ended.output
    assert "[method (name = 'fedbasis')]" in ended.output


def test_help_wraps_at_any_width() -> None:
    texts = [app.info.help, *(command.help for command in app.registered_commands)]
    assert len(texts) > 10
    for text in texts:
        assert isinstance(text, str)
        assert "\n" not in text.replace("\n\n", "")
