"""Imports go down the list of packages only, and one public name means one thing: so the next person finds things."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
ORDER = (
    "tensors < networks < methods < engines < training, serving < edge < experiment < report, flower < studies < cli"
)
"""Packages with a comma between them do not import each other."""


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("fedbasis.")}
    return found


def test_fedbasis_imports_downwards_only() -> None:
    level = {name: depth for depth, names in enumerate(ORDER.split(" < ")) for name in names.split(", ")}
    rooms = {path.name for path in (SOURCE / "fedbasis").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms <= set(level), f"{rooms - set(level)} has no place in the order of packages"
    for room in rooms:
        for path in (SOURCE / "fedbasis" / room).rglob("*.py"):
            for other in imported(path) & rooms - {room}:
                assert level[other] < level[room], f"{path} imports {other}, which is not below it"


def test_contributing_prints_this_order() -> None:
    assert ORDER in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_pflbed_knows_neither_torch_nor_fedbasis() -> None:
    for path in (SOURCE / "pflbed").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(import|from) torch\b", text, re.MULTILINE), path
        assert not re.search(r"^\s*(import|from) fedbasis\b", text, re.MULTILINE), path
    code = "import pflbed, sys; sys.exit('torch' in sys.modules or 'fedbasis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_one_package_knows_flower() -> None:
    for path in (SOURCE / "fedbasis").rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        knows = any(line.split()[:1] in (["from"], ["import"]) and line.split()[1][:4] == "flwr" for line in lines)
        assert not knows or path.parent.name == "flower", path


def test_nothing_is_unpickled_and_nothing_uses_a_global_generator() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import pickle" not in text
        assert "cloudpickle" not in text or path.name == "transport.py"  # between a process and its own workers
        assert text.count("torch.load(") == text.count("weights_only=True)")
        assert "np.random.seed" not in text


@pytest.mark.parametrize("package", ["fedbasis", "fedbasis_edge", "pflbed"])
def test_a_public_name_means_one_thing(package: str) -> None:
    """Classes, and aliases of types written like classes, across the whole distribution."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in (SOURCE / package).rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            else:
                continue
            for name in names:
                if re.match(r"[A-Z][A-Za-z0-9]*[a-z]", name):
                    places[name].append(str(path.relative_to(SOURCE)))
    assert not {name: where for name, where in places.items() if len(where) > 1}


MODULES = {
    "scikit-learn": "sklearn", "Pillow": "PIL", "flwr-datasets": "flwr_datasets", "dp-accounting": "dp_accounting"
}  # fmt: skip
PARTS = {"markupsafe": "jinja2", "pydantic_core": "pydantic", "httpx": "flwr"}
"""Modules that belong to the interface of a package that is named."""


def test_what_is_imported_is_a_dependency() -> None:
    """A module that only came along with another package is missing one day: typer brought click until 0.21."""
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [package for name, extra in project["optional-dependencies"].items() if name != "dev" for package in extra]
    packages = [re.match(r"[A-Za-z0-9_-]+", text)[0] for text in (*project["dependencies"], *extras)]  # type: ignore[index]
    known = {MODULES.get(package, package) for package in packages} | {
        "fedbasis",
        "fedbasis_edge",
        "pflbed",
        *sys.stdlib_module_names,
    }
    found: dict[str, str] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0]: path.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found[node.module.partition(".")[0]] = path.name
    assert {"torch", "typer", "pydantic"} <= found.keys()
    assert not {module: where for module, where in found.items() if PARTS.get(module, module) not in known}
