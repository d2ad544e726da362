"""The launch tracker: what counts as ready, as a crash, as unknown."""

from datetime import UTC, datetime, timedelta

import pytest

from opslib.domain.facts.journal import JournalEntry
from opslib.domain.facts.restart_budget import RestartBudget
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.launch import (
    DeadlineReached,
    HealthSeen,
    JournalSeen,
    LaunchState,
    LaunchTracker,
    LinkLost,
    TickSeen,
    UnitSeen,
)
from opslib.domain.launch_events import Aborted, AnswerSeen, ExitSeen, HostHello, JournalGap
from opslib.domain.launch_status import FINAL
from opslib.domain.states import State

T0 = datetime(2026, 11, 29, 12, tzinfo=UTC)
OLD, NEW, NEXT = "a" * 32, "b" * 32, "c" * 32


def at(seconds):
    return T0 + timedelta(seconds=seconds)


def unit(invocation_id=NEW, active_state="active", sub_state="running", **more):
    return UnitStatus(
        unit="vllm.service",
        load_state=more.pop("load_state", "loaded"),
        active_state=active_state,
        sub_state=sub_state,
        invocation_id=invocation_id,
        main_pid=7,
        **more,
    )


def line(seconds, message, invocation_id=NEW, identifier="vllm"):
    entry = JournalEntry(
        message=message,
        invocation_id=invocation_id,
        identifier=identifier,
        realtime_at=at(seconds),
        cursor=f"s={seconds}",
    )
    return JournalSeen(at=at(seconds), entry=entry)


@pytest.fixture
def tracker():
    return LaunchTracker(T0, before=unit(OLD, "inactive", "dead"))


def answer(seconds, **more):
    return AnswerSeen(at=at(seconds), **{"pid": 7, "kind": "token", "model": "tiny", "latency_ms": 80.0, **more})


def feed(tracker, *events):
    changes = [change for event in events for change in tracker.feed(event)]
    return tracker.status, changes


def test_active_running_is_not_ready(tracker):
    """A unit that reads active (running) while its engine loads is starting."""
    status, _ = feed(tracker, UnitSeen(at=at(1), status=unit()), HealthSeen(at=at(1), status_code=None))
    assert status.state is LaunchState.STARTING


def test_ready_needs_health_the_running_unit_and_an_answer(tracker):
    """Closed, then 200, with the unit running, and one token by its main process: ready."""
    status, _ = feed(
        tracker,
        UnitSeen(at=at(1), status=unit()),
        HealthSeen(at=at(1), status_code=None),
        HealthSeen(at=at(74), status_code=200),
        answer(74, kind="", problem="/v1/models lists no model"),
        answer(74, pid=6),
    )
    assert status.state is LaunchState.STARTING
    status, changes = feed(tracker, answer(75))
    assert status.state is LaunchState.READY
    assert [(change.what, change.text) for change in changes if change.what in {"answer", "phase"}] == [
        ("answer", "tiny: a token in 80 ms"),
        ("phase", "first answer given"),
    ]
    assert "75 s" in status.reason


@pytest.mark.parametrize("is_ours", [False, None])
def test_another_server_on_the_port_is_not_ours(tracker, is_ours):
    """A 200 that was there from the start is somebody else's; where that can't be told, until our log says that it serves."""
    status, _ = feed(
        tracker,
        UnitSeen(at=at(1), status=unit()),
        HealthSeen(at=at(1), status_code=200),
        answer(1, is_ours=is_ours),
    )
    assert status.state is LaunchState.STARTING
    status, _ = feed(tracker, line(60, "(APIServer pid=7) INFO:     Application startup complete."))
    assert status.state is (LaunchState.STARTING if is_ours is False else LaunchState.READY)


def test_a_unit_that_served_before_the_first_look(tracker):
    """A watch that came late doesn't know when it became ready, only how long the unit has been up."""
    seen = (UnitSeen(at=at(300), status=unit()), HealthSeen(at=at(300), status_code=200), answer(300, is_ours=True))
    status, _ = feed(tracker, *seen)
    assert status.state is LaunchState.READY
    assert status.reason == "/health answers 200, up for 5 min"


