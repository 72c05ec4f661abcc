"""What coded bases cost: bytes of bundles and messages in models, and the time to code and decode them.

    python benchmarks/compact.py            (about a minute; --quick for a look)

Four bases and a major basis of random weights near one another, as sizes and times do not depend on the values. Bytes
are those of the whole file or message, as ratios to the tensors of one float32 model. Times are medians of one thread,
as ratios to copying the bases in memory, which takes turns with them.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch

from fedbasis.engines.download import as_received, to_send
from fedbasis.methods.base import Method, Task
from fedbasis.methods.fedbasis import FedBasis
from fedbasis.networks.batches import Recipe
from fedbasis.networks.inputs import Preprocessing
from fedbasis.networks.models import Network
from fedbasis.tensors.compact import Bits, decode, encode
from fedbasis.tensors.files import write_tensors
from fedbasis.tensors.packed import packed
from fedbasis.tensors.params import State, nbytes
from measure import options, table, taking_turns

NETWORKS = ("cnn", "resnet10", "resnet18")
BASES, CLASSES, RESOLUTION = 4, 10, 32
REPEATS = 5


def bases_of(name: str) -> tuple[Method, State]:
    """Return FedBasis with a network, and bases that differ by a few percent."""
    recipe = Recipe(preprocessing=Preprocessing(RESOLUTION))
    task = Task(Network(name, CLASSES, RESOLUTION), recipe, rounds=2)
    settings: dict[str, Any] = {"bases": BASES, "warm_start": 0, "init": "random"}
    method = FedBasis.build(FedBasis.Config(**settings), task)
    far = method.init(0)
    near = {g: {n: far["major"][n] + 0.05 * t.abs() for n, t in named.items()} for g, named in far.items()}
    return method, near


def coded(method: Method, state: State, bits: Bits) -> State:
    alike = method.serving.alike_models(state)
    assert alike is not None
    return encode(state, alike, bits)


def file_bytes(state: State) -> int:
    with tempfile.TemporaryDirectory() as folder:
        write_tensors(Path(folder) / "tensors", state)
        return (Path(folder) / "tensors").stat().st_size


def main() -> None:
    given = options(__doc__)
    torch.set_num_threads(1)
    sizes: list[list[str]] = []
    times: list[list[str]] = []
    for name in ("cnn", "resnet10") if given.quick else NETWORKS:
        method, state = bases_of(name)
        shapes = method.task.layout.shapes
        model = nbytes({"": state["major"]})
        kinds = {
            "float32": state,
            "bfloat16": to_send(method, state, "bfloat16"),
            "compact, 8 bits": coded(method, state, 8),
            "compact, 4 bits": coded(method, state, 4),
            "compact, 3 bits": coded(method, state, 3),
        }
        for kind, sent in kinds.items():
            ratios = (f"{size / model:.3f}" for size in (file_bytes(sent), len(packed(sent))))
            sizes.append([name, f"{model:,}", kind, *ratios])
        taken = taking_turns(
            {
                "copy": lambda state=state: {g: {n: t.clone() for n, t in x.items()} for g, x in state.items()},  # type: ignore[misc]
                "to bfloat16": lambda m=method, s=state: to_send(m, s, "bfloat16"),  # type: ignore[misc]
                "from bfloat16": lambda s=kinds["bfloat16"], e=shapes: as_received(s, e),  # type: ignore[misc]
                **{
                    f"{what}, {bits} bits": call
                    for bits in (8, 4, 3)
                    for what, call in (
                        ("code", lambda m=method, s=state, b=bits: coded(m, s, b)),
                        ("decode", lambda s=kinds[f"compact, {bits} bits"], e=shapes: decode(s, e, "It")),
                    )
                },
            },
            2 if given.quick else REPEATS,
        )
        times += [[name, what, f"{1000 * s:.1f}", f"{s / taken['copy']:.1f}"] for what, s in taken.items()]
    print(table(["network", "bytes of a model", "bases", "bundle, in models", "message, in models"], sizes, 3))
    print(table(["network", "step", "milliseconds", "times a copy"], times, 2))


if __name__ == "__main__":
    main()
