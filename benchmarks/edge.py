"""The exported training step beside torch's: time of a step, memory, start-up, bytes; and gradients of all networks.

    python benchmarks/edge.py               (about two minutes; --quick for a look)
    python benchmarks/edge.py --coverage    (about six minutes: gradients of every network, norm and statistics)

Times are CPU times of one thread, the least of several turns, so that a busy machine changes them little: a step of 16
images in onnxruntime, and the same step of ``fedbasis personalize`` in torch. Memory and start-up are those of new
processes that take two steps. Random bases near one another are used, as times and sizes do not depend on the values.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbasis.edge import verify
from fedbasis.edge.bundle import STEP, EdgeBundle, export_edge, state_of
from fedbasis.edge.packages import onnxruntime
from fedbasis.edge.step import NewClientGraphs
from fedbasis.edge.verify import Case, TorchClient, relative
from fedbasis.methods.fedbasis import FedBasis
from fedbasis.methods.fedbasis.learning import LocalWork, learn_coefficients
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Examples, Preprocessing
from fedbasis.networks.models import Network
from fedbasis.networks.statistics import Statistics
from fedbasis.serving import artifact
from fedbasis.serving.new_client import method_of
from measure import options, table

BATCH, BASES, CLASSES = 16, 4, 7
LARGE = 2**28
"""Bytes of a step, above which only the default settings are timed, and less often."""
TIMED: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("cnn-small", 28, {"norm": "group"}),
    ("cnn-small", 28, {}),
    ("resnet10", 32, {}),
    ("efficientnet-lite0", 96, {}),
)
COVERED: tuple[tuple[str, int, dict[str, Any], Statistics], ...] = (
    *(("cnn-small", 28, {"norm": norm}, "own") for norm in ("batch", "group", "none")),
    ("cnn-small", 28, {}, "frozen"),
    ("cnn-small", 28, {}, "shrunk"),
    *(("cnn", 32, {"norm": norm}, "own") for norm in ("none", "batch", "group")),
    ("collins-cifar10", 32, {}, "own"),
    ("collins-cifar100", 32, {"dropout": 0.0}, "own"),
    *(("resnet10", 32, {"norm": norm}, "own") for norm in ("batch", "group", "none")),
    ("resnet10", 33, {}, "own"),
    ("resnet10", 32, {}, "frozen"),
    ("resnet10", 32, {}, "shrunk"),
    *(("resnet18", 64, {"norm": norm}, "own") for norm in ("batch", "group", "none")),
    ("resnet18", 64, {}, "frozen"),
    ("efficientnet-lite0", 64, {}, "own"),
    ("efficientnet-lite0", 64, {}, "frozen"),
)


def published(folder: Path, name: str, resolution: int, settings: dict[str, Any]) -> Path:
    """Write bases of random weights near one another."""
    network = Network(name, CLASSES, resolution, settings)
    first, generator = network.initial(0), torch.Generator().manual_seed(1)

    def near(key: str, tensor: torch.Tensor) -> torch.Tensor:
        if "running" in key:
            return tensor + torch.rand(tensor.shape, generator=generator)
        return tensor + 0.05 * tensor.std().nan_to_num(0) * torch.randn(tensor.shape, generator=generator)

    groups = ["major", *(f"basis_{k}" for k in range(BASES))]
    state = {group: {key: near(key, tensor) for key, tensor in first.items()} for group in groups}
    card = artifact.Card(
        kind="bases", method="fedbasis", settings={"bases": BASES}, architecture=artifact.describe(network),
        classes=[f"class {i}" for i in range(CLASSES)],
        preprocessing=artifact.describe_pixels(Preprocessing(resolution)),
    )  # fmt: skip
    artifact.save(folder, state, card)
    return folder


def graphs_of(folder: Path, statistics: Statistics = "own") -> NewClientGraphs:
    method = method_of(artifact.read_card(folder))
    assert isinstance(method, FedBasis)
    return NewClientGraphs(method, statistics)


def torch_steps(folder: Path, graphs: NewClientGraphs, case: Case) -> Callable[[], object]:
    """Return a function that takes a step of ``fedbasis personalize``, with its own optimizers and statistics."""
    _, state = artifact.load(folder, "bases")
    task, config = graphs.method.task, graphs.method.config
    recipe = Recipe(preprocessing=task.recipe.preprocessing, epochs=10**6, batch=BATCH, rate=0.005)
    work = LocalWork(task.network.workspace(), Examples(case.pixels, case.labels), recipe)
    psi, generator = torch.zeros(len(graphs.blocks), BASES), torch.Generator().manual_seed(0)
    settings, bases = config.at_a_new_client(0.005, frozen=False), graphs.method.bases(state)
    steps: Iterator[Any] = learn_coefficients(work, bases, psi, generator, settings, graphs.classifier)
    return lambda: next(steps)


def runtime_steps(folder: Path, graphs: NewClientGraphs, case: Case, **settings: Any) -> Callable[[], object]:
    """Return a function that takes a step in onnxruntime."""
    runtime = onnxruntime()
    chosen = runtime.SessionOptions()
    chosen.intra_op_num_threads = chosen.inter_op_num_threads = 1
    chosen.log_severity_level = 3
    for key, value in settings.items():
        setattr(chosen, key, value)
    graph = runtime.InferenceSession(folder / STEP, chosen, providers=["CPUExecutionProvider"])
    feeds = {name: value.numpy() for name, value in state_of(graphs).items()}
    feeds |= {"pixels": case.pixels.numpy(), "labels": case.labels.numpy()}
    feeds["rates"] = np.array([0.05, 0.005, 1e-4], np.float32)
    names = [one.name for one in graph.get_outputs()]

    def step() -> None:
        made = dict(zip(names, graph.run(names, feeds), strict=True))
        feeds.update({name.removesuffix("_out"): value for name, value in made.items() if name != "loss"})

    return step


def variants() -> dict[str, dict[str, Any]]:
    """Return settings of onnxruntime that may matter."""
    level = onnxruntime().GraphOptimizationLevel
    return {
        "default": {},
        "no optimization": {"graph_optimization_level": level.ORT_DISABLE_ALL},
        "basic": {"graph_optimization_level": level.ORT_ENABLE_BASIC},
        "no memory pattern": {"enable_mem_pattern": False},
        "no arena": {"enable_cpu_mem_arena": False},
    }


ALONE = """
import json, sys, time
began = time.process_time()
{body}
(peak,) = (int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([time.process_time() - began, peak]))
"""
RUNTIME = """
import numpy as np, onnxruntime as ort
options = ort.SessionOptions(); options.intra_op_num_threads = 1; options.log_severity_level = 3
graph = ort.InferenceSession(sys.argv[1] + "/step.onnx", options, providers=["CPUExecutionProvider"])
types = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8, "tensor(int64)": np.int64}
feeds = {i.name: np.ones([16 if s == "batch" else s for s in i.shape], types[i.type]) for i in graph.get_inputs()}
graph.run(None, feeds); graph.run(None, feeds)
"""
TORCH = """
import sys; from pathlib import Path
sys.path.insert(0, sys.argv[2])
import edge, torch
torch.set_num_threads(1)
graphs = edge.graphs_of(Path(sys.argv[1]))
step = edge.torch_steps(Path(sys.argv[1]), graphs, edge.Case.of(graphs, 16))
step(); step()
"""


def alone(body: str, folder: Path) -> tuple[float, float]:
    """Run two steps in a new process; return its CPU seconds and its peak memory in MiB."""
    import json

    command = [sys.executable, "-c", ALONE.format(body=body), str(folder), str(Path(__file__).parent)]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    seconds, peak = json.loads(made.splitlines()[-1])
    return seconds, peak


def least_cpu(kinds: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Call functions in turn, each once to warm up; return the least CPU seconds of each."""
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(repeats + 1):
        for name, call in kinds.items():
            began = time.process_time()
            call()
            taken[name].append(time.process_time() - began)
    return {name: min(values[1:]) for name, values in taken.items()}


