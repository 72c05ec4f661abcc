"""Text from files may hold control sequences that clear a screen or forge lines: ``printable`` writes them out."""

import re

# C0 but tab and newline, DEL, C1, marks and overrides of the direction of text, line separators, half characters.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What must not be printed."""


def printable(text: str) -> str:
    r"""Write out every character that controls a terminal or the direction of text; tabs and line ends stay.

    Args:
        text: Text from anywhere.

    Returns:
        Text that shows what it holds and does nothing else.

    Example:
        >>> print(printable("a\x1b[2Jb\u202ec"))
        a\x1b[2Jb\u202ec
    """
    return CONTROL.sub(_written_out, text)


def one_line(text: str) -> str:
    r"""The same in one line: line ends and tabs are written out too, so that a name cannot look like a line of ours.

    Example:
        >>> print(one_line("cat\nDigest: 0"))
        cat\nDigest: 0
    """
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def counted(number: int, one: str, many: str = "") -> str:
    """A number and what it counts.

    Example:
        >>> counted(1, "class", "classes"), counted(2000, "image")
        ('1 class', '2,000 images')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _written_out(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
