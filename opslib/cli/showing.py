"""The one door to the terminal: what a host or a file said is shown, never obeyed."""

import codecs
import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from opslib.errors import CouldNotFindOut, reason_of

PLAINLY = "opslib-plainly"  # how a stream takes signs that its character set lacks
_PLAIN = {"✓": "+", "✗": "x", "…": "...", "│": "|", "─": "-", "·": ".", "→": "->", "█": "#"}

# C0 but tab and newline, DEL, C1; and the half characters that stand for bytes of a file's name that are no UTF-8
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def visible(text: str) -> str:
    r"""The text with each control character but tab and newline written out, in a form that JSON knows as well.

    >>> visible("a\tb\n\x1b]0;title\x07")
    'a\tb\n\\u001b]0;title\\u0007'
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def show(text: str = "", *, end: str = "\n", file: IO[str] | None = None) -> None:
    """Print a text of several lines or a JSON document, on standard output unless another file is given."""
    stream = file or sys.stdout
    try:
        print(visible(text), end=end, file=stream)
    except BrokenPipeError:
        raise
    except OSError as error:
        silence(stream)
        raise CouldNotFindOut(f"the output can't be written: {reason_of(error)}") from error


def silence(stream: IO[str]) -> None:
    """From now on nothing of the stream is written, nor complained of at the end: its reader is gone, its disk full."""
    with suppress(OSError, ValueError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def plainly(error: UnicodeError) -> tuple[str, int]:
    r"""What stands for signs that a terminal's character set lacks, in a form that JSON knows as well.

    >>> "✓ ok: naïve".encode("ascii", PLAINLY)
    b'+ ok: na\\u00efve'
    """
    assert isinstance(error, UnicodeEncodeError)
    signs = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign) or json.dumps(sign)[1:-1] for sign in signs), error.end


codecs.register_error(PLAINLY, plainly)