def test_a_unit_without_a_known_engine_is_ready_by_its_health(tracker):
    """Where no engine is recognised no token can be asked for; the port that was closed first decides."""
    status, _ = feed(
        tracker,
        UnitSeen(at=at(1), status=unit()),
        HealthSeen(at=at(1), status_code=None),
        HealthSeen(at=at(5), status_code=200),
        answer(5, kind="none"),
    )
    assert status.state is LaunchState.READY
    assert status.phase.id == "serving"


@pytest.mark.parametrize(
    ("event", "noticed_by"),
    [
        (
            line(9, "(Worker_TP0 pid=9) ERROR 11-29 12:00:09 [multiproc_executor.py:1] WorkerProc hit an exception."),
            "journal",
        ),
        (line(9, "ERROR 11-29 12:00:09 [core.py:946] EngineCore failed to start."), "journal"),
        (
            line(9, "vllm.service: Main process exited, code=exited, status=1/FAILURE", identifier="systemd"),
            "journal",
        ),
        (line(9, "vllm.service: Scheduled restart job, restart counter is at 1.", identifier="systemd"), "journal"),
        (UnitSeen(at=at(9), status=unit(n_restarts=1)), "n_restarts"),
        (UnitSeen(at=at(9), status=unit(NEXT)), "invocation_id"),
        (UnitSeen(at=at(9), status=unit(active_state="activating", sub_state="auto-restart")), "sub_state"),
    ],
)
def test_a_crash_is_noticed_by_whatever_shows_it_first(tracker, event, noticed_by):
    """Worker's last words, systemd's lines, NRestarts, InvocationID or auto-restart: each alone ends the watch."""
    status, _ = feed(tracker, UnitSeen(at=at(1), status=unit()), event)
    assert status.state is LaunchState.CRASHED
    assert status.crash is not None
    assert (status.crash.invocation_id, status.crash.noticed_by) == (NEW, noticed_by)
    assert feed(tracker, HealthSeen(at=at(10), status_code=200))[0].state is LaunchState.CRASHED


def test_crash_carries_exit_status_and_time_of_death(tracker):
    """The journal says when and how it died; the watch says when that was seen."""
    status, _ = feed(
        tracker,
        line(1, "Started vllm.service.", identifier="systemd"),
        line(9, "vllm.service: Main process exited, code=killed, status=9/KILL", identifier="systemd"),
    )
    assert status.crash is not None
    assert status.crash.exit_status == "killed, status=9/KILL"
    assert status.crash.died_at == at(9)


def test_a_failed_unit_is_failed(tracker):
    """Without a restart the unit ends in failed."""
    failed = unit(active_state="failed", sub_state="failed", result="exit-code", exec_main_code=1, exec_main_status=1)
    status, _ = feed(tracker, UnitSeen(at=at(1), status=unit()), UnitSeen(at=at(5), status=failed))
    assert status.state is LaunchState.FAILED
    assert "exited with status 1" in status.reason


def test_start_limit_is_failed(tracker):
    """Systemd's refusal carries the invocation of before, and counts nevertheless."""
    status, _ = feed(tracker, line(1, "vllm.service: Start request repeated too quickly.", OLD, "systemd"))
    assert status.state is LaunchState.FAILED


def test_lines_of_the_invocation_before_do_not_count(tracker):
    """The end of the old process during a restart is no crash of the new one."""
    status, _ = feed(
        tracker,
        line(1, "vllm.service: Main process exited, code=killed, status=9/KILL", OLD, "systemd"),
        UnitSeen(at=at(1), status=unit(OLD, "deactivating", "stop-sigterm")),
        UnitSeen(at=at(2), status=unit()),
    )
    assert status.state is LaunchState.STARTING
    assert status.invocation_id == NEW


