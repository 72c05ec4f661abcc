"""Seeds have names."""

from fedbasis.tensors.seeding import seed_for


def test_seeds_have_names() -> None:
    assert seed_for(1, "a") != seed_for(1, "b") != seed_for("1", "b")
    assert seed_for(0, "x") == seed_for(0, "x")
