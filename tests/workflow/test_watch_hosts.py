"""A unit is watched while things go wrong, on the practice host and on a real one alike."""

import threading
import time
from contextlib import suppress

import pytest

from opslib.domain.facts.journal import journal_command, parse_journal
from opslib.domain.launch_events import HostHello, JournalSeen, event_document
from opslib.domain.launch_record import replay_watch
from opslib.domain.launch_status import FINAL, LaunchState
from opslib.errors import OpslibError
from opslib.hosts import open_host
from opslib.workflow.launch import find_journal_gap, journal_cursor, show_unit, start_unit, stop_unit, watch_launch

UNIT = "opslib-watched"
ON_AND_ON = FINAL - {LaunchState.CRASHED, LaunchState.READY}
SERVES = "exec /usr/bin/env python3 -m http.server {port}"
KINDS = ["rehearsal", pytest.param("debian", marks=pytest.mark.realhost)]


def put(host, command, *lines):
    """The unit as a file: a shell command, and more lines of [Service]."""
    more = "".join(f"{line}\n" for line in lines)
    text = f"[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStart=/bin/sh -c '{command}'\n{more}"
    host.write_file(f"{host.settings.unit_dir}/{UNIT}.service", text.encode(), sudo=True)
    assert host.run(("systemctl", "daemon-reload"), sudo=True).is_success


class Watch:
    """A watch in a thread of its own: its updates, and waiting for one that holds."""

    def __init__(self, host, **options):
        self.updates, self.heads, self.error = [], [], None
        self._news = threading.Condition()
        self._is_ended = False
        options = {"port": 8765, "timeout_s": 60, "has_gpus": False, "health_path": "/", **options}
        self._iterator = watch_launch(host, UNIT, on_begin=self.heads.append, **options)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            for update in self._iterator:
                with self._news:
                    self.updates.append(update)
                    self._news.notify_all()
                if self._is_ended:
                    break
        except OpslibError as error:
            self.error = error
        self._iterator.close()
        with self._news:
            self._news.notify_all()

    @property
    def status(self):
        return self.updates[-1].status if self.updates else None

    def wait(self, holds, seconds=20.0):
        """The first update that holds, also among those that came already."""
        deadline = time.monotonic() + seconds
        with self._news:
            while not (found := next((update for update in self.updates if holds(update)), None)):
                left_s = deadline - time.monotonic()
                assert left_s > 0 and self._thread.is_alive(), (self.error, self.status)
                self._news.wait(min(left_s, 0.5))
        return found

    def wait_state(self, state, seconds=20.0):
        return self.wait(lambda update: update.status.state is state, seconds).status

    def messages(self):
        return [update.event.entry.message for update in self.updates if isinstance(update.event, JournalSeen)]

    def replayed(self):
        """What the events give when they are written down, and played again."""
        lines = [self.heads[0].model_dump(mode="json") | {"event": "begin"}]
        lines += [event_document(update.event) for update in self.updates]
        return [update.status for _, update in replay_watch(lines)]

    def close(self):
        self._is_ended = True
        self._thread.join(10)


@pytest.fixture(params=KINDS)
def host(request):
    """Each kind of host, opened; the unit is stopped at the end."""
    opened = open_host(request.getfixturevalue(request.param).settings)
    yield opened
    with suppress(OpslibError):  # it may be gone
        stop_unit(opened, UNIT)
    opened.close()


def programs(host, watch):
    """Process ids of what a watch runs on the host: its program, and journalctl below it."""
    own = {update.event.pid for update in watch.updates if isinstance(update.event, HostHello)}
    below = host.run(("ps", "-o", "pid=", "--ppid", ",".join(map(str, own)))).text.split()
    return own | {int(pid) for pid in below}


def left_of(host, pids, seconds=8.0):
    """Which of these processes are still there, after some seconds."""
    deadline = time.monotonic() + seconds
    asked = ("ps", "-o", "pid=,stat=", "--pid", ",".join(map(str, pids)))
    while (left := [line for line in host.run(asked).text.splitlines() if "Z" not in line]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.3)
    return left


def test_two_crashes_within_a_second_are_two(host):
    """A start that dies at once and is started again at once: each death is a crash, nothing of its last words is lost.

    It lives a tenth of a second: journald can't tell whose the words of a process are that is gone when it reads them,
    so what counts is what the host itself kept.
    """
    put(host, "echo last words of $$$$; sleep 0.1; exit 3", "Restart=always", "RestartSec=100ms")
    watch = Watch(host, start=start_unit(host, UNIT), ends_at=ON_AND_ON)
    watch.wait(lambda update: len(update.status.crashes) >= 4)
    started = programs(host, watch)
    watch.close()
    crashes = watch.status.crashes
    assert len({crash.invocation_id for crash in crashes}) == len(crashes)
    over = {crash.invocation_id for crash in crashes[:-1]}  # the watch may have ended within the last one
    kept = parse_journal(host.run(journal_command(UNIT), sudo=True).text)
    words = {entry.message for entry in kept if entry.invocation_id in over and "last words of" in entry.message}
    assert words
    assert words <= set(watch.messages())
    told = {crash.exit_status for crash in crashes[:3]}  # "": its end was seen before systemd had a word for it
    assert told - {""} == {"exited, status=3/NOTIMPLEMENTED"}
    assert watch.status.budget_words in {"no start limit", ""}
    assert watch.replayed()[-1] == watch.status
    assert len(started) >= 2
    assert not left_of(host, started)


