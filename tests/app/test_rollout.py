"""A rollout's machinery on practice hosts: each host's own run is played, everything around it is real."""

import os
import signal
import socket
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pytest

from opslib.app import rollout, rollout_dry, rollout_host, rollout_running, rollout_truth
from opslib.app.closing import close_killed
from opslib.app.rollout import resume_rollout, run_rollout, undo_rollout
from opslib.app.rollout_dry import dry_rollout
from opslib.app.rollout_planning import Care, needs_consent, plan_rollout
from opslib.app.rollout_record import record_of_rollout
from opslib.app.rollout_worker import parameters_text
from opslib.domain.record import RunRecord
from opslib.domain.rollout import HostStep, RolloutEvent
from opslib.domain.rollout_state import fold, new_state
from opslib.domain.states import Outcome, State
from opslib.errors import BadParameter, CouldNotFindOut, HostUnreachable, LockHeld, Refused, UnknownName
from opslib.records.folder import RunFolder
from opslib.records.index import list_records
from opslib.records.rollout import PARAMETERS_FILE, RolloutFolder, ask, read_rollout
from opslib.rehearsal.fleet import start_fleet
from tests.app.rollout_worlds import ALIASES, NEW, OLD, UNIT, FleetWorld, MemoryWorld


@pytest.fixture(scope="module")
def fleet():
    """Four practice hosts."""
    with start_fleet(4) as running:
        yield running


@pytest.fixture(params=["memory", pytest.param("fleet", marks=pytest.mark.slow)])
def world(request, monkeypatch, tmp_path_factory):
    """The hosts, each with an old unit that runs, and commands that know the inventory."""
    if request.param == "memory":
        made = MemoryWorld(monkeypatch, tmp_path_factory.mktemp("world"))
        monkeypatch.setattr(rollout, "complete_record", lambda _folder: None)  # a page takes half a second
    else:
        made = FleetWorld(monkeypatch, request.getfixturevalue("fleet"))
    monkeypatch.setenv("OPSLIB_HOSTS", str(made.inventory))
    for name, value in (("_ASK_EVERY_S", 0.05), ("PATIENCE_S", 0.5), ("LISTEN_EVERY_S", 0.05)):
        monkeypatch.setattr(rollout_running, name, value)
    for module in (rollout, rollout_truth):
        monkeypatch.setattr(module, "LISTEN_EVERY_S", 0.05)
    for name, value in (("PATIENCE_S", 0.5), ("_TRY_EVERY_S", 0.1)):
        monkeypatch.setattr(rollout_host, name, value)
    for alias in ALIASES:
        made.deploy(alias, OLD)
    return made


class Played:
    """A host's own run, in a thread: it deploys, or fails as it is told, and leaves a record."""

    world = None
    plays: ClassVar = {}  # alias -> what it does: "pass" (default), "fail" (nothing changed), "break" (changed), "refuse", "hang"
    begun: ClassVar = []
    most_at_once = 0
    running = 0
    lock = threading.Lock()

    def __init__(self, alias, runs_dir, log, *, is_dry=False):
        self.is_dry = is_dry
        self.alias, self.runs_dir, self.log = alias, runs_dir, log
        self.process_id, self.exit_code, self.is_stopped = os.getpid(), 0, False
        self.go = threading.Event()
        with Played.lock:
            Played.begun.append(alias)
            Played.running += 1
            Played.most_at_once = max(Played.most_at_once, Played.running)
        self.thread = threading.Thread(target=self.play)
        self.thread.start()

    def play(self):
        what = Played.plays.get(self.alias, "pass")
        self.go.wait(0.1)
        self.log.parent.mkdir(exist_ok=True)
        if what == "refuse":
            self.log.write_text("opslib: prot: unknown parameter\n")
            self.exit_code = 4
        else:
            self.deploy(what)
        with Played.lock:
            Played.running -= 1

    def deploy(self, what):
        folder = RunFolder.create(self.runs_dir, self.alias, UNIT, "30-launch", datetime.now(UTC))
        self.log.write_text(f"record  {folder.path}\n")
        record = RunRecord(runbook="30-launch", parameters={}, host=self.alias, unit=UNIT, started_at=datetime.now(UTC))
        folder.write_record(record)
        if what in ("pass", "break", "warn") and not self.is_dry:
            Played.world.deploy(self.alias, NEW)
        if what == "full":
            self.log.write_text(
                f"{self.log.read_text()}opslib: record.json could not be written: No space left on device\n"
            )
            return
        if what == "hang":
            self.go.wait(20)
            folder.write_record(record.interrupted("interrupted by SIGTERM; nothing was changed", datetime.now(UTC)))
            return
        states = {"pass": State.OK, "warn": State.WARNING}
        outcome = Outcome(state=states.get(what, State.CRITICAL), reason=f"it did {what}")
        folder.write_record(record.finished(outcome, datetime.now(UTC)))

    @property
    def is_running(self):
        return self.thread.is_alive()

    def wait(self, seconds):
        self.thread.join(min(seconds, 0.05))

    def stop(self):
        self.is_stopped = True
        self.go.set()


