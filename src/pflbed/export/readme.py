"""The README of an exported dataset: metadata for Hugging Face, then a description for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pflbed.benchmark import Benchmark

COLUMNS = {"client": "string", "domain": "string", "row": "int64", "size": "string"}


def readme(benchmark: Benchmark, counts: Mapping[str, int], out: Path, flower: bool) -> str:
    """Write it for the splits that have rows."""
    lines = ["---", *_front_matter(benchmark, counts), "---", "", "# A PFLBed benchmark", ""]
    lines += [
        f"{len(benchmark.participating):,} participating and {len(benchmark.new):,} new clients, "
        f"{len(benchmark.table.class_names):,} classes, {len(benchmark.table.domain_names):,} domains "
        f"(partition {benchmark.spec.partition}, seed {benchmark.spec.seed}). The images keep their own licence.",
        "",
        "- `participating`, `new`: what clients train on; `client` is the owner of the image.",
        f"- `validation`, `test`: {_held(benchmark)}",
        "- `row`: the row of the benchmark's `manifest.parquet`, counted from 0, as `pflbed score` expects it.",
        "- `size`: of a new client's image the smallest training set it belongs to; the sizes are nested: "
        + ", ".join(map(_yaml, benchmark.spec.sizes)) + ".",
        "", "```python", *code(benchmark, out), "```", "",
    ]  # fmt: skip
    if flower:
        lines += [
            "## With flwr-datasets",
            "",
            "`pip install 'fedbasis[flower-datasets]'`; partition `i` is client `partitioner.client_ids[i]`:",
            "", "```python", *flower_code(benchmark, out), "```", "",
            "flwr-datasets sends telemetry unless FLWR_TELEMETRY_ENABLED=0 is set.", "",
        ]  # fmt: skip
    return "\n".join(lines)


def code(benchmark: Benchmark, out: Path) -> list[str]:
    """How to load one client's images."""
    return [
        "from datasets import load_dataset",
        f"splits = load_dataset({str(out)!r})",
        f"one = splits['participating'].filter(lambda c: c == {benchmark.participating[0]!r}, input_columns='client')",
    ]


def flower_code(benchmark: Benchmark, out: Path) -> list[str]:
    """How to load one client's images with flwr-datasets."""
    new = ", 'new': ManifestPartitioner(benchmark, 'new')" if benchmark.new else ""
    return [
        "from flwr_datasets import FederatedDataset",
        "from pflbed import load_manifest",
        "from pflbed.flower import ManifestPartitioner",
        f"benchmark = load_manifest({str(out / 'benchmark')!r})",
        f"partitioners = {{'participating': ManifestPartitioner(benchmark){new}}}",
        f"federated = FederatedDataset(dataset={str(out)!r}, partitioners=partitioners)",
        "one = federated.load_partition(0, 'participating')",
    ]


def _front_matter(benchmark: Benchmark, counts: Mapping[str, int]) -> list[str]:
    lines = ["task_categories:", "- image-classification", "tags:", "- federated-learning"]
    lines += ["configs:", "- config_name: default", "  data_files:"]
    for split in counts:
        lines += [f"  - split: {split}", f"    path: data/{split}-*.parquet"]
    lines += ["dataset_info:", "  features:", "  - name: image", "    dtype: image"]
    lines += ["  - name: label", "    dtype:", "      class_label:", "        names:"]
    lines += [f"          '{i}': {_yaml(name)}" for i, name in enumerate(benchmark.table.class_names)]
    for name, kind in COLUMNS.items():
        lines += [f"  - name: {name}", f"    dtype: {kind}"]
    lines += ["  splits:"]
    for split, count in counts.items():
        lines += [f"  - name: {split}", f"    num_examples: {count}"]
    return lines


def _held(benchmark: Benchmark) -> str:
    if benchmark.spec.natural:
        return "what clients are tested on; `client` is the owner of the image."
    if benchmark.spec.partition == "mixture":
        return "shared by all clients; weight each by the share of its class and domain in the client's training set."
    return "shared by the clients of a domain; weight each by the share of its class in the client's training set."


def _yaml(text: str) -> str:
    """Quote any text so that no name can end its line or be taken for a number."""
    plain = (sign if sign.isprintable() and sign not in '"\\' else f"\\U{ord(sign):08x}" for sign in text)
    return '"' + "".join(plain) + '"'