def times(quick: bool) -> None:
    rows, others, costs = [], [], []
    for name, resolution, settings in TIMED[: 2 if quick else None]:
        with tempfile.TemporaryDirectory() as scratch:
            folder = published(Path(scratch) / "bases", name, resolution, settings)
            made, graphs = export_edge(folder), graphs_of(folder)
            case, label = Case.of(graphs, BATCH), f"{name} {settings.get('norm', '')}".strip()
            large = made.memory > LARGE  # several open graphs would not fit into every machine
            chosen = {"default": variants()["default"]} if large else variants()
            kinds = {key: runtime_steps(folder, graphs, case, **value) for key, value in chosen.items()}
            taken = least_cpu({"torch": torch_steps(folder, graphs, case), **kinds}, 5 if quick or large else 15)
            rows.append([label, str(resolution), f"{1e3 * taken['torch']:.1f}", f"{1e3 * taken['default']:.1f}",
                         f"{taken['default'] / taken['torch']:.2f}"])  # fmt: skip
            if not large:
                others.append([label, *(f"{taken[key] / taken['default']:.2f}" for key in kinds if key != "default")])
            (start, peak), (torch_start, torch_peak) = alone(RUNTIME, folder), alone(TORCH, folder)
            size = (folder / artifact.TENSORS).stat().st_size
            costs.append([label, f"{made.sizes[STEP] / 1024:.0f}", f"{sum(made.sizes.values()) / 1024:.0f}",
                          f"{size / 2**20:.1f}", f"{made.memory / 2**20:.0f}", f"{peak:.0f}",
                          f"{peak / torch_peak:.2f}",
                          f"{start:.1f}", f"{start / torch_start:.2f}"])  # fmt: skip
            print(rows[-1], costs[-1], file=sys.stderr, flush=True)
    print(table(["a step of 16 images", "pixels", "torch, CPU ms", "onnxruntime, CPU ms", "onnxruntime / torch"], rows))
    print(table(["relative to onnxruntime's default", *(key for key in variants() if key != "default")], others))
    heads = ["files and processes", "step.onnx, KiB", "all graphs, KiB", "bases, MiB", "`memory`, MiB",
             "peak of a process, MiB", "/ torch", "start and two steps, CPU s", "/ torch"]  # fmt: skip
    print(table(heads, costs))


