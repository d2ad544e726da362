"""The records of one small incident, as values: a crash on a host whose clock is ahead, a cure, a start that holds."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from opslib.domain.record import RunRecord, SectionRecord
from opslib.domain.run_facts import KeptEvent, KeptRun
from opslib.domain.states import Outcome, State
from opslib.domain.survey import Clock
from opslib.records.folder import RunFolder

START = datetime(2026, 11, 29, 12, tzinfo=UTC)
AHEAD = Clock(offset_s=179.0, uncertainty_s=0.5)
CAUSE = "gpu-memory/sampler-warmup"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.29 GiB."
ARGV = ["vllm", "serve", "/srv/models/m", "--max-model-len", "131072"]
INVOCATION = "86e6571ea05db2c6051462a011352700"
JOURNAL_FILE = f"evidence/{INVOCATION}/journal.jsonl"


def at(seconds: float) -> datetime:
    """A moment of the story, by the controller's clock."""
    return START + timedelta(seconds=seconds)


def journal(*lines: tuple[float, str, str], offset_s: float = AHEAD.offset_s) -> str:
    """A journal by the host's clock: seconds of the story, identifier, message."""
    entries = []
    for number, (seconds, identifier, message) in enumerate(lines):
        stamp = round((at(seconds + offset_s)).timestamp() * 1e6)
        entry = {"MESSAGE": message, "__REALTIME_TIMESTAMP": str(stamp), "__CURSOR": f"c{number}"}
        entries.append(json.dumps({**entry, "SYSLOG_IDENTIFIER": identifier}))
    return "\n".join(entries) + "\n"


STORY = (
    (1.0, "systemd", "Started vllm.service."),
    (2.0, "vllm", "(APIServer pid=3) INFO 11-29 12:02:59 [api_server.py:1] vLLM API server version 0.15.1"),
    (5.0, "vllm", f"(Worker_TP0 pid=7) ERROR 11-29 12:03:04 [worker.py:8] {OOM}"),
    (6.0, "systemd", "vllm.service: Main process exited, code=exited, status=1/FAILURE"),
)


def events(*rows: tuple[float, str, str, str]) -> tuple[KeptEvent, ...]:
    """Events by the controller's clock: seconds of the story, kind, section, text."""
    return tuple(
        KeptEvent(line=number, event={"at": at(seconds).isoformat(), "kind": kind, "section": section, "text": text})
        for number, (seconds, kind, section, text) in enumerate(rows, 1)
    )


def section(name: str, state: State, seconds: float, summary: str = "so", value: object = None) -> SectionRecord:
    """One section of the story."""
    return SectionRecord(name=name, state=state, summary=summary, value=value, started_at=at(seconds))


def record(seconds: float, *sections: SectionRecord, state: State = State.OK, **changes: object) -> RunRecord:
    """A finished run that began then."""
    known = {
        "runbook": "90-deploy",
        "parameters": {"host": "gpu-a", "model": "m"},
        "host": "gpu-a",
        "unit": "vllm",
        "ticket": "INC-7",
        "started_at": at(seconds),
        "ended_at": at(seconds + 20),
        "user": "ops",
        "controller": "laptop",
        "clock": AHEAD,
        "sections": sections,
        "status": "finished",
        "outcome": Outcome(state=state, reason="it ended so"),
    }
    return RunRecord.model_validate({**known, **changes})


def diagnosis(confidence: str = "high") -> dict[str, object]:
    """The verdict on the crash; its line counts two lines of the kernel before it."""
    line = {"line": 4, "text": OOM, "process": "Worker_TP0", "logged_at": at(5.0 + AHEAD.offset_s).isoformat()}
    summary = "the dummy requests do not fit"
    return {"cause": CAUSE, "confidence": confidence, "summary": summary, "evidence": [line]}


def snapshot(*flags: str, **changes: str) -> dict[str, object]:
    """What a start ran with."""
    return {"argv": [*ARGV, *flags], "engine_version": "0.15.1", "driver_version": "580.95", **changes}


CRASH = {
    "state": "crashed",
    "timeline": [{"at_s": 1, "seen": "loading"}],
    "crash": {
        "text": "WorkerProc hit an exception.",
        "noticed_by": "journal",
        "died_at": at(5.5 + AHEAD.offset_s).isoformat(),
        "seen_at": at(7.5 + AHEAD.offset_s).isoformat(),
    },
}


def failed_run(name: str = "20261129T120000Z-gpu-a-vllm-90-deploy") -> KeptRun:
    """The deploy that crashed and was not cured."""
    said = record(
        0,
        section("launch", State.CRITICAL, 1, "vllm crashed", CRASH),
        section("investigate", State.CRITICAL, 8, CAUSE, {"diagnosis": diagnosis(), "missing": ["kernel: no right"]}),
        section("remedy", State.CRITICAL, 9, "not allowed", {"diff": "", "why": "not allowed", "attempts": []}),
        state=State.CRITICAL,
        cause=CAUSE,
    )
    told = events(
        (1.0, "line", "launch", "starting vllm"),
        (1.5, "line", "launch", "unit: active (running)"),
        (7.5, "line", "launch", "crashed: WorkerProc hit an exception."),
    )
    files = {JOURNAL_FILE: journal(*STORY), f"evidence/{INVOCATION}/snapshot.json": json.dumps(snapshot())}
    return KeptRun(name=name, record=said, events=told, files=files)


def cured_run(name: str = "20261129T121000Z-gpu-a-vllm-90-deploy") -> KeptRun:
    """The deploy that crashed in the same way and was cured."""
    ready = {"state": "ready", "elapsed_s": 75.0, "timeline": [{"at_s": 1, "seen": "x"}], "n_restarts": 0}
    ready |= {"snapshot": snapshot("--max-num-seqs", "256"), "engine": {"kv_cache_tokens": 477_000}}
    change = {"flag": "--max-num-seqs", "value": "256", "cause": CAUSE}
    said = record(
        600,
        section("launch", State.CRITICAL, 601, "vllm crashed", {"state": "crashed", "timeline": []}),
        section("investigate", State.CRITICAL, 608, CAUSE, {"diagnosis": diagnosis()}),
        section("remedy", State.OK, 609, "--max-num-seqs 256 set", change),
        section("relaunch", State.OK, 610, "ready after 75 s", ready),
        cause=CAUSE,
    )
    told = events(
        (610.0, "line", "relaunch", "starting vllm"), (685.0, "line", "relaunch", "ready: /health answers 200")
    )
    return KeptRun(name=name, record=said, events=told)


def lay_down(place: Path) -> Path:
    """The two deploys of the story as records in folders below `place`."""
    for run in (failed_run(), cured_run()):
        folder = RunFolder.create(place, "gpu-a", "vllm", "90-deploy", run.record.started_at)
        folder.write_record(run.record)
        for kept in run.events:
            folder.append_event(kept.event)
        for path, text in run.files.items():
            _, start, name = path.split("/")
            folder.add_evidence(name, text.encode(), start)
    return place
