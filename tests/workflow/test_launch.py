"""Starting and watching a unit through a host that lives in memory."""

import json
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from opslib.domain.facts.systemd import show_unit_command
from opslib.domain.launch import LaunchState
from opslib.errors import HostUnreachable, PrivilegeRefused, Refused
from opslib.workflow import launch
from opslib.workflow.launch import Start, last_status, start_unit, stop_unit, watch_launch
from tests.fakes import FakeHost, FakeStream, answered

T0 = datetime(2026, 11, 29, 12, tzinfo=UTC)


def show(invocation_id, active_state="active", sub_state="running", n_restarts=0):
    return (
        f"LoadState=loaded\nActiveState={active_state}\nSubState={sub_state}\nResult=success\nMainPID=7\n"
        f"InvocationID={invocation_id}\nNRestarts={n_restarts}\n"
    )


def told(type_, seconds, **fields):
    return json.dumps({"type": type_, "at": T0.timestamp() + seconds, **fields}).encode()


def journal(seconds, message, cursor, identifier="vllm"):
    return told(
        "journal",
        seconds,
        entry={
            "MESSAGE": message,
            "__CURSOR": cursor,
            "_SYSTEMD_INVOCATION_ID": "new",
            "SYSLOG_IDENTIFIER": identifier,
            "__REALTIME_TIMESTAMP": str(int((T0.timestamp() + seconds) * 1e6)),
        },
    )


class WatchedHost(FakeHost):
    """A host whose program `watch` says what was prepared, one list of lines (or an error) per connection."""

    def __init__(self, *connections, **settings):
        super().__init__(
            {
                show_unit_command("vllm"): show("old", "inactive", "dead"),
                ("journalctl",): json.dumps({"MESSAGE": "x", "__CURSOR": "c0"}),
                ("systemctl",): "",
            },
            **settings,
        )
        self.connections = list(connections)
        self.arguments = []

    @contextmanager
    def stream_program(self, main, arguments, *, sudo=False):
        assert main == "watch"
        self.arguments.append(arguments)
        lines = self.connections.pop(0)
        if isinstance(lines, Exception):
            raise lines
        yield FakeStream(lines)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(launch, "pause", lambda _: None)


def clock():
    return T0 + timedelta(seconds=1)


def started(host):
    return start_unit(host, "vllm", clock=lambda: T0)


READY = [
    told("unit", 1, text=show("new")),
    told("health", 1, status_code=None),
    journal(2, "Loading safetensors checkpoint shards: 100% Completed | 125/125 [01:00<00:00,  2.0it/s]", "c1"),
    told("gpu", 3, text="0, 12, NVIDIA, GPU-1, 97250, 60000, 37250, 570.1"),
    told("health", 75, status_code=200),
    told("answer", 75, pid=7, kind="token", model="tiny", latency_ms=80.0, is_ours=True),
]


def test_start_notes_cursor_and_status_first():
    """The journal's place and the unit's state are asked before systemd is told to start."""
    host = WatchedHost()
    start = started(host)
    assert (start.cursor, start.verb, start.before.invocation_id) == ("c0", "start", "old")
    verbs = [command for command in host.commands if command[0] == "systemctl"]
    assert verbs == [("systemctl", "--no-block", "start", "--", "vllm.service")]


def test_a_running_unit_is_restarted_and_a_failed_one_reset():
    """Starting what runs means restarting it; a failed unit's start limit is forgotten first."""
    host = WatchedHost()
    host.answers[show_unit_command("vllm")] = show("old")
    assert started(host).verb == "restart"
    host.answers[show_unit_command("vllm")] = show("old", "failed", "failed")
    started(host)
    assert ("systemctl", "reset-failed", "--", "vllm.service") in host.commands


def test_a_refused_start_quotes_systemd():
    """Systemd's own words are in the error."""
    host = WatchedHost()
    host.answers[("systemctl",)] = answered(exit_status=5, stderr="Unit is masked.")
    with pytest.raises(Refused, match="masked"):
        started(host)


