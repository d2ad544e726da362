"""A host without a person beside it: reads are asked again, changes never; in a dry run nothing is changed."""

import pytest

from opslib.errors import CommandTimedOut, DryRunEnds, HostUnreachable
from opslib.hosts import careful
from opslib.hosts.careful import CarefulHost
from tests.fakes import FakeHost, answered

LOST = HostUnreachable("nothing answered", host="fake")


class FlakyHost(FakeHost):
    """Can't be reached for the first `n_lost` questions."""

    def __init__(self, n_lost, error=LOST):
        super().__init__({("cat",): "here", ("systemctl",): "done"})
        self.n_lost = n_lost
        self.error = error

    def run(self, argv, **options):
        result = super().run(argv, **options)
        self._fail()
        return result

    def read_file(self, path, *, sudo=False):
        self.commands.append(("read", path))
        self._fail()
        return b"content"

    def run_program(self, main, arguments, *, timeout_s=60.0, sudo=False):
        self.commands.append((main, *sorted(arguments)))
        self._fail()
        return answered((main,), "{}")

    def _fail(self):
        if len(self.commands) <= self.n_lost:
            raise self.error


@pytest.fixture
def waits(monkeypatch):
    """The seconds that were waited, without waiting."""
    waited = []
    monkeypatch.setattr(careful.time, "sleep", waited.append)
    return waited


def careful_host(host, *, retries=2, is_dry_run=False):
    said = []
    return CarefulHost(host, retries=retries, is_dry_run=is_dry_run, on_retry=said.append), said


READS = [
    lambda host: host.run(("cat", "--", "/x")).text,
    lambda host: host.read_file("/x").decode(),
    lambda host: host.run_program("identity", {}).text,
]


@pytest.mark.parametrize("ask", READS)
def test_a_read_is_asked_again_and_said(ask, waits):
    """A read of a host that comes back is answered; each repetition is told with its number and its wait."""
    host, said = careful_host(FlakyHost(2))
    assert ask(host)
    assert waits == [1, 2]
    assert said[0] == "nothing answered; asked again after 1 s (1 of 2)"
    assert len(said) == 2


def test_repetitions_end(waits):
    """A host that stays away is unreachable after the last repetition; waits grow to half a minute."""
    host, said = careful_host(FlakyHost(99), retries=7)
    with pytest.raises(HostUnreachable):
        host.run(("cat", "--", "/x"))
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    assert len(said) == 7


CHANGES = [
    lambda host: host.run(("systemctl", "restart", "--", "x"), sudo=True),
    lambda host: host.run_program("loadgen", {}),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_never_sent_twice(change, waits):
    """What may have been done is not done again, however the link ended."""
    inner = FlakyHost(1)
    host, said = careful_host(inner)
    with pytest.raises(HostUnreachable):
        change(host)
    assert (len(inner.commands), said, waits) == (1, [], [])


def test_only_a_lost_host_is_asked_again(waits):
    """A command that took too long, or was refused, is not repeated."""
    inner = FlakyHost(1, CommandTimedOut("too long"))
    host, said = careful_host(inner)
    with pytest.raises(CommandTimedOut):
        host.run(("cat", "--", "/x"))
    assert (len(inner.commands), said) == (1, [])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        *((change, "") for change in CHANGES),
        (lambda host: host.write_file("/etc/x", b"new"), "a new /etc/x"),
        (lambda host: host.stream(("rm", "/x")), "rm /x"),
        (lambda host: host.stream_program("lock", {}), "the program lock"),
    ],
)
def test_a_dry_run_ends_before_its_first_change(change, what):
    """In a dry run no change reaches the host, by whatever door; what it would have been is said."""
    inner = FakeHost({("rm",): "gone", ("systemctl",): "done"})
    host, _ = careful_host(inner, is_dry_run=True)
    with pytest.raises(DryRunEnds, match=f"nothing was changed: next would be .*{what}"):
        change(host)
    assert (inner.commands, inner.files) == ([], {})


def test_a_dry_run_reads_and_keeps_no_receipts():
    """In a dry run everything that only asks is asked; verifying writes no receipt of what it hashed."""
    inner = FlakyHost(0)
    host, _ = careful_host(inner, is_dry_run=True)
    for ask in READS:
        assert ask(host)
    host.run_program("verify", {"path": "/srv/models/x"})
    assert inner.commands[-1] == ("verify", "no_receipts", "path")
