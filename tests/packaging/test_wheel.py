"""The wheel, built and installed away from the repository: the demonstration runs from it and writes its page."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*argv: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command that must succeed, with nothing of this repository on the path, and return what it printed."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST", "COV_"))}
    ended = subprocess.run(
        [sys.executable, *map(str, argv)], cwd=cwd, env={**clean, **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_pflbed_alone_is_a_wheel_that_needs_no_torch(tmp_path: Path) -> None:
    """Installed away from the repository, with torch and fedbasis made impossible to import, its commands work."""
    site, away = tmp_path / "site", tmp_path / "away"
    away.mkdir()
    run("-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=ROOT / "packaging" / "pflbed")
    (made,) = tmp_path.glob("pflbed-*.whl")
    with zipfile.ZipFile(made) as wheel_file:  # all that pip does with a wheel of Python files alone
        wheel_file.extractall(site)
    assert (site / "pflbed" / "py.typed").is_file()
    names = "import importlib.metadata as m; print(*m.requires('pflbed'))"
    assert "torch" not in run("-c", names, cwd=away, PYTHONPATH=str(site))
    start = """
import sys
class Refuse:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("torch", "fedbasis"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import pflbed
"""
    start += f"assert pflbed.__file__.startswith({str(site)!r}); from pflbed.cli import main; main()"
    environment = {"PYTHONPATH": str(site), "FEDBASIS_CACHE": str(tmp_path / "cache")}
    run("-c", start, "build", "digits4", "--out", "bench", cwd=away, **environment)
    assert "80 participating and 40 new clients" in run("-c", start, "show", "bench", cwd=away, **environment)


def test_the_wheel_works_outside_the_repository(tmp_path: Path) -> None:
    site, away = tmp_path / "site", tmp_path / "away"
    away.mkdir()
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "wheel", ROOT, "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, cwd=away)
    (wheel,) = tmp_path.glob("fedbasis-*.whl")
    run(*pip, "install", wheel, "--no-deps", "--no-index", "--target", site, cwd=away)
    assert (site / "fedbasis" / "py.typed").is_file()
    assert (site / "pflbed" / "py.typed").is_file()
    where = "import fedbasis.cli, pflbed; print(fedbasis.cli.__file__); print(pflbed.__file__)"
    assert run("-c", where, cwd=away, PYTHONPATH=str(site)).split() == [
        str(site / "fedbasis/cli/__init__.py"),
        str(site / "pflbed/__init__.py"),
    ]
    demo = ("-c", "from fedbasis.cli import main; main()", "demo", "--fast")
    shown = run(*demo, cwd=away, PYTHONPATH=str(site), OMP_NUM_THREADS="1")
    assert "FedBasis" in shown
    assert "Report: report.html" in shown
    page = (away / "report.html").read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert "FedBasis" in page
    assert sorted(path.name for path in away.iterdir()) == ["report.html", "runs"]
    folders = {folder.name.partition("-")[0]: folder for folder in (away / "runs").iterdir()}
    assert folders.keys() == {"fedavg", "fedbasis", "new"}  # the last one has images to try 'personalize' on
    assert all((folders[name] / "done").is_file() for name in ("fedavg", "fedbasis"))


def test_fedbasis_edge_is_a_wheel_that_needs_no_torch(tmp_path: Path) -> None:
    site = tmp_path / "site"
    run("-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=ROOT / "packaging" / "fedbasis-edge")
    (made,) = tmp_path.glob("fedbasis_edge-*.whl")
    with zipfile.ZipFile(made) as wheel_file:
        wheel_file.extractall(site)
    assert (site / "fedbasis_edge" / "py.typed").is_file()
    code = (
        "import sys; sys.modules['torch'] = sys.modules['fedbasis'] = None\n"
        "import importlib.metadata as m, fedbasis_edge, pflbed\n"
        "assert all(one.__file__.startswith(sys.argv[1]) for one in (fedbasis_edge, pflbed))\n"
        "print(sorted(m.requires('fedbasis-edge')))\n"
        "from fedbasis_edge.cli import main; main(['--help'])"
    )
    said = run("-c", code, str(site), cwd=tmp_path, PYTHONPATH=str(site))
    assert said.startswith("['numpy>=1.26', 'onnxruntime>=1.20', 'pillow>=10.3']")
    assert "fedbasis-edge personalize bases/ --data my-images/ --out model/" in said