def test_a_launch_ends_when_ready():
    """Ready ends the watch at once; the last update carries GPU memory, and says that it serves, whatever was logged last."""
    host = WatchedHost([*READY, told("tick", 76, pid=1)])
    updates = list(watch_launch(host, "vllm", port=8000, timeout_s=600, start=started(host), clock=clock))
    status = updates[-1].status
    assert status.state is LaunchState.READY
    assert len(updates) == len(READY)
    assert status.gpus[0].memory_used_bytes == 60000 * 2**20
    assert (status.phase.id, status.percent) == ("first_token", None)


def test_a_lost_link_goes_on_at_the_cursor():
    """Unreachable is reported, and the next connection reads on where the journal was left."""
    host = WatchedHost(READY[:3], HostUnreachable("gone"), READY[3:])
    updates = list(watch_launch(host, "vllm", port=8000, timeout_s=600, start=started(host), clock=clock))
    states = [update.status.state for update in updates]
    assert LaunchState.UNREACHABLE in states
    assert states[-1] is LaunchState.READY
    assert "--after-cursor=c1" in host.arguments[-1]["journal"]


def test_a_crash_ends_the_watch():
    """A worker's last words end it, with the failed invocation named."""
    crash = journal(
        9, "(Worker_TP0 pid=9) ERROR 11-29 12:00:09 [multiproc_executor.py:1] WorkerProc hit an exception.", "c2"
    )
    host = WatchedHost([*READY[:4], crash])
    status = last_status(watch_launch(host, "vllm", port=8000, timeout_s=600, start=started(host), clock=clock))
    assert status.state is LaunchState.CRASHED
    assert status.crash is not None
    assert status.crash.invocation_id == "new"


def test_a_crash_waits_a_moment_for_the_last_word():
    """Seen by the restart, the watch reads on until the journal says how the process ended; then nothing more."""
    restarted = told("unit", 9, text=show("next", n_restarts=1))
    last_word = journal(9, "vllm.service: Main process exited, code=killed, status=9/KILL", "c3", "systemd")
    host = WatchedHost([*READY[:4], restarted, journal(9, "the last line", "c2"), last_word, READY[3]])
    updates = list(watch_launch(host, "vllm", port=8000, timeout_s=600, start=started(host), clock=clock))
    assert len(updates) == 7
    assert updates[-1].status.state is LaunchState.CRASHED
    assert updates[-1].status.reason == "NRestarts went from 0 to 1 (killed, status=9/KILL)"


def test_the_deadline_ends_the_watch():
    """When the time is up the last update says so."""
    times = iter([T0, T0 + timedelta(seconds=1), T0 + timedelta(seconds=700)])
    start = Start(unit="vllm", asked_at=T0, cursor="c0", before=started(WatchedHost()).before, verb="start")
    host = WatchedHost(READY[:1])
    last = T0 + timedelta(seconds=700)
    updates = watch_launch(host, "vllm", port=8000, timeout_s=600, start=start, clock=lambda: next(times, last))
    assert last_status(updates).state is LaunchState.TIMED_OUT


def test_stop_asks_again():
    """Stopping returns what systemd says afterwards."""
    host = WatchedHost()
    assert stop_unit(host, "vllm").active_state == "inactive"


@pytest.mark.parametrize(("settings", "is_root"), [({}, True), ({"sudo": "listed"}, False), ({"sudo": False}, False)])
def test_the_watch_runs_with_sudo_where_it_may(settings, is_root):
    """Only so the engine's key and the owner of the port can be seen; a login without sudo watches all the same."""
    host = WatchedHost(**settings)
    host.answers |= {("true",): "", ("id",): "ops adm"}
    assert launch.watch_sudo(host) is is_root
    host.answers[("true",)] = PrivilegeRefused("no")
    assert launch.watch_sudo(host) is False