def test_the_main_process_is_killed(host):
    """Killed while it serves: its end is seen before anything is asked, then the crash with its signal, then the restart."""
    put(host, SERVES.format(port=8765), "Restart=always", "RestartSec=1")
    watch = Watch(host, start=start_unit(host, UNIT), ends_at=ON_AND_ON)
    pid = watch.wait_state(LaunchState.READY).main_pid
    assert host.run(("kill", "-KILL", str(pid)), sudo=True).is_success
    exited = watch.wait(lambda update: update.status.ended_pid == pid)
    assert any(change.what == "exit" and str(pid) in change.text for change in exited.changes)
    watch.wait(lambda update: any("killed" in crash.exit_status for crash in update.status.crashes))
    watch.wait_state(LaunchState.RESTARTING)
    again = watch.wait(
        lambda update: update.status.state is LaunchState.READY and update.status.main_pid not in {0, pid}
    )
    assert again.status.n_restarts == 1
    watch.close()


def test_the_watching_program_is_killed(host):
    """Killed on the host: the link counts as lost, nothing as failed; the next reads on, and nothing is lost or doubled."""
    put(host, "n=0; while true; do echo line $$n; n=$$((n+1)); sleep 0.05; done")
    watch = Watch(host, start=start_unit(host, UNIT), ends_at=ON_AND_ON)
    watch.wait(lambda update: "line 5" in getattr(getattr(update.event, "entry", None), "message", ""))
    started = programs(host, watch)
    own = next(update.event.pid for update in watch.updates if isinstance(update.event, HostHello))
    host.run(("kill", "-KILL", str(own)), sudo=True)
    lost = watch.wait_state(LaunchState.UNREACHABLE)
    assert "ended" in lost.reason
    n_lines = len(watch.messages())
    watch.wait(lambda update: update is watch.updates[-1] and len(watch.messages()) > n_lines + 60)
    started |= programs(host, watch)
    watch.close()
    numbers = [int(message.split()[1]) for message in watch.messages() if message.startswith("line ")]
    assert numbers == list(range(len(numbers)))
    assert watch.status.n_links_lost == 1
    assert not watch.status.crashes
    assert len(started) >= 2
    assert not left_of(host, started)


def test_a_unit_is_deleted_while_it_is_watched(host):
    """The file goes, the process runs on: said, and not failed; once it is stopped systemd knows no such unit."""
    put(host, "exec sleep 600")
    watch = Watch(host, start=start_unit(host, UNIT), ends_at=ON_AND_ON)
    watch.wait(lambda update: update.status.active_state == "active")
    path = f"{host.settings.unit_dir}/{UNIT}.service"
    host.run(("rm", "--force", "--", path), sudo=True)
    host.run(("systemctl", "daemon-reload"), sudo=True)
    watch.wait(lambda update: any("file is gone" in note for note in update.status.notes))
    assert watch.status.state is LaunchState.STARTING
    stop_unit(host, UNIT)
    assert watch.wait_state(LaunchState.FAILED).reason.startswith("systemd knows no unit")
    watch.close()


def test_a_stop_by_somebody_else_is_no_crash(host):
    """Stopped on request, the unit is inactive, and nothing crashed."""
    put(host, "exec sleep 600", "Restart=always")
    watch = Watch(host, start=start_unit(host, UNIT), ends_at=ON_AND_ON)
    watch.wait(lambda update: update.status.active_state == "active")
    stop_unit(host, UNIT)
    status = watch.wait_state(LaunchState.FAILED)
    assert "inactive" in status.reason
    assert not status.crashes
    watch.close()


def test_a_cursor_that_is_there_is_no_gap(host):
    """The entry that was read last is still in the journal; one of another journal is not."""
    put(host, "echo there; exec sleep 600")
    watch = Watch(host, start=start_unit(host, UNIT), ends_at=ON_AND_ON)
    watch.wait(lambda update: "there" in watch.messages())
    watch.close()
    assert find_journal_gap(host, UNIT, watch.status.cursor, at=watch.status.at) is None
    assert show_unit(host, UNIT).active_state == "active"
    assert journal_cursor(host, UNIT)


COUNTS = "n=0; while true; do echo line $$n; n=$$((n+1)); sleep 0.1; done"


