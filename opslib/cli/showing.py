"""The one door to the terminal: what a host or a file said is shown, never obeyed."""

import re
import sys
from typing import TextIO

# C0 but tab and newline, DEL, C1; and the half characters that stand for bytes of a file's name that are no UTF-8
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def visible(text: str) -> str:
    r"""The text with each control character but tab and newline written out, in a form that JSON knows as well.

    >>> visible("a\tb\n\x1b]0;title\x07")
    'a\tb\n\\u001b]0;title\\u0007'
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def show(text: str = "", *, end: str = "\n", file: TextIO | None = None) -> None:
    """Print a text of several lines or a JSON document, on standard output unless another file is given."""
    print(visible(text), end=end, file=file or sys.stdout)
