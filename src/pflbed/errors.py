"""The one kind of error a user meets: what must hold, what was got, where, and what to do, in a sentence."""


class InputError(ValueError):
    """Something the user gave (a file, a key, a number) cannot be used; its message is written for the user."""
