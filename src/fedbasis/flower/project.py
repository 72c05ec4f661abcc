"""A federation's folder, to put under version control: a Flower app, the nodes of this host, and keys.

``app/`` is what Flower sends to every node. ``nodes.toml`` lists the nodes that ``up`` starts on this host and where
their data are; with many hosts, every host has its own. ``keys/`` is neither in version control nor in the app.
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedbasis.experiment.config import parse, read
from fedbasis.experiment.toml import ConfigSection
from fedbasis.flower import keys
from fedbasis.flower.settings import EXPERIMENTS, FEDERATION, FederatedRun, Federation, read_plans, require_modules
from fedbasis.networks.weights import SHIPPED
from pflbed.errors import InputError
from pflbed.foreign import read_toml

LOOPBACK = "127.0.0.1"
SHAPE = ("resolution", "channels", "mean", "std")
"""The data settings that nodes use."""
APP = '''"""The app of this federation: what the server and the nodes do is in the fedbasis package."""

from pathlib import Path

from fedbasis.flower.client import client_app
from fedbasis.flower.server import server_app

HERE = Path(__file__).parent
server = server_app(HERE)
client = client_app(HERE)
'''
PYPROJECT = """[project]
name = "fedbasis-federation"
version = "1.0.0"
description = "A federation that trains with FedBasis"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41,<2"] # and fedbasis, which is installed on every node from its repository

[tool.flwr.app]
publisher = "fedbasis"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "fedbasis_app:server"
clientapp = "fedbasis_app:client"

[tool.flwr.app.config]
out = "runs"      # where the server writes run folders
task = "train"    # or "personalize"
nodes = ""        # for "personalize": the names of the nodes, one a line
"""
LICENSE = """This app is licensed under the Apache License, Version 2.0:
http://www.apache.org/licenses/LICENSE-2.0
"""
README = """# A federation

`app/` is a Flower app: `federation.toml` has the participating clients and other settings of the federation, and
`experiments/` the experiments to train.

    fedbasis federation up .            # everything on this host, over TLS with node authentication
    fedbasis report runs                # the run folder is the same as from 'fedbasis train'
    fedbasis federation personalize .   # new nodes personalize the bases on their own images

`nodes.toml` lists the nodes that this host starts and where their data are. `keys/` is for tests on this host: make
others for real hosts, and store private keys only where they are used. See docs/how-to/federation.md of FedBasis for
many hosts.
"""
IGNORED = "keys/\nstate/\nruns/\n.flower/\n"


class NodeEntry(ConfigSection):
    """A node that this host starts: its name, the paths of its data and its private key, whether it is new."""

    name: str
    data: str
    key: str
    new: bool = False


@dataclass(frozen=True)
class Project:
    """The paths in a federation's folder."""

    folder: Path

    @property
    def app(self) -> Path:
        """The Flower app, which is sent to the nodes."""
        return self.folder / "app"

    @property
    def keys(self) -> Path:
        """Certificates and private keys."""
        return self.folder / "keys"

    def plans(self) -> list[FederatedRun]:
        """Read the experiments."""
        app = str(self.app.absolute())
        if app not in sys.path:
            sys.path.append(app)  # as Flower does: an experiment may name a module that lies there
        return read_plans(self.app)

    def nodes(self) -> list[NodeEntry]:
        """Read ``nodes.toml``: the nodes that this host starts."""
        path = self.folder / "nodes.toml"
        raw = read_toml(path, "The list of a federation's nodes", "'fedbasis federation init' writes it")
        try:
            return [NodeEntry(**entry) for entry in raw["node"]]
        except (ValueError, TypeError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"The file {path} must list nodes with name, data and key, but: {reason}.") from error

    def place(self, path: str) -> Path:
        """Return the absolute path of a path that is relative to this folder."""
        return (self.folder / Path(path).expanduser()).absolute()

    def state(self, node: NodeEntry) -> Path:
        """Return a node's own folder."""
        return self.folder.absolute() / "state" / Path(node.key).stem