@pytest.fixture(autouse=True)
def played(world, monkeypatch):
    """Runs are played."""
    Played.world, Played.plays, Played.begun, Played.most_at_once, Played.running = world, {}, [], 0, 0

    def start(_runbook, host, *, parameters, runs_dir, log, options=()):
        assert parameters.is_file()
        return Played(host, runs_dir, log, is_dry="--dry-run" in options)

    for module in (rollout_host, rollout_dry):
        monkeypatch.setattr(module, "start_worker", start)
    return Played


def planned(**care):
    """A plan over all four hosts."""
    care = {"is_drain_forced": True, "wave": "2", **care}
    return plan_rollout("launch", ["practice"], {"consent": "given"}, Care(**care))


def texts():
    """Which unit lies on each host, in their order."""
    return [{OLD: "old", NEW: "new"}[Played.world.text(alias)] for alias in ALIASES]


def steps(state):
    """Where the hosts stand, in their order."""
    return [progress.step.value for progress in state.hosts]


def go(runs_dir, plan, on_change=lambda _event, _state: None):
    """Roll out."""
    return run_rollout(plan, runs_dir, on_change=on_change)


def test_a_whole_rollout_and_its_undo(tmp_path):
    """All hosts have their turn, canary first; one process for each; undo brings back the unit that ran."""
    seen = []
    end = go(tmp_path, planned(), lambda event, state: seen.append((event, state)))
    assert (end.outcome.state, end.outcome.reason) == (State.OK, "all 4 hosts passed")
    assert texts() == ["new"] * 4
    assert Played.begun[0] == "practice-1"
    assert set(Played.begun[1:3]) == {"practice-2", "practice-3"}
    assert Played.most_at_once == 2
    drained = [event.host for event, _ in seen if event.step is HostStep.DRAINING]
    assert sorted(drained) == sorted(Played.begun)
    assert read_rollout(end.folder).outcome == end.outcome
    record = RunFolder.open(end.folder).read_record()
    assert [section.name for section in record.sections] == [f"on practice-{n}" for n in (1, 2, 3, 4)]
    assert record.exit_code == 0
    assert sorted(path.name for path in end.folder.iterdir() if path.name.startswith(".")) == [], "all of it is sealed"

    seen.clear()
    end = undo_rollout(RolloutFolder.open(tmp_path, "last"), on_change=lambda event, _: seen.append(event))
    assert steps(end.state) == ["undone"] * 4
    assert texts() == ["old"] * 4
    undone = [event.host for event in seen if event.step is HostStep.UNDONE]
    assert undone[-1] == "practice-1"
    assert set(undone[:1]) == {"practice-4"}
    assert Played.world.serves("practice-3")
    with pytest.raises(Refused, match="was undone"):
        resume_rollout(RolloutFolder.open(tmp_path, "last"), on_change=lambda *_: None)


