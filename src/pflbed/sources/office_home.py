"""Office-Home: 65 everyday things in four domains, 15,588 images (Venkateswara et al., CVPR 2017)."""

from dataclasses import replace
from pathlib import Path

from pflbed.errors import InputError
from pflbed.folders import oddities
from pflbed.folders import scan as scan_folder
from pflbed.images import open_file
from pflbed.sources.base import Source, find_folder
from pflbed.spec import Spec
from pflbed.table import Table

COUNTS = {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357}
ALIASES = {"RealWorld": "Real World", "Real_World": "Real World"}
"""Copies of the dataset call the official folder so; the domain's name is the official one, paths are as they are."""
BELOW = ("OfficeHomeDataset_10072016",)


def folder(root: Path) -> Path:
    """The folder that contains the domains."""
    found = find_folder(root, BELOW, (*COUNTS, *ALIASES))
    if found is None:
        raise InputError(SOURCE.missing(root, f"the folders {', '.join(COUNTS)}"))
    return found


def scan(root: Path) -> Table:
    """List the images under the official names of their domains."""
    base = folder(root)
    table = scan_folder(base)
    twins = [name for name in table.domain_names if ALIASES.get(name, name) == "Real World"]
    if len(twins) > 1:
        raise InputError(
            f"Office-Home must have one folder for Real World, got {' and '.join(twins)} in {base}; remove all but one"
        )
    return replace(table, domain_names=tuple(ALIASES.get(name, name) for name in table.domain_names))


SOURCE = Source(
    name="office-home",
    title="Office-Home",
    home="OfficeHomeDataset_10072016.zip from its authors' page https://www.hemanthdv.org/officeHomeDataset.html "
    "(Venkateswara et al., Deep Hashing Network for Unsupervised Domain Adaptation, CVPR 2017)",
    layout="its folders Art, Clipart, Product and Real World, each as <class>/<image>, into the data folder or its "
    "subfolder OfficeHomeDataset_10072016",
    scan=scan,
    open_image=open_file,
    counts=COUNTS,
    spec=Spec(),
    folder=folder,
    oddities=oddities,
)