def create(
    folder: Path,
    experiment: Mapping[str, Any],
    clients: Mapping[str, str],
    new: Mapping[str, str],
    classes: Sequence[str],
    hosts: Sequence[str] = ("localhost", LOOPBACK),
    modules: Sequence[Path] = (),
) -> Project:
    """Write a federation's folder.

    Args:
        folder: The folder.
        experiment: The experiment to train, as plain data.
        clients: The data folder of every participating node, by its name.
        new: The data folder of every new node, by its name.
        classes: The names of the classes.
        hosts: Names and addresses of the server, for its certificate.
        modules: Python files and packages of the user that Flower must carry to the nodes.
    """
    project = Project(folder)
    federation, parsed = Federation(clients=tuple(clients), classes=tuple(classes)), parse(experiment)
    require_modules(parsed)
    FederatedRun(parsed.slug, parsed, federation).method().task.network.check()
    (project.app / EXPERIMENTS).mkdir(parents=True)
    project.keys.mkdir(mode=0o700)
    texts = {
        "README.md": README,
        ".gitignore": IGNORED,
        "app/pyproject.toml": PYPROJECT,
        "app/fedbasis_app.py": APP,
        "app/LICENSE": LICENSE,
        f"app/{FEDERATION}": terms(list(clients), list(classes)),
        f"app/{EXPERIMENTS}/{parsed.slug}.toml": toml(experiment),
        "nodes.toml": "# The nodes that 'up' starts on this host. A node's data are a folder <class>/<image>, or a\n"
        "# benchmark of 'pflbed build' that has a client of this name.\n",
    }
    for number, (name, data) in enumerate({**clients, **new}.items()):
        keys.make_node_key(project.keys / f"node-{number}.key")
        entry = {"name": name, "data": data, "key": f"keys/node-{number}.key", "new": name in new}
        texts["nodes.toml"] += "\n[[node]]\n" + toml(entry)
    keys.make_certificates(project.keys, hosts)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for module in modules:
        if module.is_dir():
            shutil.copytree(module, project.app / module.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(module, project.app / module.name)
    return project


def terms(clients: list[str], classes: list[str]) -> str:
    """Return the text of federation.toml, with a comment for every setting."""
    lines = []
    for name, about in Federation.model_fields.items():
        value = {"clients": clients, "classes": classes}.get(name, about.default)
        lines.append(f"# {about.description}\n{name} = {json.dumps(value, ensure_ascii=False)}\n")
    return "\n".join(lines)


def toml(values: Mapping[str, Any]) -> str:
    """Return plain values, and tables of them, as TOML; None is left out."""
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping) and value is not None}
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    text = "".join(f"{key} = {_value(value)}\n" for key, value in plain.items())
    return text + "".join(f"\n[{key}]\n" + _table(table) for key, table in tables.items())


def _table(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in table.items() if value is not None)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_value(item)}" for key, item in value.items()) + "}"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def experiment_of(path: Path) -> dict[str, Any]:
    """Read an experiment for an app; of its data settings only what makes inputs is used: nodes have the data."""
    whole = read(path).as_dict()
    if whole["model"]["weights"] is not None:
        given = whole["model"]["weights"]
        whole["model"]["weights"] = given if given in SHIPPED else str(Path(given).absolute())
    data = {key: value for key, value in whole["data"].items() if key in SHAPE and value is not None}
    if data["channels"] not in (1, 3):
        raise InputError(
            f"'data.channels' must be 1 or 3, but it is {data['channels']} in {path}; the nodes of a federation have "
            "image files, no arrays."
        )
    return {**whole, "data": data}


def own_modules(experiment: Mapping[str, Any], below: Path) -> list[Path]:
    """Find the files or packages below a folder that hold the network or the method of an experiment.

    What is installed elsewhere must be installed on the nodes as well.
    """
    found: list[Path] = []
    for section in ("model", "method"):
        module, colon, _ = str(experiment.get(section, {}).get("name", "")).partition(":")
        spec = find_spec(module.partition(".")[0]) if colon and module != "__main__" else None
        if spec is not None and spec.origin is not None:
            file = Path(spec.origin).resolve()
            place = file.parent if spec.submodule_search_locations else file
            if place.is_relative_to(below.resolve()) and place not in found:
                found.append(place)
    return found
