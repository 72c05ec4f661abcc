"""Imports go downwards only, so that the next person knows where everything lives."""

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
LEVELS = [
    {"params", "seeding", "method_config", "accounting", "sections", "__init__"},
    {"blocks", "coefficients", "hypernetwork"},
    {"flat", "pack"},
    {"averaging"},
    {"basis", "models", "train", "clustering", "kept", "processes"},
    {"artifact", "basis_learning", "basis_aggregation", "classifier"},
    {"basis_config", "basis_robust", "gp_tree"},
    {"basis_round", "task"},
    {"algorithms"},
    {"personalize", "engines", "screening"},
    {"evaluation", "runs", "privacy"},
    {"protection"},
    {"config", "rounds", "new_client"},
    {"experiment"},
    {"lending", "demo", "display", "report", "tracking"},
    {"jobs", "experiments", "inspection", "flower"},
    {"reproduce"},
    {"reproduce_cli", "serving_cli", "federation_cli"},
    {"cli"},
    {"__main__"},
]


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "fedbasis" else [node.module]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("fedbasis.")}
    return found


def test_fedbasis_imports_downwards_only() -> None:
    level = {name: depth for depth, names in enumerate(LEVELS) for name in names}
    for path in (SOURCE / "fedbasis").rglob("*.py"):
        name = path.relative_to(SOURCE / "fedbasis").parts[0].removesuffix(".py")
        assert name in level, f"{name} has no place in the order of modules"
        for other in imported(path) - {name, "__version__"}:
            assert level[other] < level[name], f"{path.name} imports {other}, which is not below it"


def test_an_algorithm_imports_its_base_and_at_most_one_sibling() -> None:
    for path in (SOURCE / "fedbasis" / "algorithms").glob("*.py"):
        if path.stem in ("__init__", "base"):
            continue
        modules = {
            node.module for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedbasis.algorithms.")
        }  # fmt: skip
        assert len(modules - {"fedbasis.algorithms.base"}) <= 1


def test_pflbed_knows_neither_torch_nor_fedbasis() -> None:
    for path in (SOURCE / "pflbed").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import torch" not in text
        assert "fedbasis" not in {n.split(".")[0] for n in imported(path)}
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
        assert "torch.load(" not in text
        assert "np.random.seed" not in text