def test_a_stop_on_request_is_no_crash(tracker):
    """After "Stopping" the engine's errors are noise; the unit ends as failed to launch, without a crash."""
    status, _ = feed(
        tracker,
        UnitSeen(at=at(1), status=unit()),
        line(2, "Stopping vllm.service...", identifier="systemd"),
        line(3, "ERROR 11-29 12:00:09 [core.py:946] EngineCore encountered a fatal error."),
        UnitSeen(at=at(4), status=unit(active_state="inactive", sub_state="dead")),
    )
    assert status.state is LaunchState.FAILED
    assert status.crash is None


def test_a_lost_link_is_unknown_and_comes_back(tracker):
    """Unreachable is not failed; the next event is believed again."""
    status, _ = feed(tracker, UnitSeen(at=at(1), status=unit()), LinkLost(at=at(5)))
    assert status.state is LaunchState.UNREACHABLE
    assert feed(tracker, TickSeen(at=at(9)))[0].state is LaunchState.STARTING


@pytest.mark.parametrize(
    ("events", "judgement"),
    [
        ([], State.UNKNOWN),
        ([UnitSeen(at=at(1), status=unit())], State.CRITICAL),
        ([UnitSeen(at=at(1), status=unit()), LinkLost(at=at(5))], State.UNKNOWN),
        ([UnitSeen(at=at(1), status=unit()), LinkLost(at=at(5)), TickSeen(at=at(6))], State.CRITICAL),
    ],
    ids=["never heard", "not ready", "link lost", "heard again"],
)
def test_a_time_that_is_up_in_silence_is_unknown(tracker, events, judgement):
    """Not ready in time is critical only where the host could be heard then; unreachable is not failed."""
    status, _ = feed(tracker, *events, DeadlineReached(at=at(100)))
    assert (status.state, status.judgement) == (LaunchState.TIMED_OUT, judgement)


@pytest.mark.parametrize("invocation_id", ["", OLD])
def test_a_start_that_never_began_is_failed(tracker, invocation_id):
    """A start that was asked for and taken away (by a reboot) is not waited for until the deadline."""
    status, _ = feed(tracker, UnitSeen(at=at(1), status=unit(invocation_id, "inactive", "dead")), TickSeen(at=at(59)))
    assert status.state is LaunchState.STARTING
    status, _ = feed(tracker, TickSeen(at=at(61)))
    assert status.state is LaunchState.FAILED
    assert "did not begin it" in status.reason


def test_a_unit_that_nobody_started_is_waited_for():
    """Where the watch did not ask for a start, an inactive unit may be watched for as long as one likes."""
    watch = LaunchTracker(T0)
    status, _ = feed(watch, UnitSeen(at=at(1), status=unit("", "inactive", "dead")), TickSeen(at=at(600)))
    assert status.state is LaunchState.STARTING


def test_silence_is_stalled_not_failed(tracker):
    """A silent compilation is said, and ends with the next line."""
    feed(tracker, line(1, "INFO 11-29 12:00:01 [core.py:1] torch.compile takes 20.0 s in total"))
    status, _ = feed(tracker, TickSeen(at=at(1000)))
    assert status.state is LaunchState.STALLED
    assert feed(tracker, line(1001, "INFO 11-29 12:00:01 [core.py:1] x"))[0].state is LaunchState.STARTING


def test_timeout_says_what_was_last_seen(tracker):
    """Phase, unit state, health and last line are in the reason."""
    status, _ = feed(
        tracker,
        UnitSeen(at=at(1), status=unit()),
        line(2, "Loading safetensors checkpoint shards:  40% Completed | 50/125 [00:30<00:45,  1.6it/s]"),
        DeadlineReached(at=at(30)),
    )
    assert status.state is LaunchState.TIMED_OUT
    assert status.percent == 40
    for words in ("loading weights", "active (running)", "closed", "50/125"):
        assert words in status.reason


def test_an_unknown_unit_is_failed(tracker):
    """Systemctl show exits 0 for it; LoadState tells."""
    status, _ = feed(tracker, UnitSeen(at=at(1), status=unit("", "inactive", "dead", load_state="not-found")))
    assert status.state is LaunchState.FAILED


