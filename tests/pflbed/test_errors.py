from pflbed.errors import MOST_NAMES, did_you_mean


def test_the_closest_name_is_suggested() -> None:
    assert did_you_mean("ruonds", ["rounds", "rate"]) == " (did you mean 'rounds'?)"
    assert did_you_mean("ruonds", ["rounds", "rate"], cutoff=0.95) == " (valid: rounds, rate)"


def test_a_long_list_is_cut_off() -> None:
    names = [f"{i:03d}" for i in range(MOST_NAMES + 5)]
    assert did_you_mean("zebra", names) == f" (valid: {', '.join(names[:MOST_NAMES])} and 5 more)"
    assert did_you_mean("zebra", names[:MOST_NAMES]) == f" (valid: {', '.join(names[:MOST_NAMES])})"
