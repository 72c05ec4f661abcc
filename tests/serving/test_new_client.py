"""A new client on its own machine."""

from pathlib import Path

import pytest

from fedbasis.serving import artifact
from fedbasis.serving.new_client import method_of
from pflbed.errors import InputError
from serving.artifacts import edit


def test_the_method_of_a_card_is_checked(bases: Path) -> None:
    for change, expected in (
        ({"method": "fedcat"}, "must be one of local, .* but it is 'fedcat'"),
        ({"settings": {"bases": 2, "colour": "red", "tau": -1}}, "but (colour|tau): "),
        ({"settings": {"bases": "many"}}, "but bases: "),
    ):
        edit(bases, lambda card, change=change: card.update(change))  # type: ignore[misc]
        with pytest.raises(InputError, match=expected) as refusal:
            method_of(artifact.read_card(bases))
        assert "\n" not in str(refusal.value)
        edit(bases, lambda card: card.update(method="fedbasis", settings={"bases": 2}))
    assert method_of(artifact.read_card(bases)).about.name == "fedbasis"
