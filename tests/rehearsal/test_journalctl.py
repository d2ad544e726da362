"""journalctl's options over the store: what is selected, shown and refused."""

import asyncio
import time

import pytest

from opslib.rehearsal.journal_store import JournalStore
from opslib.rehearsal.journalctl import journalctl
from opslib.rehearsal.terminal import Terminal
from opslib.rehearsal.unit_journal import kernel_line


class Screen(Terminal):
    """A terminal whose output can be read."""

    def __init__(self):
        self.stdout, self.stderr = bytearray(), bytearray()
        super().__init__(write_out=self.stdout.extend, write_err=self.stderr.extend)

    @property
    def lines(self):
        return self.stdout.decode().splitlines()


@pytest.fixture
def store():
    store = JournalStore(hostname="infer-1")
    for number, priority in enumerate((6, 4, 3, 6)):
        fields = {"MESSAGE": f"m{number}", "PRIORITY": str(priority), "_SYSTEMD_UNIT": "x.service", "_PID": "7"}
        store.append({**fields, "SYSLOG_IDENTIFIER": "x"})
    kernel_line(store, "NVRM: Xid 79", priority=3)
    return store


def shown(store, *argv):
    screen = Screen()
    assert asyncio.run(journalctl(store, argv, screen)) == 0
    return screen.lines


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["-o", "cat", "-u", "x"], ["m0", "m1", "m2", "m3"]),
        (["-ocat", "-ux", "-n2"], ["m2", "m3"]),
        (["-o", "cat", "--unit=x.service", "--lines=1", "-r"], ["m3"]),
        (["-o", "cat", "-p", "warning", "-u", "x"], ["m1", "m2"]),
        (["-o", "cat", "-p", "4..4"], ["m1"]),
        (["-o", "cat", "-k"], ["NVRM: Xid 79"]),
        (["-o", "cat", "-b", "-u", "x", "-n", "1"], ["m3"]),
        (["-o", "cat", "--since=+1h"], []),
        (["-o", "cat", "--since=-5min", "--until=now", "-u", "x", "-n", "1"], ["m0"]),
        (["-o", "cat", "-u", "x", "-u", "y", "_PID=7", "PRIORITY=3"], ["m2"]),
        (["-u", "y"], ["-- No entries --"]),
        (["-q", "-u", "y"], []),
        (["-o", "json", "-u", "y"], []),
    ],
)
def test_selection(store, argv, expected):
    """Options select as journalctl's do: -u and matches together, -p and worse, -n from the end, --since from it on."""
    assert shown(store, *argv) == expected


def test_absolute_times(store):
    """--since takes seconds since the epoch and UTC dates."""
    now = time.time()
    assert shown(store, "-o", "cat", f"--since=@{now + 60:.6f}") == []
    tomorrow = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now + 86400))
    assert len(shown(store, "-o", "cat", f"--until={tomorrow}")) == 5


def test_short_lines_name_host_program_and_pid(store):
    """A short line has time, host, identifier with process id, and message."""
    assert shown(store, "-u", "x", "-n", "1", "-o", "short-iso")[0].split(" ", 1)[1] == "infer-1 x[7]: m3"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--vacuum-time=1s"], "rehearsal host: option --vacuum-time is not one that this kit uses"),
        (["-x"], "rehearsal host: option -x is not one that this kit uses"),
        (["-o", "verbose"], "rehearsal host: option --output=verbose is not one that this kit uses"),
        (["--after-cursor=foo"], "Failed to seek to cursor: Invalid argument"),
        (["-p", "loud"], "Unknown log level loud"),
        (["--since=soon"], "Failed to parse timestamp: soon"),
        (["-b", "-1"], "Data from the specified boot (-1) is not available: No such boot ID in journal"),
    ],
)
def test_refusals(store, argv, said):
    """What the kit does not use, and what journalctl does not understand, is refused with status 1."""
    screen = Screen()
    assert asyncio.run(journalctl(store, argv, screen)) == 1
    assert screen.stderr.decode().strip() == said


def test_follow_shows_what_comes_and_ends_with_its_reader(store):
    """-f shows old entries, then each new one as it is written, and ends when whoever reads has gone."""

    async def follow():
        screen = Screen()
        following = asyncio.ensure_future(journalctl(store, ["-f", "-o", "cat", "-u", "x", "-n", "1"], screen))
        await asyncio.sleep(0)
        store.append({"MESSAGE": "new", "_SYSTEMD_UNIT": "x.service"})
        store.append({"MESSAGE": "other", "_SYSTEMD_UNIT": "y.service"})
        await asyncio.sleep(0.01)
        screen.gone.set()
        assert await asyncio.wait_for(following, 1) == 0
        return screen.lines

    assert asyncio.run(follow()) == ["m3", "new"]
