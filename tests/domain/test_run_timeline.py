"""One time line: in order by one clock, each thing once, each row with the line that says it."""

import json

from opslib.domain.facts.journal import entry_of
from opslib.domain.run_facts import KeptRun
from opslib.domain.run_timeline import timeline
from opslib.domain.states import State
from opslib.domain.survey import Clock
from tests.domain.run_records import (
    AHEAD,
    CAUSE,
    JOURNAL_FILE,
    OOM,
    STORY,
    at,
    cured_run,
    events,
    failed_run,
    journal,
    record,
)


def texts(told) -> list[str]:
    return [row.text for row in told.rows]


def test_a_clock_that_is_ahead_is_corrected():
    """What the host logged stands among what was seen of it, by the controller's clock, and this is said."""
    told = timeline([failed_run()])
    assert [row.at for row in told.rows] == sorted(row.at for row in told.rows)
    order = ["starting vllm", "Started vllm.service.", "unit: active", f"Worker_TP0: {OOM}", "crashed: WorkerProc"]
    places = [next(at for at, text in enumerate(texts(told)) if text.startswith(words)) for words in order]
    assert places == sorted(places)
    died = next(row for row in told.rows if "Main process exited" in row.text)
    assert died.at == at(6.0)
    (note,) = told.notes
    assert note.startswith("gpu-a: its clock was 179.0 s (± 0.5 s) ahead of laptop's; its times are corrected (2026")


def test_clocks_that_agree_are_left_alone():
    """A difference smaller than it could be measured corrects nothing."""
    run = failed_run()
    same = run.record.model_copy(update={"clock": Clock(offset_s=0.3, uncertainty_s=0.5)})
    told = timeline([run.model_copy(update={"record": same})])
    died = next(row for row in told.rows if "Main process exited" in row.text)
    assert died.at == at(6.0 + AHEAD.offset_s)
    assert told.notes == ()


def test_clocks_that_were_not_compared_are_named():
    """Where no record says how far the clocks are apart, the reader is told."""
    run = failed_run()
    told = timeline([run.model_copy(update={"record": run.record.model_copy(update={"clock": None})})])
    assert told.notes[0].startswith("gpu-a: its clock was not compared")


def test_the_clock_of_a_survey_counts():
    """A record without a measure of its own uses that of the survey in its evidence."""
    run = failed_run()
    host = {"evidence/x/host.json": '{"clock": {"offset_s": 179.0, "uncertainty_s": 0.5}}'}
    without = run.model_copy(
        update={"record": run.record.model_copy(update={"clock": None}), "files": {**run.files, **host}}
    )
    assert timeline([without]).rows == timeline([run]).rows


def test_each_row_leads_to_its_line():
    """The line of the file that a row names holds what the row says."""
    run = failed_run()
    quoted = [row for row in timeline([run], is_whole=True).rows if row.file == JOURNAL_FILE]
    assert len(quoted) == 4
    for row in quoted:
        line = run.files[row.file].splitlines()[(row.line or 0) - 1]
        assert row.text.removeprefix("Worker_TP0: ").removeprefix("APIServer: ") in line


def test_only_what_matters_of_a_journal():
    """Without `is_whole`: systemd's own lines and those the verdict quotes, though it counts the kernel's as well."""
    rows = [row.line for row in timeline([failed_run()]).rows if row.source == "journal"]
    assert rows == [1, 3, 4]


def test_what_two_records_hold_stands_once():
    """The same journal kept by two runs is told once, from the first."""
    first, second = failed_run(), failed_run("20261129T120500Z-gpu-a-vllm-40-investigate-crash")
    rows = [row for row in timeline([second, first], is_whole=True).rows if row.source == "journal"]
    assert {row.record for row in rows} == {min(first.name, second.name)}
    assert len(rows) == 4


def test_the_kernel_tells_of_gpus_and_memory():
    """Of the kernel's lines those about GPUs, memory, disks and killed processes; the rest only on request."""
    kernel = (
        "2026-11-29 12:03:01.000001+00:00 NVRM: Xid (PCI:0000:31:00): 79, GPU has fallen off the bus\n"
        "2026-11-29 12:03:02.000001+00:00 usb 1-1: new device\n"
    )
    run = KeptRun(name="r", record=record(0), files={"evidence/x/kernel.txt": kernel})
    (row,) = [row for row in timeline([run]).rows if row.source == "kernel"]
    assert (row.text[:9], row.line, row.at) == ("NVRM: Xid", 1, at(2.000001))
    assert sum(row.source == "kernel" for row in timeline([run], is_whole=True).rows) == 2


def test_operators_and_ends_are_told():
    """Who began what, what was done, and how it ended, with its state; progress and tables are left out."""
    told = events(
        (1, "progress", "launch", "loading 10 %"),
        (2, "table", "benchmark", "levels"),
        (3, "line", "install", "install vllm.service"),
        (4, "section-ended", "identify", "ops@gpu-a answers"),
    )
    ended = told[3].model_copy(update={"event": {**told[3].event, "section": "install", "state": "critical"}})
    rows = timeline([KeptRun(name="r", record=record(0), events=(*told, ended))]).rows
    assert [(row.source, row.text, row.state) for row in rows] == [
        ("operator", "ops begins 90-deploy", None),
        ("operator", "install vllm.service", None),
        ("run", "install: ops@gpu-a answers", State.CRITICAL),
    ]


def test_runs_of_two_controllers_are_named():
    """Runs begun on two machines share no clock, and the reader is told so."""
    other = cured_run()
    elsewhere = other.record.model_copy(update={"controller": "jump"})
    told = timeline([failed_run(), other.model_copy(update={"record": elsewhere})])
    assert told.notes[-1] == "the runs were started on jump, laptop: the clocks of these were not compared"
    assert any(CAUSE not in text for text in texts(told))


def gpu_event(seconds: float, gib: float) -> str:
    gpus = [{"index": 0, "memory_used_bytes": int(gib * 2**30)}]
    return json.dumps({"event": "gpu", "at": at(seconds + AHEAD.offset_s).isoformat(), "gpus": gpus})


def test_a_watch_tells_how_gpu_memory_moved():
    """Of many samples of GPU memory those are told that hold much more or less than the last; a torn line is none."""
    samples = [gpu_event(seconds, gib) for seconds, gib in enumerate([0, 5, 57.5, 57.9, 90, 0])]
    run = KeptRun(name="r", record=record(0), files={"watch-launch.jsonl": "\n".join([*samples, '{"event": "g'])})
    rows = [row for row in timeline([run]).rows if row.source == "gpu"]
    assert [(row.at, row.text.partition(": ")[2], row.line) for row in rows] == [
        (at(2), "GPU 0 57.5", 3),
        (at(4), "GPU 0 90.0", 5),
        (at(5), "none on any GPU", 6),
    ]


def test_a_watch_stands_in_for_evidence():
    """Systemd's lines that a watch saw are told once, from the evidence where it holds them as well."""
    entries = [json.loads(line) for line in journal(*STORY).splitlines()]
    seen = [
        {"event": "journal", "at": at(200).isoformat(), "entry": entry_of(entry).model_dump(mode="json")}
        for entry in entries
    ]
    watch = {"watch-launch.jsonl": "\n".join(json.dumps(event) for event in seen)}
    alone = KeptRun(name="r", record=record(0), files=watch)
    rows = [row for row in timeline([alone]).rows if row.source == "journal"]
    assert [(row.at, row.line) for row in rows] == [(at(1), 1), (at(6), 4)]
    run = failed_run()
    both = run.model_copy(update={"files": {**run.files, **watch}})
    assert timeline([both]).rows == timeline([run]).rows
