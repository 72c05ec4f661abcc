"""Files of TOML: what is no configuration, or is not there, gets a sentence with the file's name."""

from pathlib import Path

import pytest

from fedbasis.experiment.config import read
from pflbed.errors import InputError


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"seed = = 1", "must be TOML, but it is not"),
        (b"\xff\xfe", "must be text in UTF-8"),
        (b"seed = 1\nseed = 2", "must be TOML, but it is not"),
        (b"", "[method] needs a 'name'"),
        (b"seed = 2020-01-01\n[method]\nname = 'fedavg'", "'seed'"),
        (b"[method]\nname = 'fedbasis'\nbases = 2020-01-01", "'method.bases'"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_bytes(content)
    with pytest.raises(InputError) as refusal:
        read(tmp_path / "my.toml")
    assert expected in str(refusal.value)
    assert str(tmp_path / "my.toml") in str(refusal.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must exist, but it does not; see experiments/"):
        read(tmp_path / "none.toml")
    with pytest.raises(InputError, match="must be a regular file"):
        read(tmp_path)
