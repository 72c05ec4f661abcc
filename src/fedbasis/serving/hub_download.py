"""Artifacts on the Hugging Face Hub: ``hf://org/name`` or ``hf://org/name@revision`` becomes a folder on this machine.

Only the two files of an artifact are downloaded. Reading them checks everything that is checked of any folder: the
card, the names and shapes, and the digest of the tensors.
"""

import re
from pathlib import Path
from typing import Any

from fedbasis.serving.artifact import CARD, TENSORS
from pflbed.errors import InputError

SCHEME = "hf://"
_ADDRESS = re.compile(r"hf://([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([\w./-]{1,200}))?", re.ASCII)


def downloaded(address: str) -> Path:
    """Download an artifact and return its folder.

    Args:
        address: ``hf://org/name``, with ``@revision`` (a branch, a tag or a commit) for a fixed one.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise InputError(
            f"An address on the Hugging Face Hub must be {SCHEME}org/name or {SCHEME}org/name@revision, but it is "
            f"'{address}'."
        )
    name, revision = match.groups()
    hub = _hub()
    try:
        return Path(hub.snapshot_download(repo_id=name, revision=revision, allow_patterns=[CARD, TENSORS]))
    except (OSError, ValueError) as error:  # what the package raises are subclasses of these two
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"The artifact {address} must be downloadable, but it is not ({reason:.300}).") from error


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise InputError(
            f"{SCHEME} addresses need the package huggingface_hub, but it is not installed; run pip install -e "
            "'.[hub]' in the checkout, or download the folder yourself."
        ) from error
    return huggingface_hub
