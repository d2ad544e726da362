"""Reading every start of a crash loop."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from opslib.domain.facts.journal import journal_command
from opslib.domain.facts.systemd import parse_unit_show, show_unit_command
from opslib.workflow import attempts
from opslib.workflow.attempts import follow_attempts
from opslib.workflow.launch import Start
from tests.fakes import FakeHost, answered

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
ERROR = "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"


def show(active_state, n_restarts):
    return f"LoadState=loaded\nActiveState={active_state}\nSubState=x\nResult=exit-code\nInvocationID=i9\nNRestarts={n_restarts}\n"


def journal(n_starts, *, is_limit):
    lines = []
    for n in range(n_starts):
        own = {"_SYSTEMD_INVOCATION_ID": f"i{n}", "_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "vllm"}
        manager = {"INVOCATION_ID": f"i{n}", "SYSLOG_IDENTIFIER": "systemd", "UNIT": "vllm.service"}
        lines += [
            {**manager, "MESSAGE": "Started vllm.service."},
            {**own, "MESSAGE": ERROR},
            {**manager, "MESSAGE": "vllm.service: Main process exited, code=exited, status=1/FAILURE"},
        ]
    if is_limit:
        lines.append({"SYSLOG_IDENTIFIER": "systemd", "MESSAGE": "vllm.service: Start request repeated too quickly."})
    return "\n".join(json.dumps({"__REALTIME_TIMESTAMP": str(n), **line}) for n, line in enumerate(lines))


@pytest.fixture
def clock(monkeypatch):
    """A clock that only `pause` moves."""
    now = [NOW]
    monkeypatch.setattr(attempts, "pause", lambda seconds: now.__setitem__(0, now[0] + timedelta(seconds=seconds)))
    return lambda: now[0]


def host_with(shows, text):
    answers = iter(shows)
    last = [shows[-1]]

    def next_show(argv):
        last[0] = next(answers, last[0])
        return answered(argv, last[0])

    return FakeHost({show_unit_command("vllm"): next_show, journal_command("vllm", after_cursor="c"): text})


def start():
    before = parse_unit_show(show("inactive", 0))
    return Start(unit="vllm", asked_at=NOW, cursor="c", before=before, verb="start")


def test_a_loop_is_followed_until_systemd_gives_up(clock):
    """The look ends with the unit failed; every start since the first is read, with its cause."""
    host = host_with([show("activating", 1), show("activating", 2), show("failed", 2)], journal(3, is_limit=True))
    found = follow_attempts(host, start(), clock=clock)
    assert found.has_given_up
    assert [at.cause for at in found.diagnosis.invocations if at.invocation_id] == ["environment/python-dependency"] * 3


def test_a_start_that_lasts_ends_the_look(clock):
    """Where no new start comes for a while, or the time is up, what is known is told, and no end is claimed."""
    host = host_with([show("activating", 1), show("active", 1)], journal(1, is_limit=False))
    assert not follow_attempts(host, start(), patience_s=2, clock=clock).has_given_up
    assert clock() - NOW < timedelta(seconds=5)
    restarting = [show("activating", n) for n in range(100)]
    assert not follow_attempts(host_with(restarting, ""), start(), limit_s=10, clock=clock).has_given_up
