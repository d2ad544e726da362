"""A unit is watched while things go wrong, on the practice host and on a real one alike."""

import threading
import time
from contextlib import contextmanager, suppress

import pytest

from opslib.domain.facts.journal import journal_command, parse_journal
from opslib.domain.launch_events import HostHello, JournalSeen, event_document
from opslib.domain.launch_record import replay_watch
from opslib.domain.launch_status import FINAL, LaunchState
from opslib.errors import OpslibError
from opslib.hosts import open_host
from opslib.records.watch_file import WatchFile, read_watch_file
from opslib.workflow.launch import find_journal_gap, journal_cursor, show_unit, start_unit, stop_unit, watch_launch
from tests.rig.disk import small_disk

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

    def __init__(self, host, *, on_update=lambda _: None, **options):
        self._on_update = on_update
        self.updates, self.heads, self.error = [], [], None
        self.sessions = {}  # of what it runs on the host: session id -> boot id
        self._host = host
        self._news = threading.Condition()
        self._is_ended = False
        options = {"port": 8765, "timeout_s": 60, "has_gpus": False, "health_path": "/", **options}
        self._iterator = watch_launch(host, UNIT, on_begin=self.heads.append, **options)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            for update in self._iterator:
                if isinstance(update.event, HostHello):
                    self._note_session(update.event)
                self._on_update(update)
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

    def _note_session(self, hello):
        """All that the program starts is of its session, whoever its parent is by then."""
        found = self._host.run(("ps", "-o", "sess=", "-p", str(hello.pid))).text.split()
        self.sessions.update(dict.fromkeys(found, hello.boot_id))

    def left(self, seconds=8.0):
        """What of it still runs on the host, after some seconds."""
        deadline = time.monotonic() + seconds
        last = list(self.sessions.values())[-1:]
        ids = [one for one, boot_id in self.sessions.items() if [boot_id] == last]  # ids of an earlier boot say nothing
        assert ids
        asked = ("ps", "-o", "pid=,stat=,args=", "-s", ",".join(ids))
        while (left := [line for line in self._host.run(asked).text.splitlines() if " Z" not in line]) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.2)
        return left

    @property
    def status(self):
        return self.updates[-1].status if self.updates else None

    def wait(self, holds, seconds=20.0):
        """The first update that holds, also among those that came already."""
        deadline, n_seen = time.monotonic() + seconds, 0
        with self._news:
            while True:
                for update in self.updates[n_seen:]:
                    if holds(update):
                        return update
                n_seen = len(self.updates)
                left_s = deadline - time.monotonic()
                assert left_s > 0 and self._thread.is_alive(), (self.error, self.status)
                self._news.wait(min(left_s, 0.5))

    def wait_state(self, state, seconds=20.0):
        return self.wait(lambda update: update.status.state is state, seconds).status

    def messages(self):
        return [update.event.entry.message for update in self.updates if isinstance(update.event, JournalSeen)]

    def wait_lines(self, n, seconds=20.0):
        """Wait until so many numbered lines were heard."""
        self.wait(lambda update: update is self.updates[-1] and len(numbers_of(self)) > n, seconds)

    def replayed(self):
        """What the events give when they are written down, and played again."""
        lines = [self.heads[0].model_dump(mode="json") | {"event": "begin"}]
        lines += [event_document(update.event) for update in self.updates]
        return [update.status for _, update in replay_watch(lines)]

    def close(self):
        self._is_ended = True
        self._thread.join(15)