def test_a_failure_in_a_wave_stops_and_resume_goes_on(tmp_path):
    """The rest stays untouched and is named; what failed before it changed anything serves as before."""
    Played.plays = {"practice-2": "fail"}
    end = go(tmp_path, planned(wave="1"))
    assert end.outcome.state is State.CRITICAL
    assert end.outcome.reason == (
        "stopped: 1 of 4 hosts passed; practice-2 failed: it did fail; nothing was changed, the unit of before serves "
        "again; untouched: practice-3, practice-4"
    )
    assert texts() == ["new", "old", "old", "old"]
    Played.plays, Played.begun = {}, []
    end = resume_rollout(RolloutFolder.open(tmp_path, str(end.folder)), on_change=lambda *_: None)
    assert end.outcome.state is State.OK
    assert Played.begun == ["practice-2", "practice-3", "practice-4"]
    assert texts() == ["new"] * 4
    undo_rollout(RolloutFolder.open(tmp_path, "last"), on_change=lambda *_: None)
    assert texts() == ["old"] * 4


def test_allowed_failures_go_on(tmp_path):
    """With --max-failures 1 one failed host is passed over, and the outcome is a warning that names it."""
    Played.plays = {"practice-2": "break", "practice-3": "warn"}
    end = go(tmp_path, planned(wave="1", max_failures=1))
    assert steps(end.state) == ["passed", "failed", "passed", "passed"]
    assert end.outcome.state is State.WARNING
    assert "practice-2 failed: it did break; 1 failed, as many as were allowed" in end.outcome.reason


def test_a_refused_run_is_told_in_its_own_words(tmp_path):
    """A run that was refused before it had a record fails its host with what it said."""
    Played.plays = {"practice-1": "refuse"}
    end = go(tmp_path, planned())
    assert "practice-1 failed: prot: unknown parameter; nothing was changed" in end.outcome.reason


def test_a_run_that_could_not_write_its_end_is_told(tmp_path):
    """A run without an outcome is unknown, with what it said last: of a full disk no record can tell."""
    Played.plays = {"practice-1": "full"}
    end = go(tmp_path, planned())
    assert (
        "practice-1 unknown: its run came to no outcome: record.json could not be written: No sp" in end.outcome.reason
    )


def test_a_dry_run_asks_all_and_changes_nothing(tmp_path):
    """Each host's unit as it stands, and what its own run says; no rollout is recorded, nothing is drained."""
    Played.plays = {"practice-2": "fail", "practice-3": "refuse"}
    Played.world.stop("practice-4")
    with Played.world.cut_off("practice-1"):
        found = dry_rollout(planned(), tmp_path, tell=lambda _text: None)
    assert [(host.state.value, host.stands) for host in found] == [
        ("unknown", "unknown"),
        ("critical", "serves: would be drained"),
        ("critical", "serves: would be drained"),
        ("ok", "is installed and not running"),
    ]
    assert [host.text for host in found[1:]] == ["it did fail", "prot: unknown parameter", "it did pass"]
    assert texts() == ["old"] * 4
    assert not list(tmp_path.glob("*-rollout-*"))


def test_enough_units_serve_all_the_while(tmp_path, monkeypatch):
    """With --min-serving 3 of 4 a wave of three goes one by one, and at no time do fewer serve."""
    least, watching = [4], threading.Event()

    def watch():
        while not watching.wait(0.02):
            down = sum(1 for progress in latest[-1].hosts if progress.step in (HostStep.DRAINING, HostStep.RUNNING))
            least.append(4 - down)

    latest = [new_state(planned())]
    watcher = threading.Thread(target=watch)
    watcher.start()
    said = []

    def change(event, state):
        latest.append(state)
        said.append(event.text)

    end = go(tmp_path, planned(wave="3", min_serving=3, workers=3), change)
    watching.set()
    watcher.join()
    assert end.outcome.state is State.OK
    assert min(least) == 3
    assert Played.most_at_once == 1
    assert any("of 4 units 2 others serve, and --min-serving 3 must" in text for text in said)


def test_too_few_units_serve_to_take_one_down(tmp_path):
    """Where two are down already, the third is not taken down: refused with clear words, and it serves on."""
    for alias in ALIASES[2:]:
        Played.world.stop(alias)
    end = go(tmp_path, planned(min_serving=2))
    assert end.outcome.state is State.CRITICAL
    assert "of 4 units 1 others serve, and --min-serving 2 must: nothing was taken down" in end.outcome.reason
    assert Played.begun == []
    assert Played.world.serves("practice-1")


