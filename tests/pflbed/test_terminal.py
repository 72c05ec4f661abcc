"""What is printed does nothing but show, fits any output, and every failure is one sentence with its exit code."""

import io
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from rich.panel import Panel
from rich.table import Table as Grid
from rich.text import Text

from pflbed import InputError
from pflbed.cache_command import clear_cache, held
from pflbed.cli import app as pflbed_app
from pflbed.plain_text import one_line, printable
from pflbed.terminal import SafeConsole, joined, run

EVIL = "a\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202eb\u2066\x7f\r\x00\ud800c"
STOPPED = "Stopped."


def ended(app: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    with pytest.raises(SystemExit) as end:
        run(app, "tool", STOPPED)
    return end.value.code, capsys.readouterr().err


def raising(error: BaseException) -> Callable[[], object]:
    def app() -> object:
        raise error

    return app


def test_control_characters_are_written_out() -> None:
    shown = printable(EVIL)
    assert shown == r"a\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202eb\u2066\x7f\x0d\x00\ud800c"
    assert printable("Grüße, 猫 😀\tx\ny") == "Grüße, 猫 😀\tx\ny"
    assert one_line("a\nb\tc") == r"a\nb\tc"


def test_nothing_reaches_the_terminal_unchecked() -> None:
    grid = Grid(title=Text(EVIL))
    grid.add_column(EVIL)
    grid.add_row(Text(EVIL))
    grid.add_row(EVIL)
    for what in (EVIL, Text(EVIL), grid, Panel(EVIL, title=Text(EVIL)), [EVIL]):
        file = io.StringIO()
        console = SafeConsole(file=file)
        console.print(what, markup=False)
        console.out(what)
        assert "PWNED" in file.getvalue()
        assert not set(file.getvalue()) & set("\x1b\x07\x9b\u202e\u2066\x7f\r\x00\ud800")


def test_an_input_error_keeps_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = ended(raising(InputError("t/evil must be a folder\x1b[2J,\nbut it is not")), capsys)
    assert code == 2
    assert said == "tool: t/evil must be a folder\\x1b[2J, but it is not\n"
    assert len(ended(raising(InputError("x" * 10**6)), capsys)[1]) < 3000


def test_a_bug_is_one_sentence_and_a_file_for_this_user_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBASIS_CACHE", str(tmp_path / "cache"))

    def app() -> None:
        password = "swordfish"
        raise KeyError(len(password))

    code, said = ended(app, capsys)
    (place,) = (tmp_path / "cache" / "tracebacks").iterdir()
    assert code == 70
    assert said.count("\n") == 1
    assert str(place) in said
    assert "KeyError" in said
    text = place.read_text(encoding="utf-8")
    assert "Traceback" in text
    assert "swordfish" not in text.replace('password = "swordfish"', "")
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    monkeypatch.setenv("FEDBASIS_CACHE", "/dev/null/cache")
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/dev/null")
    assert ended(app, capsys)[0] == 70


def test_every_way_to_fail_has_its_exit_code(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBASIS_CACHE", str(tmp_path))
    assert ended(raising(KeyboardInterrupt()), capsys) == (130, "\nStopped.\n")
    assert ended(raising(SystemExit(130)), capsys) == (130, "\nStopped.\n")
    code, said = ended(raising(OSError(28, "No space left on device", str(tmp_path / "images" / "x"))), capsys)
    assert code == 2
    assert "FEDBASIS_CACHE" in said
    code, said = ended(raising(OSError(28, "No space left on device", "/elsewhere")), capsys)
    assert code == 2
    assert "FEDBASIS_CACHE" not in said
    assert ended(raising(MemoryError()), capsys)[0] == 2


COMMAND = "from pflbed.cli import main; main()"


def command(*argv: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *map(str, argv)],
        capture_output=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_output_works_in_any_encoding(encoding: str, tmp_path: Path) -> None:
    for name in ("猫/größe", "猫/Δ"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "1.png").write_text("x")
    for more in ((), ("--json",)):
        done = command("scan", tmp_path / "data", "--names-only", *more, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
        assert done.returncode == 0, done.stderr
        said = done.stdout.decode(encoding)
        assert ("\\u732b" if more else "?") in said
    helped = command("--help", PYTHONIOENCODING=encoding)
    assert helped.returncode == 0
    assert b"scan" in helped.stdout


def test_quiet_verbose_and_version(tmp_path: Path) -> None:
    for name in ("d/a", "d/b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "1.png").write_text("x")
    argv = ("scan", tmp_path / "data", "--names-only")
    assert b"No image was opened" in command(*argv).stdout
    quiet = command("--quiet", *argv)
    assert b"No image was opened" not in quiet.stdout
    assert b"Digest" in quiet.stdout
    assert b"Cache: " in command("-v", *argv).stderr
    assert command("-V").stdout == command("--version").stdout != b""


def test_help_wraps_at_any_width() -> None:
    assert joined("a\nb\n\nc\n- d\n  e") == "a b\n\nc\n- d e"
    for width in (60, 100):
        lines = command("build", "--help", COLUMNS=str(width)).stdout.decode().splitlines()
        assert max(map(len, lines)) <= width
        about = lines[lines.index(next(line for line in lines if "Writes manifest" in line)) :][:3]
        assert all(len(line.rstrip()) > 0.7 * width for line in about[:2])
        for name in ("dirichlet", "shards", "mixture"):
            assert any(line.strip().startswith(f"- {name}:") for line in lines)
    assert isinstance(pflbed_app, typer.Typer)
    assert b"--install-completion" in command("--help").stdout


def test_the_cache_is_shown_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("FEDBASIS_CACHE", str(cache))
    ours = ["images/ab-32.npy", "images/ab-32.json", "images/ab-check.json", "images/ab-32.npy.part",
            "digits4-v1.npy", "tracebacks/x.txt", "benchmarks/ab.json"]  # fmt: skip
    for name in (*ours, "thesis.docx", "images/holiday.png"):
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_text("x")
    assert sum(map(len, held().values())) == len(ours)
    assert b"decoded images" in command("cache", "show").stdout
    refused = command("cache", "clear")
    assert refused.returncode in (1, 2)
    assert clear_cache() == (len(ours) - 1, len(ours) - 1)
    assert command("cache", "clear", "--all", "--yes").returncode == 0
    left = {path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file()}
    assert left == {"thesis.docx", "images/holiday.png"}


def test_nothing_half_written_is_left_of_a_build(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    code = f"""
import sys, pflbed, pflbed.bench_folder
def full(*_): raise OSError(28, "No space left on device", "x")
pflbed.bench_folder.write_json = full
sys.argv = ["pflbed", "build", "digits4", "--names-only", "--out", {str(tmp_path / "d" / "bench")!r}]
{COMMAND}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 2, done.stderr
    assert not list((tmp_path / "d").iterdir())
