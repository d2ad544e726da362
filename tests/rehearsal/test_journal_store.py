"""The journal store: what journald promises about cursors, matches and JSON."""

import json

import pytest

from opslib.rehearsal.journal_store import JournalStore, entry_json, field_matches, machine_boot_id, unit_matches


@pytest.fixture
def store():
    return JournalStore()


def messages(store, match):
    return [entry.text("MESSAGE") for entry in store.entries if match(entry)]


def fill(store):
    for message, unit, pid in (("a", "x.service", "1"), ("b", "x.service", "2"), ("c", "y.service", "1")):
        store.append({"MESSAGE": message, "_SYSTEMD_UNIT": unit, "_PID": pid})


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([], ["a", "b", "c"]),
        (["_PID=1"], ["a", "c"]),
        (["_PID=1", "_PID=2"], ["a", "b", "c"]),
        (["_PID=1", "_SYSTEMD_UNIT=x.service"], ["a"]),
        (["_PID=2", "+", "_SYSTEMD_UNIT=y.service"], ["b", "c"]),
        (["_PID=1", "_SYSTEMD_UNIT=y.service", "+", "MESSAGE=b"], ["b", "c"]),
        (["_PID=9"], []),
    ],
)
def test_matches(store, terms, expected):
    """Matches of one field are alternatives, of different fields both needed, and `+` joins alternatives."""
    fill(store)
    assert messages(store, field_matches(terms)) == expected


def test_match_without_equal_sign():
    """A term that is no match is refused with journalctl's words."""
    with pytest.raises(ValueError, match="Failed to add match 'x': Invalid argument"):
        field_matches(["x"])


def test_unit_selects_manager_lines_too(store):
    """`-u` selects the unit's own lines and systemd's lines about it, but not a unit's claim to be about another."""
    store.append({"MESSAGE": "own", "_SYSTEMD_UNIT": "x.service", "_PID": "7"})
    store.append({"MESSAGE": "about", "UNIT": "x.service", "_PID": "1"})
    store.append({"MESSAGE": "claim", "UNIT": "x.service", "_PID": "8"})
    assert messages(store, unit_matches("x.service")) == ["own", "about"]


def test_cursor_addresses_one_entry(store):
    """Reading from a cursor begins with its entry, after a cursor with the next one."""
    fill(store)
    cursor = store.entries[1].cursor
    assert store.position(cursor, after=False) == 1
    assert store.position(cursor, after=True) == 2
    assert store.position("nonsense", after=True) is None


def test_cursor_of_another_journal_is_sought_by_time(store):
    """A cursor that this journal did not give is found by its time stamp."""
    fill(store)
    foreign = store.entries[1].cursor.replace("s=", "s=0")
    found = store.position(foreign, after=True)
    assert store.entries[found].realtime_us >= store.entries[1].realtime_us


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("plain", "plain"),
        ("tab\tand\nnewline", "tab\tand\nnewline"),
        ("grün", "grün"),
        (b"\r50%", [13, 53, 48, 37]),
        ("\x1b[0m", [27, 91, 48, 109]),
        ("\x7f", [127]),
        (b"\xff", [255]),
        ("\x85", [194, 133]),
        (("one", "two"), ["one", "two"]),
        ("x" * (4095 - len("MESSAGE=")), "x" * (4095 - len("MESSAGE="))),
        ("x" * (4096 - len("MESSAGE=")), None),
    ],
)
def test_json_values(store, message, shown):
    """Control bytes and broken UTF-8 become arrays of numbers, repeated fields arrays, 4096 bytes and more null."""
    entry = store.append({"MESSAGE": message})
    assert json.loads(entry_json(entry))["MESSAGE"] == shown


def test_all_shows_long_fields(store):
    """With --all no field is null."""
    entry = store.append({"MESSAGE": "x" * 5000})
    assert json.loads(entry_json(entry, show_all=True))["MESSAGE"] == "x" * 5000


def test_output_fields_keep_the_addresses(store):
    """--output-fields limits the fields, but cursor, times and boot id are always there."""
    entry = store.append({"MESSAGE": "m", "PRIORITY": "6"})
    assert set(json.loads(entry_json(entry, fields=["MESSAGE"]))) == {
        *("__CURSOR", "__REALTIME_TIMESTAMP", "__MONOTONIC_TIMESTAMP", "_BOOT_ID", "MESSAGE")
    }


def test_file_holds_every_entry(tmp_path):
    """The file has one JSON line per entry, written when the entry is."""
    store = JournalStore(tmp_path / "journal.jsonl")
    store.append({"MESSAGE": "x" * 5000})
    store.append({"MESSAGE": b"\xff"})
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert [line["MESSAGE"] for line in lines] == ["x" * 5000, [255]]


def test_boot_id_is_the_machines(store):
    """Entries carry the boot id that the kernel tells, so that both can be compared."""
    assert store.append({"MESSAGE": "m"}).text("_BOOT_ID") == machine_boot_id()


def test_subscribers_are_told_until_they_leave(store):
    """Whoever follows is told of each entry, and no more after leaving."""
    told = []
    leave = store.subscribe(lambda: told.append(len(store.entries)))
    store.append({"MESSAGE": "a"})
    leave()
    store.append({"MESSAGE": "b"})
    assert told == [1]