def test_a_host_that_passed_and_serves_no_longer_stops_it(tmp_path):
    """Between two waves the hosts that passed are asked again; one that went down meanwhile has failed after all."""

    def stop_canary(event, _state):
        if event.step is HostStep.PASSED and event.host == "practice-1":
            Played.world.stop("practice-1")

    end = go(tmp_path, planned(), stop_canary)
    assert "practice-1 failed: it passed, and serves no longer" in end.outcome.reason
    assert Played.begun == ["practice-1"]


def test_pause_resume_and_stop_are_heard(tmp_path):
    """Through the control file a rollout is paused, goes on, and is stopped between two hosts."""
    folder, phases = [], []

    def change(event, state):
        phases.append(state.phase)
        if event.step is HostStep.PASSED and event.host == "practice-1":
            ask(folder[0], "pause", "ana")
        if event.kind == "asked" and "pause" in event.text:
            threading.Timer(0.5, lambda: ask(folder[0], "resume", "ana")).start()
        if event.step is HostStep.RUNNING and event.host == "practice-2":
            ask(folder[0], "stop", "ana")

    end = run_rollout(planned(wave="1"), tmp_path, on_folder=folder.append, on_change=change)
    assert "paused" in phases
    assert end.outcome.state is State.UNKNOWN
    assert end.outcome.reason == (
        "stopped, it was asked to stop (stop by ana): 2 of 4 hosts passed; untouched: practice-3, practice-4"
    )
    end = resume_rollout(RolloutFolder.open(tmp_path, "last"), on_change=lambda *_: None)
    assert end.outcome.state is State.OK, "what was asked of an earlier process is passed over"


@pytest.mark.parametrize(
    ("number", "step", "reason"), [(signal.SIGINT, "passed", "2 of 4"), (signal.SIGTERM, "unknown", "1 of 4")]
)
def test_signals(tmp_path, number, step, reason):
    """SIGINT lets the hosts under way come to their end, SIGTERM ends their runs in order; nothing more is begun."""
    Played.plays = {"practice-2": "hang"} if number == signal.SIGTERM else {}

    def change(event, _state):
        if event.record and event.host == "practice-2":
            os.kill(os.getpid(), number)

    end = go(tmp_path, planned(wave="1"), change)
    assert steps(end.state) == ["passed", step, "untouched", "untouched"]
    assert end.outcome.state is State.UNKNOWN
    assert reason in end.outcome.reason
    assert Played.world.serves("practice-2"), "drained, and nothing was changed: it is started again"


def killed(tmp_path, *events):
    """A rollout whose process was killed after these events, an hour after it had begun."""
    plan = planned(wave="1")
    plan = plan.model_copy(update={"begun_at": plan.begun_at - timedelta(hours=1)})
    folder = RolloutFolder.create(tmp_path, plan)
    folder.folder.write_text(PARAMETERS_FILE, parameters_text({}))
    folder.append(RolloutEvent(at=datetime.now(UTC), kind="begun", process_id=4_000_000))
    for host, step, facts in events:
        folder.append(RolloutEvent(at=datetime.now(UTC), kind="host", host=host, step=step, **facts))
    return folder


def test_resume_asks_each_host_again(tmp_path):
    """A passed host that was changed since has its turn again, an untouched one its first; a cut run isn't assumed."""
    world = Played.world
    before = world.found("practice-1")
    for alias in ALIASES[:2]:
        world.deploy(alias, NEW)
    left = [world.found("practice-1"), world.found("practice-2")]
    world.deploy("practice-1", f"{OLD}# by hand\n")
    folder = killed(
        tmp_path,
        ("practice-1", HostStep.WAITING, {"found": before}),
        ("practice-1", HostStep.PASSED, {"left": left[0], "state": State.OK}),
        ("practice-2", HostStep.WAITING, {"found": before}),
        ("practice-2", HostStep.PASSED, {"left": left[1], "state": State.OK}),
        ("practice-3", HostStep.WAITING, {"found": world.found("practice-3")}),
        ("practice-3", HostStep.RUNNING, {"process_id": 4_000_001}),
    )
    said = []
    end = resume_rollout(folder, on_change=lambda event, _: said.append(f"{event.host} {event.text}"))
    assert end.outcome.state is State.OK
    assert Played.begun == ["practice-1", "practice-3", "practice-4"]
    assert any("practice-1 it had passed; its unit is not what its run has left" in text for text in said)
    assert any(
        "practice-3 its run was cut off before it had a record; asked again: its files are as they were found, it serves"
        in text
        for text in said
    )
    assert texts() == ["new"] * 4


