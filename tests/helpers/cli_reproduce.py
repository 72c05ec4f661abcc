"""Run ``fedbasis reproduce`` in this process."""

from typer.testing import CliRunner

from fedbasis.cli import app


def reproduce(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["reproduce", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