GUARD = "gpu-guard: waiting for 90.2 GiB (up to 300 s); free GPU 2: 37.5 of 95.0 GiB; held by GPU 2: pid 41 (vllm) 57.50 GiB"


def test_waiting_for_gpu_memory_is_said_with_its_holder(tracker):
    """Asked while ExecStartPre waits, the answer is "activating" and for whom; it is no stall, and then it goes on."""
    status, changes = feed(tracker, UnitSeen(at=at(1), status=unit(NEW, "activating", "start-pre")), line(2, GUARD))
    assert status.waiting_words == "activating, waiting for GPU memory held by vllm (pid 41, 57.5 GiB of GPU 2)"
    assert "guard" in [change.what for change in changes]
    status, _ = feed(tracker, TickSeen(at=at(2000)))
    assert status.state is LaunchState.STARTING
    status, _ = feed(tracker, line(2001, "gpu-guard: GPUs 2 have 90.2 GiB free each (waited 1999 s)"))
    assert status.waiting_words == ""
    assert status.phase.id == "importing"


def test_a_guard_that_gives_up_leaves_the_launch_waiting(tracker):
    """Nothing was imported: it ends in the phase in which it waited."""
    status, _ = feed(tracker, line(2, GUARD), line(302, "gpu-guard: gave up after 300 s: 90.2 GiB needed"))
    assert (status.waiting_words, status.phase.id) == ("", "waiting_gpu")


def test_a_notice_that_others_are_waited_for_is_no_news(tracker):
    """A hung launch that repeats its waiting notice is stalled, and the last news is what came before."""
    notice = "(EngineCore_DP0 pid=9) INFO 11-29 12:00:01 [shm_broadcast.py:542] No available shared memory broadcast block found in 60 seconds."
    news = "(Worker_TP0 pid=9) INFO 11-29 12:00:01 [pynccl.py:111] vLLM is using nccl==2.27.5"
    feed(
        tracker,
        UnitSeen(at=at(1), status=unit()),
        line(2, news),
        *(line(second, notice) for second in range(60, 960, 60)),
    )
    status, _ = feed(tracker, TickSeen(at=at(961)))
    assert status.state is LaunchState.STALLED
    status, _ = feed(tracker, DeadlineReached(at=at(970)))
    assert status.state is LaunchState.TIMED_OUT
    assert status.reason == "no news for 968 s, its process (pid 7) is alive; the last was 'vLLM is using nccl==2.27.5'"


def test_lost_links_are_counted_and_timed(tracker):
    """How often and for how long the host could not be heard is known at the end."""
    status, _ = feed(tracker, TickSeen(at=at(1)), LinkLost(at=at(2)), LinkLost(at=at(5)), TickSeen(at=at(6)))
    assert (status.n_links_lost, status.unheard_s, status.state) == (1, 5.0, LaunchState.STARTING)


def follower(**more):
    """A tracker that follows the starts that systemd makes."""
    return LaunchTracker(T0, before=unit(OLD, "inactive", "dead"), ends_at={LaunchState.FAILED}, **more)


def test_two_restarts_between_two_looks_are_two_crashes():
    """The journal tells of each; what systemd then says adds none."""
    tracker = follower(budget=RestartBudget(burst=5, interval_s=600))
    status, _ = feed(
        tracker,
        line(1, "Started vllm.service.", identifier="systemd"),
        UnitSeen(at=at(1), status=unit()),
        line(2, "vllm.service: Main process exited, code=killed, status=9/KILL", identifier="systemd"),
        line(2, "Started vllm.service.", NEXT, "systemd"),
        line(3, "vllm.service: Main process exited, code=exited, status=1/FAILURE", NEXT, "systemd"),
        line(3, "Started vllm.service.", "d" * 32, "systemd"),
        UnitSeen(at=at(4), status=unit("d" * 32, n_restarts=2)),
    )
    assert [crash.exit_status for crash in status.crashes] == ["killed, status=9/KILL", "exited, status=1/FAILURE"]
    assert [crash.invocation_id for crash in status.crashes] == [NEW, NEXT]
    assert (status.state, status.n_restarts, status.invocation_id) == (LaunchState.STARTING, 2, "d" * 32)
    assert status.budget_words == "3 of 5 starts within 600 s used"


