"""The launch tracker: what counts as ready, as a crash, as unknown."""

from datetime import UTC, datetime, timedelta

import pytest

from opslib.domain.facts.journal import JournalEntry
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
from opslib.domain.launch_events import AnswerSeen

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
