"""PACS: seven kinds of things as photographs, paintings, cartoons and sketches, 9,991 images (Li et al., ICCV 2017)."""

from pathlib import Path

from pflbed.errors import InputError
from pflbed.folders import oddities
from pflbed.folders import scan as scan_folder
from pflbed.images import open_file
from pflbed.sources.base import Source, find_folder
from pflbed.spec import Spec
from pflbed.table import Table

COUNTS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
BELOW = ("PACS", "pacs_data")
"""The folders that the common archives unpack to."""


def folder(root: Path) -> Path:
    """The folder that contains the domains."""
    found = find_folder(root, BELOW, COUNTS)
    if found is None:
        raise InputError(SOURCE.missing(root, f"the folders {', '.join(COUNTS)}"))
    return found


def scan(root: Path) -> Table:
    """List the images; the text files of the official splits are left out."""
    return scan_folder(folder(root))


SOURCE = Source(
    name="pacs",
    title="PACS",
    home="the PACS folder linked from its authors' page https://domaingeneralization.github.io "
    "(Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017)",
    layout="its folders art_painting, cartoon, photo and sketch, each as <class>/<image>, into the data folder or its "
    "subfolder PACS",
    scan=scan,
    open_image=open_file,
    counts=COUNTS,
    spec=Spec(),
    folder=folder,
    oddities=oddities,
)
