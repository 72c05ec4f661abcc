"""The commands ``fedbasis federation init``, ``up`` and ``personalize``: a real federation, first on one host."""

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedbasis.cli.console import console, say
from pflbed.errors import InputError
from pflbed.terminal import say_json, writable

if TYPE_CHECKING:
    from fedbasis.flower.project import NodeEntry, Project

federation = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train on nodes that keep their data, with Flower: 'init' writes an app, 'up' runs it on this host.",
)
ProjectFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder, written by 'init'.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without TLS and node authentication; use it only to inspect the traffic.")
]
Out = Annotated[Path | None, typer.Option(help="Folder of run folders; unset: 'runs' in the federation's folder.")]
Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Port of the SuperLink; unset: a free one.")]


@federation.callback()
def _need_flower() -> None:
    if find_spec("flwr") is None:
        raise InputError(
            "A federation needs the package flwr, but it is not installed; run pip install -e '.[flower]' in the "
            "checkout."
        )


@federation.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write; it must not exist.")],
    config: Annotated[
        Path | None, typer.Option(help="An experiment (TOML) to train; unset: a short one with --method and --model.")
    ] = None,
    method: Annotated[str, typer.Option(help="See 'fedbasis methods'; ignored with --config.")] = "fedbasis",
    model: Annotated[str, typer.Option(help="The network; ignored with --config.")] = "cnn-small",
    data: Annotated[
        str, typer.Option(help="digits4, a benchmark of 'pflbed build', or a folder <node>/<class>/<image>.")
    ] = "digits4",
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes that train.")] = 3,
    host: Annotated[
        list[str] | None, typer.Option(help="Another name or address of the server, for its certificate.")
    ] = None,
) -> None:
    """Write a Flower app for a method and a model, with keys and certificates for this host."""
    from fedbasis.flower.example import nodes_of, short_experiment
    from fedbasis.flower.project import LOOPBACK, create, experiment_of, own_modules

    if folder.exists():
        raise InputError(f"The folder {folder} must not exist yet, but it does; choose another name or remove it.")
    writable(folder.parent)
    experiment = experiment_of(config) if config is not None else short_experiment(method, model, nodes)
    hosts, modules = ("localhost", LOOPBACK, *(host or ())), own_modules(experiment, Path.cwd())
    try:
        example = nodes_of(data, nodes, folder)
        create(folder, experiment, example.clients, example.new, example.classes, hosts, modules)
    except InputError:
        shutil.rmtree(folder, ignore_errors=True)  # a second try must not meet what the first one left
        raise
    say(f"{folder}: {experiment['method']['name']} for {len(example.clients)} nodes ({', '.join(example.clients)}).")
    say(f"Check {folder / 'app'} and {folder / 'nodes.toml'}, then run: fedbasis federation up {folder}")


@federation.command()
def up(
    folder: ProjectFolder,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Number of nodes to start; unset: all participating ones.")
    ] = None,
    insecure: Insecure = False,
    out: Out = None,
    port: Port = None,
) -> None:
    """Start a SuperLink and SuperNodes on this host, train, and stop everything.

    The connection uses TLS and node authentication. After a stop, the same command resumes the training.
    """
    from fedbasis.cli.federation_progress import FederationProgress
    from fedbasis.flower.deployment import Deployment
    from fedbasis.flower.project import Project

    project, out = Project(folder), out or folder / "runs"
    plans = project.plans()
    chosen = _entries(project, new=False)[: nodes or None]
    writable(out)
    if all(plan.run(out).done for plan in plans):
        say("All runs are done: " + ", ".join(str(plan.run(out).folder) for plan in plans))
        return
    with FederationProgress(console, plans, out) as progress, Deployment(project, insecure, port) as deployment:
        deployment.register(chosen)
        for node in chosen:
            deployment.start_node(node)
        say(
            f"{len(chosen)} SuperNodes and a SuperLink at 127.0.0.1:{deployment.port} "
            f"({'no TLS, no node authentication' if insecure else 'TLS, node authentication'})."
        )
        outcome = deployment.run(out, progress.update)
    for run in outcome["runs"]:
        say(f"Run: {run}")


@federation.command()
def personalize(
    folder: ProjectFolder,
    node: Annotated[
        list[str] | None, typer.Option(help="A node of nodes.toml; unset: all nodes with new = true.")
    ] = None,
    insecure: Insecure = False,
    out: Out = None,
    port: Port = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one json object.")] = False,
) -> None:
    """Have new nodes personalize the bases on their own images; their models stay on the nodes."""
    from fedbasis.flower.deployment import Deployment
    from fedbasis.flower.project import Project

    project, out = Project(folder), out or folder / "runs"
    chosen = _entries(project, new=True, names=node)
    with Deployment(project, insecure, port) as deployment:
        deployment.register(chosen)
        for entry in chosen:
            deployment.start_node(entry)
        names = "\n".join(entry.name for entry in chosen)
        results = deployment.run(out, task="personalize", nodes=names)["personalized"]
    if as_json:
        say_json(results)
    else:
        _show(results)
    answers = [(name, answer) for by_node in results.values() for name, answer in by_node.items()]
    if failed := [(name, answer["error"]) for name, answer in answers if "error" in answer]:
        raise InputError(f"Every node must learn a model, but {failed[0][0]} did not: {failed[0][1]}")


def _entries(project: "Project", new: bool, names: list[str] | None = None) -> "list[NodeEntry]":
    entries = project.nodes()
    if names:
        if unknown := sorted(set(names) - {entry.name for entry in entries}):
            known = ", ".join(entry.name for entry in entries)
            raise InputError(f"A node must be in nodes.toml, but '{unknown[0]}' is not; there are {known}.")
        return [entry for entry in entries if entry.name in names]
    chosen = [entry for entry in entries if entry.new is new]
    if not chosen:
        which = "new" if new else "participating"
        raise InputError(f"The nodes.toml of {project.folder} must have a {which} node, but it has none.")
    return chosen


def _show(results: dict[str, Any]) -> None:
    table = Table()
    for column in ("experiment", "node", "way", "images", "held out", "before", "after"):
        table.add_column(column, justify="left" if column in ("experiment", "node", "way") else "right")
    for experiment, nodes in results.items():
        for name, answer in nodes.items():
            if "error" not in answer:
                counts = (f"{answer[key]:.0f}" for key in ("images", "held_out"))
                shares = (f"{100 * answer[key]:.1f} %" for key in ("before", "after"))
                table.add_row(experiment, name, answer["how"], *counts, *shares)
    console.print(table)