def coverage(quick: bool) -> None:
    verify.LARGEST = 1.0  # show all
    rows = []
    for name, resolution, settings, statistics in COVERED[: 3 if quick else None]:
        with tempfile.TemporaryDirectory() as scratch:
            folder = published(Path(scratch) / "bases", name, resolution, settings)
            made: EdgeBundle = export_edge(folder, statistics=statistics)
            graphs, (_, state) = graphs_of(folder, statistics), artifact.load(folder, "bases")
            exact, usual = TorchClient(graphs, state), TorchClient(graphs, state, torch.float32)
            case = Case.of(graphs)
            if graphs.has_statistics and statistics != "frozen":
                weight = torch.tensor(0.25) if statistics == "shrunk" else None
                case = Case(case.psi, case.offset, case.pixels, case.labels, exact.measure(case.pixels).float(), weight)
            lost = relative(usual.gradients(case).psi, exact.gradients(case).psi)
            numbers = (made.errors.psi_gradient, lost, made.errors.classifier_gradient, made.errors.logits)
            norm = settings.get("norm", "batch" if graphs.has_statistics else "none")
            row = [name, norm, statistics, str(resolution), *(f"{number:.0e}" for number in numbers)]
            rows.append([*row, f"{made.sizes[STEP] / 1024:.0f}"])
            print(rows[-1], file=sys.stderr, flush=True)
    heads = ["network", "norm", "statistics", "pixels", "gradient of psi", "(torch in float32)",
             "gradient of the classifier", "logits", "step.onnx, KiB"]  # fmt: skip
    print(table(heads, rows, words=3))


def main() -> None:
    given = options(__doc__, coverage={"action": "store_true", "help": "gradients of all networks instead of times"})
    torch.set_num_threads(1)
    (coverage if given.coverage else times)(given.quick)


if __name__ == "__main__":
    main()