def test_the_end_of_the_main_process_is_told_at_once(tracker):
    """Before anybody knows why; the verdict comes with systemd's answer."""
    status, changes = feed(tracker, UnitSeen(at=at(1), status=unit()), ExitSeen(at=at(5), pid=7))
    assert status.state is LaunchState.STARTING
    assert changes[-1].text == "the main process (pid 7) has ended"
    down = unit(active_state="deactivating", sub_state="final-sigterm", result="signal")
    assert feed(tracker, UnitSeen(at=at(5), status=down))[0].state is LaunchState.CRASHED


def test_a_clock_that_is_set_changes_no_duration(tracker):
    """An hour forward, then two back: said, and the times go on as if it had not been."""
    feed(
        tracker,
        HostHello(at=at(0), boot_id="x", monotonic_s=100.0),
        line(1, "(APIServer pid=7) INFO 11-29 12:00:01 [a.py:1] vLLM API server version 0.32.0"),
        TickSeen(at=at(2), monotonic_s=102.0),
        TickSeen(at=at(3604), monotonic_s=104.0),
        line(3606, "Loading safetensors checkpoint shards:  10% Completed | 1/10 [00:05<00:45,  2.5it/s]"),
    )
    assert tracker.status.elapsed_s == 6
    status, _ = feed(
        tracker,
        TickSeen(at=at(-3592), monotonic_s=108.0),
        line(-3590, "(APIServer pid=7) INFO:     Application startup complete."),
    )
    assert [round(span.duration_s(status.at)) for span in status.phases] == [5, 4, 0]
    assert status.state is LaunchState.STARTING
    assert [note.split(";")[0] for note in status.notes] == [
        "the host's clock was set by +3600 s",
        "the host's clock was set by -7200 s",
    ]


def test_another_boot_is_a_crash(tracker):
    """The boot id tells, whatever was not seen meanwhile."""
    status, _ = feed(
        tracker,
        HostHello(at=at(0), boot_id="x", monotonic_s=100.0),
        UnitSeen(at=at(1), status=unit()),
        LinkLost(at=at(5)),
        HostHello(at=at(60), boot_id="y", monotonic_s=3.0),
    )
    assert (status.state, status.crash.noticed_by, status.notes) == (LaunchState.CRASHED, "boot", ())


def test_slow_but_moving_is_not_stalled(tracker):
    """A silent start whose processes compute or read is slow; without movement it is stalled, and says so."""
    feed(tracker, UnitSeen(at=at(1), status=unit()), line(1, "INFO 11-29 12:00:01 [x.py:1] compiling"))
    for second in range(2, 1202, 2):
        tracker.feed(TickSeen(at=at(second), cpu_s=second * 1.9, read_bytes=0))
    assert tracker.status.state is LaunchState.STARTING
    assert "it moves (CPU 1.9 cores" in tracker.status.slow_words
    for second in range(1202, 2202, 2):
        tracker.feed(TickSeen(at=at(second), cpu_s=1200 * 1.9, read_bytes=0))
    assert tracker.status.state is LaunchState.STALLED
    assert tracker.status.slow_words == ""
    tracker.feed(TickSeen(at=at(2204), cpu_s=1200 * 1.9, read_bytes=9 << 30))
    assert tracker.status.state is LaunchState.STARTING


def test_dropped_entries_are_said(tracker):
    """What journald did not store is counted; its own note belongs to no start."""
    entry = JournalEntry(
        message="Suppressed 8000 messages from vllm.service",
        identifier="systemd-journald",
        invocation_id="e" * 32,
        unit="systemd-journald.service",
    )
    status, _ = feed(
        tracker, JournalSeen(at=at(1), entry=entry), JournalGap(at=at(2), text="entries were rotated away")
    )
    assert (status.n_dropped, status.invocation_id) == (8000, "")
    assert status.notes[-1] == "entries were rotated away"


