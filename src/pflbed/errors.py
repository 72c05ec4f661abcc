"""The one kind of error that users see, and the hint for a name that does not exist."""

import difflib
from collections.abc import Sequence

MOST_NAMES = 12
"""A hint lists at most so many valid names."""


class InputError(ValueError):
    """A value from the user (a file, a key, a number) cannot be used.

    The message is one sentence for the user: what must hold, what was got, where, and what to do.

    Example:
        >>> import pflbed
        >>> try:
        ...     pflbed.digits4(limit=0)
        ... except pflbed.InputError as error:
        ...     print(str(error).partition(";")[0])
        limit must be a whole number of at least 1, got 0
    """


LONGEST = 1_000
"""Characters of one problem: a file may hold a key or a text of any length."""
MOST_PROBLEMS = 50


class InputListError(InputError):
    """Several things are wrong with one file.

    Args:
        where: What they are wrong with, such as the path of the file.
        problems: One sentence each, without a full stop.
    """

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        shown = [
            problem if len(problem) <= LONGEST else f"{problem[:LONGEST]} ..." for problem in problems[:MOST_PROBLEMS]
        ]
        if (more := len(problems) - MOST_PROBLEMS) > 0:
            shown.append(f"and {more:,} more")
        self.where, self.problems = where, tuple(shown)
        self.heading = f"{where}: {len(problems):,} problem{'s' * (len(problems) > 1)}"
        super().__init__("\n".join([self.heading, *(f"  {problem}" for problem in shown)]))
        self._given = tuple(problems)

    def __reduce__(self) -> tuple[type["InputListError"], tuple[str, tuple[str, ...]]]:
        return type(self), (self.where, self._given)


def did_you_mean(got: str, valid: Sequence[str], cutoff: float = 0.5) -> str:
    """Suggest the valid name that is closest to an unknown one, or list the valid names.

    Args:
        got: The unknown name.
        valid: The names that exist.
        cutoff: How similar a suggestion must be, from 0 (anything) to 1 (equal).

    Returns:
        A hint in parentheses that starts with a space, to be appended to a sentence.

    Example:
        >>> did_you_mean("resnet11", ["cnn-small", "resnet10"])
        " (did you mean 'resnet10'?)"
        >>> did_you_mean("zebra", ["cat", "dog"])
        ' (valid: cat, dog)'
    """
    near = difflib.get_close_matches(got, valid, n=1, cutoff=cutoff)
    if near:
        return f" (did you mean '{near[0]}'?)"
    more = len(valid) - MOST_NAMES
    return f" (valid: {', '.join(valid[:MOST_NAMES])}{f' and {more} more' if more > 0 else ''})"