def test_a_passed_host_that_cannot_be_asked_again_is_unknown(tmp_path, monkeypatch):
    """Neither silence nor a refusal on this machine's side (a key that is gone) says that its unit has failed."""
    for error in (HostUnreachable("nothing answered"), BadParameter("identity_file x does not exist")):

        def away(_rollout, _alias, error=error):
            raise error

        found = Played.world.found("practice-1")
        folder = killed(tmp_path, ("practice-1", HostStep.PASSED, {"found": found, "left": found, "state": State.OK}))
        monkeypatch.setattr(rollout_truth, "reach", away)
        told = []
        resume_rollout(folder, on_change=lambda event, _, told=told: told.append(event))
        first = next(event for event in told if event.host == "practice-1")
        assert (first.step, first.state) == (HostStep.UNKNOWN, State.UNKNOWN)
        assert error.message in first.text


def test_a_killed_rollout_reads_so(tmp_path):
    """The record of a rollout whose process is gone names what was touched, and how to go on; never "nothing"."""
    folder = RolloutFolder.create(tmp_path, planned())
    state = fold(
        folder.plan(),
        [
            RolloutEvent(
                at=datetime.now(UTC),
                kind="host",
                host="practice-1",
                step=HostStep.WAITING,
                found=Played.world.found("practice-1"),
            )
        ],
    )
    folder.write_record(record_of_rollout(state).model_copy(update={"process_id": 4_000_000}))
    closed = close_killed(folder.path)
    assert closed.status == "interrupted"
    assert closed.outcome.reason.endswith(
        "UTC while at work on practice-1: its process is gone; touched: practice-1; untouched: practice-2, practice-3, practice-4; "
        "opslib rollout --resume asks each host and goes on, --undo takes it back"
    )


def test_a_run_that_outlived_the_rollout_counts(tmp_path):
    """A run that went on by itself after the rollout was killed is waited for and judged by its record."""
    found = Played.world.found("practice-1")
    Played.world.deploy("practice-1", NEW)
    run = RunFolder.create(tmp_path, "practice-1", UNIT, "30-launch", datetime.now(UTC))
    record = RunRecord(runbook="30-launch", parameters={}, started_at=datetime.now(UTC))
    run.write_record(record.finished(Outcome(state=State.OK, reason="ready"), datetime.now(UTC)))
    folder = killed(
        tmp_path,
        ("practice-1", HostStep.WAITING, {"found": found}),
        ("practice-1", HostStep.RUNNING, {"record": run.path.name}),
    )
    listed = []

    def look(_event, _state):
        listed.append(next(entry.status for entry in list_records(tmp_path) if entry.runbook == "rollout"))

    end = resume_rollout(folder, on_change=look)
    assert end.outcome.state is State.OK
    assert Played.begun == ["practice-2", "practice-3", "practice-4"]
    assert set(listed) == {"running", "finished"}, "it began before this process, and is this one's now"


def test_a_kernel_that_outlives_its_killed_run_is_waited_for(tmp_path, monkeypatch):
    """A run that was killed is judged when its kernel is gone, too: until then it may be at work on the host."""
    monkeypatch.setattr(rollout_host, "PATIENCE_S", 10)
    monkeypatch.setattr(rollout_host, "_LOOK_EVERY_S", 0.05)
    run = RunFolder.create(tmp_path, "practice-1", UNIT, "30-launch", datetime.now(UTC))
    with subprocess.Popen(["sleep", "0.5"]) as kernel:
        here = {"controller": socket.gethostname(), "process_id": kernel.pid}
        run.write_record(RunRecord(runbook="30-launch", parameters={}, started_at=datetime.now(UTC), **here))
        step, state, text = rollout_host.judged(run.path)
    assert (step, state) == (HostStep.UNKNOWN, State.UNKNOWN)
    assert "its process is gone" in text


