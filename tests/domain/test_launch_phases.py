"""Phases of real launches, held against boundaries that were labelled by reading the journals."""

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from opslib.domain.engine_log import parse_log_line
from opslib.domain.facts.journal import JournalEntry
from opslib.domain.journal_text import parse_input
from opslib.domain.launch import LaunchTracker
from opslib.domain.launch_events import JournalSeen
from opslib.domain.launch_phases import PhaseTrack, launch_phase_of, launch_phases
from opslib.domain.launch_status import LaunchState

CASES = Path(__file__).parents[1] / "cases"
TRUTHS = sorted((CASES / "launch").glob("*.truth.json"))
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
STARTED = JournalEntry(message="Started vllm.service - vLLM.", identifier="systemd", line=-1)


def read(path):
    """The truth, and the journal's entries as they were logged; those of a text after systemd's word, a second each."""
    truth = json.loads(path.read_text())
    entries = parse_input((CASES / truth["journal"]).read_bytes())
    if truth["journal"].endswith(".txt"):
        spoken = [entry for entry in entries if entry.message.strip()]
        entries = tuple(_as_logged(entry) for entry in (STARTED, *spoken))
    return truth, entries


def _as_logged(entry):
    """A line of a text as journald would have stored it for a unit."""
    given = {"unit": "vllm.service", "invocation_id": "i1", "realtime_at": EPOCH + timedelta(seconds=entry.line + 1)}
    who = entry.identifier or "vllm"
    return entry.model_copy(
        update={**given, "identifier": who, "transport": "journal" if who == "systemd" else "stdout"}
    )


def watched(entries, *, ends_at=(LaunchState.FAILED,)):
    """Each update of a tracker that hears the journal line by line: the entry's line, and the status after it."""
    tracker = LaunchTracker(entries[0].realtime_at, unit=entries[0].unit, ends_at=ends_at)
    for entry in entries:
        tracker.feed(JournalSeen(at=entry.realtime_at, entry=entry))
        yield entry.line, tracker.status


@pytest.mark.parametrize("path", TRUTHS, ids=lambda path: path.name.removesuffix(".truth.json"))
def test_boundaries_are_where_a_reader_sees_them(path):
    """Each phase begins with the line that was labelled by hand, in order, and their durations sum to the wall time."""
    truth, entries = read(path)
    seen, crashed_at = [], None
    for line, status in watched(entries, ends_at=(LaunchState.CRASHED,)):
        if status.phase and (not seen or seen[-1][0] != status.phase.id):
            seen.append((status.phase.id, line))
        if status.state is LaunchState.CRASHED and crashed_at is None:
            crashed_at = line
    assert seen == [(row["phase"], row["line"]) for row in truth["phases"]]
    assert crashed_at == truth.get("crash_line")
    spans = status.phases
    assert spans[0].began_at == entries[0].realtime_at
    assert all(before.ended_at == after.began_at for before, after in pairwise(spans))
    died_at = status.crash.died_at if status.crash else status.at
    assert sum(span.duration_s(died_at) for span in spans) == pytest.approx(
        (died_at - spans[0].began_at).total_seconds()
    )


def test_a_bar_tells_how_far_and_how_fast():
    """Steps done, of how many, and steps per second, of the bar that is drawn last."""
    _, entries = read(CASES / "launch" / "first-start-takes-twelve-minutes.truth.json")
    status = [status for _, status in watched(entries)][-1]
    weights = next(span for span in status.phases if span.id == "weights")
    assert (weights.n, weights.total, weights.percent) == (27, 27, 100)
    assert weights.rate_per_s == pytest.approx(27 / 131.19, rel=0.01)


@pytest.mark.parametrize("text", ["", "anything at all", "\x00\x1b[31m", "100%", "1/0 [", "Ünïcode 99% | 3/4 [00:01<"])
def test_an_unknown_line_is_never_an_error(text):
    """A line that nobody knows changes nothing."""
    track = PhaseTrack()
    track.move("weights", EPOCH)
    track.feed(parse_log_line(text), EPOCH)
    assert [span.id for span in track.spans] == ["weights"]


def test_a_later_phase_is_never_left_for_an_earlier_one():
    """Ranks speak out of turn; only the guard may follow upon the start itself."""
    track = PhaseTrack()
    for phase in ("importing", "waiting_gpu", "importing", "kv_cache", "weights"):
        track.move(phase, EPOCH)
    assert [span.id for span in track.spans] == ["waiting_gpu", "importing", "kv_cache"]


@pytest.mark.parametrize("line", [f"Graph capturing finished in {n} secs, took 0.61 GiB" for n in (2, 12)])
def test_the_end_of_one_phase_begins_the_next(line):
    """What is said at the end of capturing shows that the warm-up has begun."""
    assert launch_phase_of(parse_log_line(line)).id == "warmup"
    assert [phase.order for phase in launch_phases()] == list(range(len(launch_phases())))


@pytest.mark.parametrize(("rate", "phase"), [("0.0", "serving"), ("0.4", "first_token"), ("409.9", "first_token")])
def test_tokens_that_are_made_show_the_first_token_where_no_request_is_logged(rate, phase):
    """The engine's own figures tell it; a rate of nought does not."""
    track, text = (
        PhaseTrack(),
        f"Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: {rate} tokens/s",
    )
    track.move("serving", EPOCH)
    track.feed(parse_log_line(text), EPOCH)
    assert track.current.id == phase


@pytest.mark.parametrize("line", ["Waiting for GPU memory to free (max used: 95412 MiB)", "waiting for GPUs"])
def test_a_guard_of_another_hand_is_understood_before_the_engine_speaks(line):
    """Upon the start it is a wait; once the engine has spoken the same words change nothing."""
    track = PhaseTrack()
    for phase, seen in (("importing", "waiting_gpu"), ("weights", "weights")):
        track.move(phase, EPOCH)
        track.feed(parse_log_line(line), EPOCH)
        assert track.current.id == seen


def test_one_of_several_api_servers_shows_that_options_are_read():
    """With data parallelism they are numbered; a nameless engine line shows nothing."""
    assert (
        launch_phase_of(parse_log_line("(ApiServer_0 pid=7) INFO 08-30 12:53:13 [vllm.py:1] x")).id == "configuration"
    )
    assert launch_phase_of(parse_log_line("(EngineCore_DP1 pid=7) INFO 08-30 12:53:13 [vllm.py:1] x")) is None


def test_ranks_that_warm_up_one_after_the_other_are_in_one_phase():
    """On processors each rank says it; the second one ends nothing, and after the cache was sized it is a warm-up."""
    track, text = PhaseTrack(), "INFO 08-28 16:48:52 [cpu_model_runner.py:150] Warming up model for the compilation..."
    for phase, seen in (("weights", "compile"), ("compile", "compile"), ("kv_cache", "warmup"), ("warmup", "warmup")):
        track.move(phase, EPOCH)
        track.feed(parse_log_line(text), EPOCH)
        assert track.current.id == seen


def test_whole_and_line_by_line_are_read_alike():
    """A text read at once gives the same entries as its lines read one at a time."""
    for path in sorted((CASES / "journals").glob("*.txt")):
        lines = path.read_bytes().rstrip(b"\n").split(b"\n")
        single = [parse_input(line, format="text")[0].message if line else "" for line in lines]
        assert single == [entry.message for entry in parse_input(b"\n".join(lines), format="text")], path.name
