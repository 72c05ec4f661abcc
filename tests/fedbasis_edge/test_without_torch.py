"""The package imports neither torch nor fedbasis, and little else."""

import subprocess
import sys


def test_it_needs_numpy_onnxruntime_and_pillow_alone() -> None:
    code = (
        "import sys, fedbasis_edge.cli\n"
        "heavy = ('torch', 'fedbasis', 'pyarrow', 'matplotlib', 'rich', 'typer', 'pydantic', 'scipy', 'onnx')\n"
        "print(sorted(set(heavy) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
