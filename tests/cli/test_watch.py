"""`opslib watch`: a record's events played again, what is let through, exit codes."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from opslib.cli.main import call
from opslib.cli.watch import exit_code
from opslib.cli.watch_screen import WatchScreen
from opslib.domain.facts.gpu import Gpu
from opslib.domain.facts.journal import JournalEntry
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.launch_events import (
    AnswerSeen,
    GpuSeen,
    HealthSeen,
    JournalSeen,
    LinkLost,
    TickSeen,
    UnitSeen,
    event_document,
)
from opslib.domain.launch_record import WatchHead, replay_watch
from opslib.domain.launch_status import LaunchState, LaunchStatus
from opslib.records.watch_file import WatchFile, read_watch_file

T0 = datetime(2026, 11, 29, 12, tzinfo=UTC)
UNIT = UnitStatus(
    unit="vllm.service",
    load_state="loaded",
    active_state="active",
    sub_state="running",
    invocation_id="b" * 32,
    main_pid=7,
)


def line(seconds, message):
    at = T0 + timedelta(seconds=seconds)
    return JournalSeen(at=at, entry=JournalEntry(message=message, invocation_id="b" * 32, realtime_at=at, priority=6))


EVENTS = (
    line(1, "(APIServer pid=7) INFO 11-29 12:00:01 [api.py:1] vLLM API server version 0.32.0"),
    UnitSeen(at=T0 + timedelta(seconds=1), status=UNIT),
    line(2, "Loading safetensors checkpoint shards:  10% Completed | 12/125 [00:05<00:45,  2.5it/s]"),
    line(4, "Loading safetensors checkpoint shards:  40% Completed | 50/125 [00:20<00:30,  2.5it/s]"),
    line(5, "(Worker_TP0 pid=9) WARNING 11-29 12:00:05 [x.py:1] slow \x1b]0;title\x07 disk"),
    LinkLost(at=T0 + timedelta(seconds=6), reason="cut"),
    TickSeen(at=T0 + timedelta(seconds=8), cpu_s=3.0, read_bytes=1 << 30),
    GpuSeen(
        at=T0 + timedelta(seconds=9),
        gpus=(
            Gpu(
                index=0,
                name="G",
                uuid="u",
                memory_total_bytes=95 << 30,
                memory_used_bytes=57 << 30,
                memory_free_bytes=38 << 30,
                driver_version="570",
            ),
        ),
        utilization=(97,),
    ),
    HealthSeen(at=T0 + timedelta(seconds=60), status_code=200, latency_ms=2.0, port=8001),
    AnswerSeen(at=T0 + timedelta(seconds=61), pid=7, kind="token", model="tiny", latency_ms=80.0, is_ours=True),
)


@pytest.fixture
def record(tmp_path):
    """A record's folder with the event file of one watch."""
    file = WatchFile(tmp_path / "watch-launch.jsonl")
    file.append(WatchHead(host="gpu-a", unit="vllm", began_at=T0).model_dump(mode="json") | {"event": "begin"})
    for event in EVENTS:
        file.append(event_document(event))
    with file.path.open("a") as torn:
        torn.write('{"event": "jour')
    return tmp_path


def test_a_record_is_played_again(record, capsys):
    """From the event file the same picture: phases, progress, both signals, the journal; a torn line is left out."""
    assert call(["watch", "--replay", str(record)]) == 0
    told = capsys.readouterr().out
    for words in (
        "ready",
        "loading weights",
        "50/125 19.00/s",
        "57.0 of 95.0 GiB",
        "200 in",
        "port 8001",
        "tiny: a token",
    ):
        assert words in told
    assert "unreachable: cut" in told
    assert "\x1b]0" not in told


def test_json_is_the_end_of_it(record, capsys):
    """One document on standard output: state, phases with their times, the exit code."""
    assert call(["watch", "--replay", str(record / "watch-launch.jsonl"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["state"], document["exit_code"], document["port"]) == ("ready", 0, 8001)
    assert [span["id"] for span in document["phases"]] == ["configuration", "weights", "serving", "first_token"]


def test_written_and_read_back_it_is_the_same(record):
    """Every event means the same after the file as before it."""
    tracker = WatchHead(host="gpu-a", unit="vllm", began_at=T0).tracker()
    for event in EVENTS:
        tracker.feed(event)
    *_, (_, last) = replay_watch(read_watch_file(record / "watch-launch.jsonl"))
    assert last.status == tracker.status


@pytest.mark.parametrize(
    ("options", "shown"),
    [({"level": "WARNING"}, ["WARNING"]), ({"search": "shards"}, ["10%", "40%"]), ({"level": "ERROR"}, [])],
)
def test_the_journal_is_filtered_by_level_and_search(record, options, shown):
    """Only lines of the level and worse, or those that match."""
    screen = WatchScreen("x", **options)
    lines = [screen.take(update) for _, update in replay_watch(read_watch_file(record / "watch-launch.jsonl"))]
    assert [word in text for word, text in zip(shown, filter(None, lines), strict=True)] == [True] * len(shown)
    console = Console(record=True, width=120)
    console.print(screen)
    assert "0: 57.0 of 95.0 GiB" in console.export_text()


@pytest.mark.parametrize("height", [8, 12, 16])
def test_the_picture_is_no_higher_than_the_terminal(record, height):
    """On a small terminal phases that are over share a row, and the newest journal line is always seen."""
    screen = WatchScreen("x")
    for _, update in replay_watch(read_watch_file(record / "watch-launch.jsonl")):
        screen.take(update)
    console = Console(record=True, width=60, height=height, force_terminal=True)
    console.print(screen)
    shown = console.export_text().splitlines()
    assert len(shown) < max(height, 10)
    assert "slow" in shown[-1]
    assert any("first answer given" in line for line in shown)
    assert (" 3 phases" in " ".join(shown)) is (height < 16)


@pytest.mark.parametrize(
    ("state", "code"),
    [("ready", 0), ("stalled", 1), ("crashed", 2), ("failed", 2), ("timed_out", 2), ("unreachable", 3), ("aborted", 3)],
)
def test_exit_codes(state, code):
    """Ready is 0, a stall a warning, a crash critical; what is not known is 3."""
    assert exit_code(LaunchStatus(state=LaunchState(state), since=T0, at=T0, last_heard_at=T0)) == code


def test_a_record_is_named_as_elsewhere(record, monkeypatch, capsys):
    """`--replay last` is the newest record, as for every other verb."""
    folder = record / "runs" / "20261129T120000Z-gpu-a-vllm-30-launch"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text("{}")
    (record / "watch-launch.jsonl").rename(folder / "watch-launch.jsonl")
    monkeypatch.setenv("OPSLIB_RUNS", str(record / "runs"))
    assert call(["watch", "--replay", "last"]) == 0
    assert "loading weights" in capsys.readouterr().out


def test_refusals(tmp_path, capsys):
    """Neither names nor a record, or a record without a watch: refused, or not found out, in words."""
    assert call(["watch"]) == 4
    assert call(["watch", "--replay", str(tmp_path / "none")]) == 4
    assert call(["watch", "--replay", str(tmp_path)]) == 3
    assert call(["watch", "nowhere", "vllm"]) == 4
    assert call(["watch", "--replay", str(tmp_path), "--grep", "("]) == 4
    told = capsys.readouterr().err
    assert "no events of a watch" in told