@pytest.fixture(params=KINDS)
def machine(request):
    """Each kind of host as a machine: with its plug, and its power switch."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def host(machine):
    """It, opened; the unit is stopped and gone at the end."""
    opened = open_host(machine.settings)
    yield opened
    with suppress(OpslibError):  # it may be gone
        stop_unit(opened, UNIT)
    opened.run(("rm", "--force", "--", f"{opened.settings.unit_dir}/{UNIT}.service"), sudo=True)
    opened.run(("systemctl", "daemon-reload"), sudo=True)
    opened.close()


@pytest.fixture
def watching(host):
    """Begins a watch of a start; whatever goes wrong meanwhile, at the end nothing of it is left on the host."""
    watches = []

    def begin(**options):
        start = {} if "start" in options else {"start": start_unit(host, UNIT)}
        watch = Watch(host, **{**start, "ends_at": ON_AND_ON, **options})
        watches.append(watch)
        return watch

    yield begin
    for watch in watches:
        watch.close()
        assert watch.left() == []


def numbers_of(watch):
    """The numbers of the lines that were heard, in order."""
    return [int(message.split()[1]) for message in watch.messages() if message.startswith("line ")]


COUNTS = "n=0; while true; do echo line $$n; n=$$((n+1)); sleep 0.1; done"


def test_a_start_that_runs_already_is_heard_from_its_first_line(host, watching):
    """Who begins to watch later has all that the present start has said."""
    put(host, COUNTS)
    start_unit(host, UNIT)
    time.sleep(0.5)
    watch = watching(start=None)
    watch.wait_lines(8)
    assert numbers_of(watch)[:3] == [0, 1, 2]


def test_two_crashes_within_a_second_are_two(host, watching):
    """A start that dies at once and is started again at once: each death is a crash, nothing of its last words is lost.

    It lives a tenth of a second: journald can't tell whose the words of a process are that is gone when it reads them,
    so what counts is what the host itself kept.
    """
    put(host, "echo last words of $$$$; sleep 0.1; exit 3", "Restart=always", "RestartSec=100ms")
    watch = watching()
    watch.wait(
        lambda update: (
            len(update.status.crashes) >= 4 and all("status=" in c.exit_status for c in update.status.crashes[:3])
        )
    )
    watch.close()
    crashes = watch.status.crashes
    assert len({crash.invocation_id for crash in crashes}) == len(crashes)
    over = {crash.invocation_id for crash in crashes[:-1]}  # the watch may have ended within the last one
    kept = parse_journal(host.run(journal_command(UNIT), sudo=True).text)
    words = {entry.message for entry in kept if entry.invocation_id in over and "last words of" in entry.message}
    assert words
    assert words <= set(watch.messages())
    assert {crash.exit_status for crash in crashes[:3]} == {"exited, status=3/NOTIMPLEMENTED"}
    assert watch.status.budget_words in {"no start limit", ""}
    assert watch.replayed()[-1] == watch.status


def test_the_main_process_is_killed(host, watching):
    """Killed while it serves: its end is seen before anything is asked, then the crash with its signal, then the restart."""
    put(host, SERVES.format(port=8765), "Restart=always", "RestartSec=1")
    watch = watching()
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


def test_the_watching_program_is_killed(host, watching):
    """Killed on the host: the link counts as lost, nothing as failed; the next reads on, and nothing is lost or doubled."""
    put(host, COUNTS.replace("0.1", "0.05"))
    watch = watching()
    watch.wait_lines(5)
    own = next(update.event.pid for update in watch.updates if isinstance(update.event, HostHello))
    host.run(("kill", "-KILL", str(own)), sudo=True)
    lost = watch.wait_state(LaunchState.UNREACHABLE)
    assert "ended" in lost.reason
    watch.wait_lines(len(numbers_of(watch)) + 40)
    watch.close()
    assert numbers_of(watch) == list(range(len(numbers_of(watch))))
    assert watch.status.n_links_lost == 1
    assert not watch.status.crashes


def test_a_unit_is_deleted_while_it_is_watched(host, watching):
    """The file goes, the process runs on: said, and not failed; once it is stopped systemd knows no such unit."""
    put(host, "exec sleep 600")
    watch = watching()
    watch.wait(lambda update: update.status.active_state == "active")
    path = f"{host.settings.unit_dir}/{UNIT}.service"
    host.run(("rm", "--force", "--", path), sudo=True)
    host.run(("systemctl", "daemon-reload"), sudo=True)
    watch.wait(lambda update: any("file is gone" in note for note in update.status.notes))
    assert watch.status.state is LaunchState.STARTING
    stop_unit(host, UNIT)
    assert watch.wait_state(LaunchState.FAILED).reason.startswith("systemd knows no unit")
    watch.close()


def test_a_stop_by_somebody_else_is_no_crash(host, watching):
    """Stopped on request, the unit is inactive, and nothing crashed."""
    put(host, "exec sleep 600", "Restart=always")
    watch = watching()
    watch.wait(lambda update: update.status.active_state == "active")
    stop_unit(host, UNIT)
    status = watch.wait_state(LaunchState.FAILED)
    assert "inactive" in status.reason
    assert not status.crashes
    watch.close()


def test_a_cursor_that_is_there_is_no_gap(host, watching):
    """The entry that was read last is still in the journal; one of another journal is not."""
    put(host, "echo there; exec sleep 600")
    watch = watching()
    watch.wait(lambda update: "there" in watch.messages())
    watch.close()
    assert find_journal_gap(host, UNIT, watch.status.cursor, at=watch.status.at) is None
    assert show_unit(host, UNIT).active_state == "active"
    assert journal_cursor(host, UNIT)


@contextmanager
def network_cut(machine):
    """No way to the host while the block lasts; a practice host lets nobody in for at least as long."""
    if not hasattr(machine, "network_cut"):
        machine.drill("cut-link", "4")
        yield
    else:
        with machine.network_cut():
            yield


def cut(machine, host, watch, seconds):
    """The link is cut for so long: unknown meanwhile, then nothing is lost or doubled, and nothing failed."""
    watch.wait_lines(5)
    with network_cut(machine):
        time.sleep(seconds)
    n_before = len(numbers_of(watch))
    watch.wait_lines(n_before + 10 * min(seconds, 20), 40)
    watch.wait(lambda update: update is watch.updates[-1] and update.status.state is LaunchState.STARTING)
    watch.close()
    assert numbers_of(watch) == list(range(len(numbers_of(watch))))
    assert not watch.status.crashes
    assert {update.status.state for update in watch.updates} <= {LaunchState.STARTING, LaunchState.UNREACHABLE}


def test_the_link_is_cut_for_five_seconds(machine, host, watching):
    """Five seconds without a byte: the picture comes back whole."""
    put(host, COUNTS)
    cut(machine, host, watching(), 5)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.realhost
def test_the_link_is_cut_for_five_minutes(debian):
    """Five minutes: said to be unreachable, never failed, and the picture comes back whole."""
    host = open_host(debian.settings)
    put(host, COUNTS)
    watch = Watch(host, start=start_unit(host, UNIT), ends_at=ON_AND_ON, timeout_s=420)
    try:
        cut(debian, host, watch, 300)
        assert watch.status.n_links_lost >= 1
        assert watch.status.unheard_s > 250
        assert watch.left() == []
        stop_unit(host, UNIT)
    finally:
        watch.close()
        host.close()


def reboot(machine):
    """The power goes, and comes back."""
    if hasattr(machine, "drill"):
        machine.drill("reboot", "1")
    else:
        machine.restart(is_orderly=False)


def test_the_host_is_booted_anew(machine, host, watching):
    """The power goes: unreachable, then a crash by the boot id, and the unit's new start is followed."""
    put(host, COUNTS, "", "[Install]", "WantedBy=multi-user.target")
    assert host.run(("systemctl", "enable", "--", f"{UNIT}.service"), sudo=True).is_success
    watch = watching(timeout_s=120)
    watch.wait_lines(5)
    first = watch.status.invocation_id
    reboot(machine)
    watch.wait(lambda update: any(crash.noticed_by == "boot" for crash in update.status.crashes), 60)
    watch.wait(lambda update: update.status.invocation_id not in {"", first}, 30)
    n_lines = len(watch.messages())
    watch.wait(lambda _: len(watch.messages()) > n_lines + 5)
    watch.close()
    assert host.run(("systemctl", "disable", "--", f"{UNIT}.service"), sudo=True).is_success
    assert [(crash.invocation_id, crash.noticed_by) for crash in watch.status.crashes] == [(first, "boot")]
    assert "booted anew" in watch.status.crashes[0].text
    assert LaunchState.UNREACHABLE in {update.status.state for update in watch.updates}
    assert watch.replayed()[-1] == watch.status


