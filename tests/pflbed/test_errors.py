import pickle

from pflbed.errors import LONGEST, MOST_NAMES, MOST_PROBLEMS, InputListError, did_you_mean


def test_the_closest_name_is_suggested() -> None:
    assert did_you_mean("ruonds", ["rounds", "rate"]) == " (did you mean 'rounds'?)"
    assert did_you_mean("ruonds", ["rounds", "rate"], cutoff=0.95) == " (valid: rounds, rate)"


def test_a_long_list_is_cut_off() -> None:
    names = [f"{i:03d}" for i in range(MOST_NAMES + 5)]
    assert did_you_mean("zebra", names) == f" (valid: {', '.join(names[:MOST_NAMES])} and 5 more)"
    assert did_you_mean("zebra", names[:MOST_NAMES]) == f" (valid: {', '.join(names[:MOST_NAMES])})"


def test_a_list_of_problems_is_bounded() -> None:
    error = InputListError("my.toml", ["x" * 70_000, *(f"'{i}' is not a key" for i in range(MOST_PROBLEMS + 4))])
    lines = str(error).splitlines()
    assert lines[0] == f"my.toml: {MOST_PROBLEMS + 5} problems"
    assert lines[1] == f"  {'x' * LONGEST} ..."
    assert lines[-1] == "  and 5 more"
    assert len(lines) == MOST_PROBLEMS + 2
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301
    assert str(InputListError("my.toml", ["one"])) == "my.toml: 1 problem\n  one"
