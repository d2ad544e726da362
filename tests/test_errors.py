"""What an error says: whole sentences, in words and not in Python's."""

import json
import socket
from pathlib import Path
from urllib.error import URLError

import pytest
from paramiko.ssh_exception import NoValidConnectionsError

from opslib.errors import CouldNotFindOut, reason_of


@pytest.mark.parametrize(("message", "stop"), [("was found", "."), ("was found.", ""), ("which?", ""), ("(why)", ".")])
def test_message_ends_before_the_next_step_begins(message, stop):
    """Between message and hint stands a full stop, unless the message has its own end; without a hint nothing does."""
    assert str(CouldNotFindOut(message, hint="write one")) == f"{message}{stop} Next: write one"
    assert str(CouldNotFindOut(message, host="a")) == f"a: {message}"


def raised(act):
    with pytest.raises((OSError, ValueError)) as caught:
        act()
    return caught.value


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NoValidConnectionsError({("127.0.0.1", 1): OSError()}), "Unable to connect to port 1 on 127.0.0.1"),
        (raised(Path("/no/such/file").read_bytes), "No such file or directory"),
        (raised(b"\xff".decode), "it is not UTF-8 text"),
        (URLError(socket.gaierror(-2, "Name or service not known")), "Name or service not known"),
        (
            raised(lambda: json.loads("{")),
            "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        (EOFError(), "EOFError"),
    ],
)
def test_reason_has_no_leaks_of_python(error, said):
    """A reason holds the system's words: no error number, no codec, never nothing."""
    assert reason_of(error).rstrip() == said