def numbers_of(watch):
    """The numbers of the lines that were heard, in order."""
    return [int(message.split()[1]) for message in watch.messages() if message.startswith("line ")]


def cut(debian, seconds):
    """The link is cut for so long: unknown meanwhile, then nothing is lost or doubled, and nothing failed."""
    host = open_host(debian.settings)
    put(host, COUNTS)
    watch = Watch(host, start=start_unit(host, UNIT), ends_at=ON_AND_ON, timeout_s=seconds + 60)
    try:
        watch.wait(lambda _: len(numbers_of(watch)) > 5)
        with debian.network_cut():
            time.sleep(seconds)
        n_before = len(numbers_of(watch))
        watch.wait(lambda _: len(numbers_of(watch)) > n_before + 10 * min(seconds, 20), 40)
        watch.wait(lambda update: update is watch.updates[-1] and update.status.state is LaunchState.STARTING)
        watch.close()
        assert numbers_of(watch) == list(range(len(numbers_of(watch))))
        assert not watch.status.crashes
        assert {update.status.state for update in watch.updates} <= {LaunchState.STARTING, LaunchState.UNREACHABLE}
        assert not left_of(host, programs(host, watch))
        stop_unit(host, UNIT)
    finally:
        watch.close()
        host.close()
    return watch


@pytest.mark.realhost
def test_the_link_is_cut_for_five_seconds(debian):
    """Five seconds without a byte: the picture comes back whole."""
    cut(debian, 5)


@pytest.mark.slow
@pytest.mark.realhost
def test_the_link_is_cut_for_five_minutes(debian):
    """Five minutes: said to be unreachable, never failed, and the picture comes back whole."""
    watch = cut(debian, 300)
    assert watch.status.n_links_lost >= 1
    assert watch.status.unheard_s > 250


@pytest.mark.slow
@pytest.mark.realhost
def test_the_host_is_booted_anew(debian):
    """The power goes: unreachable, then a crash by the boot id, and the unit's new start is followed."""
    host = open_host(debian.settings)
    put(host, f"{COUNTS} ", "", "[Install]", "WantedBy=multi-user.target")
    assert host.run(("systemctl", "enable", "--", f"{UNIT}.service"), sudo=True).is_success
    watch = Watch(host, start=start_unit(host, UNIT), ends_at=ON_AND_ON, timeout_s=120)
    try:
        watch.wait(lambda _: len(numbers_of(watch)) > 5)
        debian.restart(is_orderly=False)
        watch.wait(lambda update: any(crash.noticed_by == "boot" for crash in update.status.crashes), 60)
        again = watch.wait(
            lambda update: (
                update.status.crashes and update.status.invocation_id != watch.status.crashes[0].invocation_id
            ),
            30,
        )
        assert "booted anew" in again.status.crashes[0].text
        assert LaunchState.UNREACHABLE in {update.status.state for update in watch.updates}
    finally:
        watch.close()
        host.close()


@pytest.mark.realhost
def test_a_journal_that_drops_says_so(debian):
    """Journald's rate limit: the picture says that it is incomplete, and by how many entries."""
    host = open_host(debian.settings)
    burst = "for n in $(seq 100); do echo burst $$n; done; sleep 1.5; echo after; exec sleep 600"
    put(host, burst.replace("$(", "$$("), "LogRateLimitIntervalSec=1s", "LogRateLimitBurst=5")
    watch = Watch(host, start=start_unit(host, UNIT), ends_at=ON_AND_ON)
    try:
        status = watch.wait(lambda update: update.status.n_dropped > 0).status
        assert any("journal is incomplete" in note for note in status.notes)
        heard = sum("burst" in message for message in watch.messages())
        assert heard + status.n_dropped == 100
    finally:
        watch.close()
        stop_unit(host, UNIT)
        host.close()


@pytest.mark.realhost
def test_a_worker_is_killed(debian):
    """A process that isn't the main one is killed: the engine's own words tell of it, before systemd does."""
    host = open_host(debian.settings)
    words = "(EngineCore pid=1) ERROR 11-29 12:00:00 [core.py:1] EngineCore encountered a fatal error."
    put(
        host,
        f'(sleep 300; true) & wait $!; echo "{words}"; sleep 1; exit 0'.replace("$!", "$$!"),
        "Restart=always",
        "RestartSec=1",
    )
    watch = Watch(host, start=start_unit(host, UNIT), ends_at=(LaunchState.CRASHED, LaunchState.FAILED))
    try:
        pid = watch.wait(lambda update: update.status.main_pid > 0).status.main_pid
        host.run(("pkill", "-KILL", "-P", str(pid)), sudo=True)
        status = watch.wait_state(LaunchState.CRASHED)
        assert "fatal error" in status.crash.text
        assert (status.crash.seen_at - status.crash.died_at).total_seconds() < 1.0
    finally:
        watch.close()
        stop_unit(host, UNIT)
        host.close()