def test_an_abort_says_that_the_unit_goes_on(tracker):
    """The operator's end of the watch is neither ready nor failed."""
    status, _ = feed(tracker, UnitSeen(at=at(1), status=unit()), Aborted(at=at(2)))
    assert status.state is LaunchState.ABORTED
    assert "the unit goes on" in status.reason


def test_a_unit_whose_file_is_gone_still_runs(tracker):
    """Systemd keeps what runs; the file's absence is a note."""
    status, _ = feed(
        tracker, UnitSeen(at=at(1), status=unit()), UnitSeen(at=at(2), status=unit(load_state="not-found"))
    )
    assert status.state is LaunchState.STARTING
    assert "file is gone" in status.notes[0]


def test_the_estimate_comes_from_earlier_launches():
    """What is left of the present phase, and the usual time of those to come; the bar's own rate counts first."""
    earlier = (
        {"importing": 10.0, "weights": 100.0, "graphs": 20.0},
        {"importing": 12.0, "weights": 120.0, "graphs": 20.0},
    )
    tracker = LaunchTracker(T0, earlier=earlier)
    feed(tracker, UnitSeen(at=at(0), status=unit()), line(0, "Started vllm.service.", identifier="systemd"))
    assert feed(tracker, TickSeen(at=at(4)))[0].eta_s == pytest.approx(7 + 110 + 20)
    status, _ = feed(
        tracker,
        line(11, "Loading safetensors checkpoint shards:  0% Completed | 0/100 [00:00<?, ?it/s]"),
        line(31, "Loading safetensors checkpoint shards:  50% Completed | 50/100 [00:20<00:20,  2.5it/s]"),
        TickSeen(at=at(33)),
    )
    assert status.eta_s == pytest.approx(18 + 20)
    assert feed(tracker, line(60, "INFO:     Application startup complete."))[0].eta_s is None


EXITED = "vllm.service: Main process exited, code=killed, status=9/KILL"


@pytest.mark.parametrize("ends_at", [FINAL, FINAL - {LaunchState.CRASHED}])
def test_a_crash_that_was_noticed_early_learns_how_it_ended(ends_at):
    """Noticed by the restart, before the journal has systemd's word: that word completes the crash, over or not."""
    tracker = LaunchTracker(T0, before=unit(OLD, "inactive", "dead"), ends_at=ends_at)
    status, _ = feed(
        tracker,
        UnitSeen(at=at(1), status=unit()),
        UnitSeen(at=at(9), status=unit(NEXT, n_restarts=1, sub_state="start")),
    )
    assert [(crash.invocation_id, crash.exit_status) for crash in status.crashes] == [(NEW, "")]
    status, changes = feed(tracker, line(8.9, EXITED, identifier="systemd"))
    assert status.crash == status.crashes[0]
    assert (status.crash.exit_status, status.crash.died_at) == ("killed, status=9/KILL", at(8.9))
    assert [change.text for change in changes if change.what == "crash"] == [
        "NRestarts went from 0 to 1 (killed, status=9/KILL)"
    ]
    assert (status.reason == status.crash.words) is (LaunchState.CRASHED in ends_at)
    assert not tracker.wants_last_word
    assert feed(tracker, line(9, EXITED.replace("9/KILL", "6/ABRT"), identifier="systemd"))[0].crashes == status.crashes


def test_systemd_asked_within_the_restart_knows_how_it_ended():
    """While systemd waits to restart, its answer says how the process ended; the journal's fuller words take its place."""
    tracker = LaunchTracker(T0, before=unit(OLD, "inactive", "dead"), ends_at=FINAL - {LaunchState.CRASHED})
    waiting = unit(active_state="activating", sub_state="auto-restart", exec_main_code=2, exec_main_status=9)
    status, _ = feed(tracker, UnitSeen(at=at(1), status=unit()), UnitSeen(at=at(9), status=waiting))
    assert status.crash.exit_status == "killed by signal 9"
    status, _ = feed(tracker, line(8.9, EXITED, identifier="systemd"))
    assert status.crash.exit_status == "killed, status=9/KILL"
