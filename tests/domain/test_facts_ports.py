"""Who listens on a port."""

import pytest

from opslib.domain.facts.ports import listeners_command, parse_listeners
from opslib.errors import UnexpectedAnswer

SS = """LISTEN 0      2048         0.0.0.0:8000       0.0.0.0:*    users:(("vllm",pid=4172,fd=22),("python3",pid=4180,fd=22))
LISTEN 0      128             [::]:8000          [::]:*
"""


def test_each_process_of_a_socket_is_a_listener():
    """Without root there's no process, but still a listener."""
    first, second, third = parse_listeners(SS)
    assert (first.address, first.port, first.pid, first.process_name) == ("0.0.0.0", 8000, 4172, "vllm")
    assert (second.pid, third.pid, third.address) == (4180, None, "[::]")


def test_nothing_listens_when_nothing_is_said():
    """An empty answer is an answer."""
    assert parse_listeners("") == ()


def test_a_foreign_line_is_an_unexpected_answer():
    """What isn't ss's format isn't guessed at."""
    with pytest.raises(UnexpectedAnswer):
        parse_listeners("Netid State\n")


def test_the_question_filters_by_port():
    """The filter is arguments of ss itself, no shell."""
    assert listeners_command(8000)[-3:] == ("sport", "=", ":8000")