def test_a_journal_that_drops_says_so(host, watching):
    """Journald's rate limit: the picture says that it is incomplete, and by how many entries."""
    burst = "for n in $$(seq 100); do echo burst $$n; done; sleep 1.5; echo after; exec sleep 600"
    put(host, burst, "LogRateLimitIntervalSec=1s", "LogRateLimitBurst=5")
    watch = watching()
    status = watch.wait(lambda update: update.status.n_dropped > 0).status
    assert any("journal is incomplete" in note for note in status.notes)
    heard = sum("burst" in message for message in watch.messages())
    assert heard + status.n_dropped == 100
    assert not status.crashes


def forget_journal(machine):
    """All entries so far are rotated away."""
    if hasattr(machine, "drill"):
        machine.drill("forget-journal")
    else:
        machine.ssh("journalctl", "--rotate")
        machine.ssh("journalctl", "--vacuum-size=1")


def test_a_journal_that_was_rotated_away_says_so(machine, host, watching, monkeypatch):
    """Entries go while nobody reads: the picture says that some are missing; what the host still has is read."""
    is_gone = threading.Event()
    monkeypatch.setattr("opslib.workflow.launch.pause", lambda _: is_gone.wait(20))
    put(host, COUNTS)
    watch = watching()
    watch.wait_lines(5)
    own = next(update.event.pid for update in watch.updates if isinstance(update.event, HostHello))
    host.run(("kill", "-KILL", str(own)), sudo=True)
    watch.wait_state(LaunchState.UNREACHABLE)
    n_read = len(numbers_of(watch))
    time.sleep(0.5)
    forget_journal(machine)
    is_gone.set()
    watch.wait_lines(n_read + 10)
    watch.close()
    assert any("rotated away" in note for note in watch.status.notes)
    numbers = numbers_of(watch)
    assert numbers[:n_read] == list(range(n_read))
    assert numbers[n_read] > n_read
    assert numbers[n_read:] == list(range(numbers[n_read], numbers[-1] + 1))
    assert not watch.status.crashes


