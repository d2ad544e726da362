"""Reading journald's JSON, and any text in which a journal may come."""

import json
from datetime import UTC, datetime

import pytest

from opslib.domain.facts.journal import journal_command, kernel_command, newest_entry_command, parse_journal_entry
from opslib.domain.journal_text import parse_input
from opslib.errors import UnexpectedAnswer


def test_byte_numbers_are_decoded():
    """A message with a carriage return comes as numbers."""
    assert parse_journal_entry(json.dumps({"MESSAGE": list("\rübel".encode())})).message == "\rübel"


def test_a_null_message_is_missing_evidence():
    """Null means that the message was longer than 4096 bytes and read without --all."""
    entry = parse_journal_entry('{"MESSAGE": null, "PRIORITY": "6"}')
    assert (entry.message, entry.is_missing, entry.priority) == ("", True, 6)


def test_the_first_of_a_repeated_field_counts():
    """Repeated fields are arrays."""
    assert parse_journal_entry('{"MESSAGE": "x", "UNIT": ["a.service", "b.service"]}').unit == "a.service"


def test_fields_are_read():
    """Time is aware UTC; systemd's own lines name the invocation they are about."""
    entry = parse_journal_entry(
        '{"MESSAGE":"m","__REALTIME_TIMESTAMP":"1781835000259163","_PID":"7","INVOCATION_ID":"a","_SYSTEMD_INVOCATION_ID":"b"}'
    )
    assert entry.realtime_at == datetime(2026, 6, 19, 2, 10, 0, 259163, tzinfo=UTC)
    assert (entry.pid, entry.invocation_id) == (7, "a")


@pytest.mark.parametrize("line", ["", "-- No entries --", "[1]", "{"])
def test_other_lines_are_unexpected(line):
    """What is no JSON object is not an entry."""
    with pytest.raises(UnexpectedAnswer):
        parse_journal_entry(line)


def test_one_invocation_is_asked_with_systemds_lines():
    """The program's lines or systemd's own about the same start."""
    argv = journal_command("vllm", invocation_id="abc")
    assert argv[-3:] == ("_SYSTEMD_INVOCATION_ID=abc", "+", "INVOCATION_ID=abc")
    assert "--all" in argv


def test_following_shows_everything_after_the_cursor():
    """--follow alone would show ten lines only."""
    argv = journal_command("vllm", follow=True, after_cursor="s=1")
    assert {"--follow", "--no-tail", "--after-cursor=s=1", "--unit=vllm.service"} <= set(argv)
    assert "--lines=1" in newest_entry_command()


def test_kernel_lines_are_asked_by_time():
    """They match no unit filter."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert kernel_command(at, at)[-3:] == (
        "--since=@1767225600.000000",
        "--until=@1767225600.000000",
        "_TRANSPORT=kernel",
    )


def test_empty_lines_count_in_text_and_not_between_objects():
    """The place of a line is the one an editor shows; of an object, its number."""
    assert [entry.line for entry in parse_input("a\n\nb")] == [0, 1, 2]
    assert [entry.line for entry in parse_input('{"MESSAGE":"a"}\n\n{"MESSAGE":"b"}\n')] == [0, 1]


def test_a_long_journal_keeps_both_ends():
    """What decides stands at the ends; the middle of many alike lines is passed over."""
    text = b"".join(b'INFO:     10.0.0.1:%d - "POST /v1/completions HTTP/1.1" 200 OK\n' % n for n in range(30_000))
    entries = parse_input(text + b"ValueError: x\n")
    assert len(entries) < 20_000
    assert entries[-2].line == 30_000
    assert entries[0].line == 0
