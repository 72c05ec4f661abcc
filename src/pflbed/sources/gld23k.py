"""GLD23k: photographs of 203 landmarks by 233 people, each person a client; 23,080 images (Hsu et al., ECCV 2020).

TensorFlow Federated and FedML distribute the same lists under different names. Only the training list has the user of
every image, and every client is tested on images of its own, so the test list is not used.
"""

from pathlib import Path
from typing import Any

from pflbed.errors import InputError
from pflbed.images import open_file
from pflbed.sources.base import Source
from pflbed.spec import Spec
from pflbed.table import Table
from pflbed.table_file import read_columns, table_of

LISTS = ("gld23k_user_dict_train.csv", "mini_gld_train_split.csv")
"""The list's name in FedML and in TensorFlow Federated."""
FIELDS = {"user": ("user_id",), "image": ("image_id",), "class": ("class",)}
IMAGE_ID = "^[0-9A-Za-z_-]{3,}$"


def scan(root: Path) -> Table:
    """List the images named by the first list found in the data folder or in a folder of it."""
    root = Path(root)
    found = [file for name in LISTS for place in ("", "*/") for file in sorted(root.glob(place + name))]
    if not found:
        raise InputError(SOURCE.missing(root, f"the list {' or '.join(LISTS)}"))
    columns = read_columns(found[0], FIELDS)
    columns["path"] = _paths(root, found[0], columns.pop("image"))
    return table_of(columns, found[0], "gld23k")


def _paths(root: Path, file: Path, ids: Any) -> Any:
    """Where the images are, from the kind of the folder; no image file is accessed."""
    import pyarrow as pa
    import pyarrow.compute as pc

    row = pc.index(pc.match_substring_regex(ids, IMAGE_ID), False).as_py()
    if row >= 0:
        raise InputError(
            f"An image_id must be letters and digits, at least three, got {ids[row].as_py()[:200]!r} in row {row + 1} "
            f"of {file}; download the list again"
        )
    if (root / "images").is_dir():
        parts = ["images", ids]
    elif (root / "train").is_dir():
        parts = ["train", *(pc.utf8_slice_codeunits(ids, i, i + 1) for i in range(3)), ids]
    else:
        raise InputError(SOURCE.missing(root, "the folder images (<image_id>.jpg) or train (a/b/c/<image_id>.jpg)"))
    texts = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in parts]
    joined = pc.binary_join_element_wise(*texts, pa.scalar("/", pa.large_string()))
    return pc.binary_join_element_wise(joined, *(pa.scalar(end, pa.large_string()) for end in (".jpg", "")))


SOURCE = Source(
    name="gld23k",
    title="GLD23k",
    home="mini_gld_train_split.csv from https://storage.googleapis.com/tff-datasets-public and the train images of "
    "https://github.com/cvdfoundation/google-landmark, or data_user_dict.zip and images.zip of FedML's data/gld",
    layout="the list into the data folder or a folder of it, and the images as images/<image_id>.jpg or "
    "train/a/b/c/<image_id>.jpg, where a, b, c are the first letters of the image_id",
    scan=scan,
    open_image=open_file,
    counts={"gld23k": 23_080},
    spec=Spec(
        partition="natural",
        clients_per_domain=117,
        new_clients_per_domain=116,
        split=(80, 0, 20, 0),
        sizes={"S": 0.1, "M": 0.2, "L": 0.4},
        min_rows=1,
    ),
)
