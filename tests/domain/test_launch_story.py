"""The story of a launch: the same events tell the same, live or later."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opslib.domain.facts.journal import JournalEntry
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.launch_events import Aborted, HealthSeen, JournalSeen, UnitSeen, event_document
from opslib.domain.launch_record import LaunchUpdate, WatchHead, abort_watch, replay_watch
from opslib.domain.launch_status import LaunchState
from opslib.domain.launch_story import LaunchStory

T0 = datetime(2026, 11, 29, 12, tzinfo=UTC)
HEAD = WatchHead(host="gpu-a", unit="vllm-b", began_at=T0)
ENDS = (LaunchState.READY, LaunchState.FAILED, LaunchState.ABORTED)


def at(seconds):
    return T0 + timedelta(seconds=seconds)


def line(seconds, message, *, invocation="a" * 32, priority=6):
    entry = JournalEntry(
        message=message, priority=priority, realtime_at=at(seconds), invocation_id=invocation, identifier="vllm"
    )
    return JournalSeen(at=at(seconds), entry=entry)


def unit(seconds, invocation="a" * 32, n_restarts=0):
    known = {"unit": "vllm-b.service", "load_state": "loaded", "active_state": "active", "sub_state": "running"}
    status = UnitStatus(**known, invocation_id=invocation, n_restarts=n_restarts, main_pid=7)
    return UnitSeen(at=at(seconds), status=status)


def told(events, head=HEAD):
    """The story of these events, through the written form."""
    story = LaunchStory()
    documents = [head.model_dump(mode="json") | {"event": "begin"}, *map(event_document, events)]
    for _, update in replay_watch(documents):
        story.take(update)
    return story


def test_journal_is_filtered_by_level_and_words():
    """Level lets graver lines through, words are found in any case, and the last lines win."""
    story = told(
        [
            unit(1),
            line(2, "(APIServer pid=1) INFO 11-29 12:00:02 [a.py:1] Loading weights"),
            line(3, "(APIServer pid=1) WARNING 11-29 12:00:03 [a.py:1] slow disk"),
            line(4, "(APIServer pid=1) ERROR 11-29 12:00:04 [a.py:1] no memory"),
            line(5, "plain words", priority=3),
        ]
    )
    assert len(story.journal(10)) == 4
    assert [text[-9:] for text in story.journal(10, level="WARNING")] == ["slow disk", "no memory", "ain words"]
    assert story.journal(10, level="ERROR", search="MEMORY")[0].endswith("no memory")
    assert story.journal(1) == ["plain words"]
    assert story.journal(10, level="ERROR", search="disk") == []


def test_both_signals_are_kept_as_they_changed():
    """Each signal is a row of moments from which on it read so; `/health` is closed at first."""
    story = told([unit(1), HealthSeen(at=at(2), status_code=None), HealthSeen(at=at(9), status_code=503)])
    assert [(mark.at_s, mark.text) for mark in story.units] == [(1.0, "active (running)")]
    assert [(mark.at_s, mark.text) for mark in story.health] == [(0.0, "closed"), (9.0, "503")]


def test_phases_of_a_start_before_are_kept():
    """After a restart that systemd makes the phases of the first start stand before those of the second."""
    head = HEAD.model_copy(update={"ends_at": ENDS})
    loading = "(EngineCore_DP0 pid=3) INFO 11-29 12:00:02 [a.py:1] Starting to load model /srv/m..."
    story = told(
        [unit(1), line(2, loading), unit(9, "b" * 32, 1), line(10, loading, invocation="b" * 32)],
        head,
    )
    assert [span.id for span in story.phases].count("weights") == 2
    begun = [span.began_at for span in story.phases]
    assert begun == sorted(begun)


def test_abort_tells_what_a_replay_tells():
    """The update that ends a watch for its operator is the one that a replay of its event gives."""
    events = [unit(1), line(2, "INFO 11-29 12:00:02 [a.py:1] hello")]
    live = told(events)
    live.take(abort_watch(live.status, Aborted(at=at(5), reason="enough")))
    later = told([*events, Aborted(at=at(5), reason="enough")])
    assert live.status == later.status
    assert live.status.state is LaunchState.ABORTED
    assert live.timeline == later.timeline
    assert live.timeline[-1].text == "aborted: enough"


@pytest.mark.parametrize("path", sorted(Path("runs/examples").glob("*/watch-*.jsonl")), ids=lambda path: path.stem)
def test_story_of_a_kept_record(path):
    """A kept record's watch ends as its record says, with every phase told once."""
    from opslib.records.watch_file import read_watch_file

    story, update = LaunchStory(), None
    for _, update in replay_watch(read_watch_file(path)):
        story.take(update)
    assert isinstance(update, LaunchUpdate)
    assert story.status.state in {LaunchState.READY, LaunchState.CRASHED}
    seen = [mark.text for mark in story.timeline]
    assert [seen.count(span.title) for span in story.phases] == [1] * len(story.phases)