def test_the_clock_is_set(rehearsal):
    """An hour forward, then two back, while it loads: said, nothing crashed or stalled, and no duration jumps."""
    host = open_host(rehearsal.settings)
    put(host, COUNTS)
    watch = Watch(host, start=start_unit(host, UNIT), ends_at=ON_AND_ON, stall_s=30)
    try:
        watch.wait_lines(5)
        for by_s in (3600, -7200):
            rehearsal.drill("set-clock", str(by_s))
            watch.wait(lambda update, by_s=by_s: any(f"set by {by_s:+d} s" in note for note in update.status.notes))
            watch.wait_lines(len(numbers_of(watch)) + 5)
        watch.close()
        assert {update.status.state for update in watch.updates} == {LaunchState.STARTING}
        assert watch.status.elapsed_s < 3600 / 2
        assert numbers_of(watch) == list(range(len(numbers_of(watch))))
        assert watch.replayed()[-1] == watch.status
        assert watch.left() == []
    finally:
        rehearsal.drill("set-clock", "3600")
        watch.close()
        stop_unit(host, UNIT)
        host.run(("rm", "--force", "--", f"{host.settings.unit_dir}/{UNIT}.service"), sudo=True)
        host.close()


def test_a_full_disk_here_ends_no_watch(host, watching, tmp_path):
    """While the controller's disk is full the watch goes on and says so; once there is room nothing is missing."""
    put(host, COUNTS.replace("0.1", "0.02"))
    with small_disk(tmp_path, 256) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * 240_000)
        file = WatchFile(disk / "watch-launch.jsonl")
        watch = watching(on_update=lambda update: file.append(event_document(update.event)))
        watch.wait(lambda _: "No space left" in file.problem)
        assert "the watch itself goes on" in file.problem
        watch.wait_lines(len(numbers_of(watch)) + 20)
        ballast.unlink()
        watch.close()
        file.flush()
        assert file.problem == ""
        kept = [document for document in read_watch_file(file.path) if document["event"] == "journal"]
    assert [document["entry"]["message"] for document in kept] == watch.messages()
    assert not watch.status.crashes


def test_a_worker_is_killed(host, watching):
    """A process that isn't the main one is killed: the engine's own words tell of it, before systemd does."""
    words = "(EngineCore pid=1) ERROR 11-29 12:00:00 [core.py:1] EngineCore encountered a fatal error."
    put(
        host,
        f'(sleep 300; true) & wait $$!; echo "{words}"; sleep 1; exit 0',
        "Restart=always",
        "RestartSec=1",
    )
    watch = watching(ends_at=(LaunchState.CRASHED, LaunchState.FAILED))
    pid = watch.wait(lambda update: update.status.main_pid > 0).status.main_pid
    time.sleep(0.3)  # it must have its worker
    host.run(("pkill", "-KILL", "-P", str(pid)), sudo=True)
    status = watch.wait_state(LaunchState.CRASHED)
    assert "fatal error" in status.crash.text