def test_one_process_at_a_time(tmp_path):
    """While a process runs a rollout, another can't resume or undo it; it is named."""
    folder = killed(tmp_path)
    with folder.held(), pytest.raises(LockHeld, match=f"process {os.getpid()} on .* runs this rollout"):
        resume_rollout(RolloutFolder.open(tmp_path, "last"), on_change=lambda *_: None)


def test_a_unit_that_is_locked_is_left_alone(tmp_path):
    """Somebody else at work on a host's unit is named; nothing is drained there."""
    with Played.world.locked_by_ana("practice-1"):
        end = go(tmp_path, planned())
    assert "practice-1 failed: vllm-minimax is locked: ana on desk (process 7)" in end.outcome.reason
    assert texts() == ["old"] * 4
    assert Played.begun == []


def test_a_full_disk_begins_nothing_more(tmp_path, monkeypatch):
    """What can't be written isn't done: no other host is begun, and the state on the disk can be resumed."""
    append = RolloutFolder.append

    def full(self, event):
        if event.host == "practice-2":
            raise CouldNotFindOut(f"{self.path}/state.jsonl could not be written: No space left on device")
        append(self, event)

    monkeypatch.setattr(RolloutFolder, "append", full)
    with pytest.raises(CouldNotFindOut, match="No space left on device"):
        go(tmp_path, planned(wave="1"))
    assert Played.begun == ["practice-1"]
    monkeypatch.setattr(RolloutFolder, "append", append)
    end = resume_rollout(RolloutFolder.open(tmp_path, "last"), on_change=lambda *_: None)
    assert end.outcome.state is State.OK


def test_a_host_that_is_away_is_unknown(tmp_path):
    """A host that can't be reached is unknown, never failed; nothing was done to it, and resume tries it again."""
    with Played.world.cut_off("practice-1"):
        end = go(tmp_path, planned())
    assert end.outcome.state is State.UNKNOWN
    assert steps(end.state) == ["unknown", "untouched", "untouched", "untouched"]
    end = resume_rollout(RolloutFolder.open(tmp_path, "last"), on_change=lambda *_: None)
    assert end.outcome.state is State.OK


REFUSED = [
    (("60", ["practice"], {}), BadParameter, "not about one host"),
    (("lunch", ["practice"], {}), UnknownName, "lunch"),
    (("launch", ["practice"], {"host": "practice-1"}), BadParameter, "chosen by --hosts"),
    (("launch", ["practice"], {"prot": 1}), BadParameter, "prot"),
    (("launch", ["rehearsal:healthy"], {}), UnknownName, "opslib rehearse --hosts 8 --serve"),
    (("launch", ["practice-9"], {}), UnknownName, "practice-9"),
    (("launch", [], {}), BadParameter, "give aliases or labels"),
]


@pytest.mark.parametrize(("given", "error", "words"), REFUSED)
def test_what_is_wrong_is_refused_first(given, error, words):
    """Wrong names and parameters are refused before anything is contacted or written."""
    with pytest.raises(error, match=words):
        plan_rollout(*given)


def test_consent_is_asked_for_real_hosts(tmp_path, monkeypatch):
    """Practice hosts need no consent; a host that is none does, until it is given."""
    assert not needs_consent(plan_rollout("launch", ["practice"], {}))
    (tmp_path / "hosts.toml").write_text('[hosts.gpu-a]\naddress = "10.0.0.1"\n')
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    assert needs_consent(plan_rollout("launch", ["gpu-a"], {}))
    assert plan_rollout("launch", ["gpu-a"], {}).pause_s == 300
    assert not needs_consent(plan_rollout("launch", ["gpu-a"], {"consent": "given"}))
    assert not needs_consent(plan_rollout("verify-download", ["gpu-a"], {}))


def test_an_inventory_that_names_no_host_says_so(tmp_path, monkeypatch):
    """Who asked for all hosts, or for one, is told that there is none, and where."""
    (tmp_path / "hosts.toml").write_text("")
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    with pytest.raises(UnknownName, match=r"hosts\.toml names no host"):
        plan_rollout("launch", ["all"], {})
