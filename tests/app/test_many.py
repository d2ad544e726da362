"""Many hosts asked at once: a bounded number at a time, and nobody waits for one that can't be reached."""

import threading
import time

import pytest

import opslib.app.many as many
from opslib.app.many import ask_hosts
from opslib.errors import HostUnreachable
from tests.fakes import FakeHost

IS_ASKED = threading.Event()  # the one that answers has been asked; the dead are given up only then


class Slow(FakeHost):
    """Connects as slowly, or as little, as its alias says."""

    def connect(self):
        if self.settings.alias.startswith("dead"):
            raise HostUnreachable("nothing answered" if IS_ASKED.wait(20) else "given up before the last one was asked")


@pytest.fixture
def hosts(monkeypatch):
    closed = []

    def bind(alias):
        host = Slow(alias=alias)
        host.close = lambda: closed.append(alias)
        return host

    monkeypatch.setattr(many, "open_bound_host", bind)
    return closed


def test_hosts_that_cannot_be_reached_hold_up_no_other(hosts, monkeypatch):
    """Forty dead hosts first: the last one is asked long before they have been given up."""
    monkeypatch.setattr(many, "AT_ONCE", 2)
    IS_ASKED.clear()
    aliases = [*(f"dead-{n}" for n in range(40)), "alive"]
    answers = ask_hosts(
        aliases,
        lambda host: IS_ASKED.set() or host.settings.alias,
        lambda why: why.error.message,
    )
    assert answers == ("nothing answered",) * 40 + ("alive",)
    assert sorted(hosts) == sorted(aliases)


def test_only_so_many_are_asked_at_a_time(hosts, monkeypatch):
    """All are connected to, but the asking itself is bounded."""
    monkeypatch.setattr(many, "AT_ONCE", 3)
    lock, now, most = threading.Lock(), [0], [0]

    def ask(host):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.03)
        with lock:
            now[0] -= 1
        return host.settings.alias

    aliases = [f"h{n}" for n in range(12)]
    assert ask_hosts(aliases, ask, lambda why: "") == tuple(aliases)
    assert most[0] == 3
    assert ask_hosts([], ask, lambda why: "") == ()
