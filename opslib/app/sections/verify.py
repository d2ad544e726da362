"""Is the download there, is it whole, is it right, and what would it cost to be sure?"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from opslib.app.run import Run, SectionResult
from opslib.app.screen import Screen
from opslib.app.section import Answer, section
from opslib.domain.checkpoint import CheckpointReport
from opslib.domain.checkpoint_notes import shown_parameters, shown_size
from opslib.domain.states import State
from opslib.errors import CouldNotFindOut, Refused
from opslib.views.panels import answer_panel, error_panel
from opslib.views.shown import Shown
from opslib.views.verify import cost_rows, cost_shown, proof_shown, shard_bars, shards_shown
from opslib.workflow.verify import checkpoint_path, measure_hashing, verify_checkpoint

VERIFY, DEPLOY = "10-verify-download", "90-deploy"
N_SHOWN = 20
COLUMNS = ("state", "finding", "file", "detail", "at run time", "what to do")
TOLD_S, PAINTED_S = 5.0, 1.0


@section("verify-download")
def verify_download(run: Run) -> Answer:
    """Whether every file that the model needs is on the host and whole."""
    report = _verified(run)
    rows = [(f.state, f.kind, f.file, f.detail, f.effect, f.repair) for f in report.findings[:N_SHOWN]]
    notes = [report.path, *_notes(report)]
    if len(report.findings) > N_SHOWN:
        notes.append(f"{len(report.findings) - N_SHOWN} more findings are in the record")
    for finding in report.findings[:N_SHOWN]:
        run.tell("line", f"{finding.file}: {finding.detail}", section="verify-download", state=finding.state)
    value = report.model_dump(mode="json", exclude={"config", "shards"})
    value["shards"] = [{"file": file, "bytes": size, "state": state.value} for file, size, state in shard_bars(report)]
    value["receipt"] = report.receipt(datetime.now(UTC).isoformat(timespec="seconds"))
    shown = answer_panel(run.alias, report.state, report.summary, rows=rows, columns=COLUMNS, notes=notes)
    is_open = (
        report.state is State.UNKNOWN and run.record.runbook != VERIFY
    )  # what isn't known is no ground to build on
    result = SectionResult(
        state=report.state,
        summary=report.summary,
        value=value,
        is_headline=run.record.runbook == VERIFY,
        exit_code=CouldNotFindOut.exit_code if is_open else None,
        cause=report.cause,
    )
    return result, shown


def shards_by_state(run: Run) -> Shown:
    """The weight files by state, as a picture and a table; the values are those that verify_download recorded."""
    if "checkpoint" not in run.answers:
        return _not_yet(run)
    shown = shards_shown(run.alias, run.answers["checkpoint"])
    if shown.png:
        run.folder.add_evidence("shards.png", shown.png)
    return shown


def proof(run: Run) -> Shown:
    """Whether the bytes are those that were published, as far as this level looked."""
    return proof_shown(run.alias, run.answers["checkpoint"]) if "checkpoint" in run.answers else _not_yet(run)


def _not_yet(run: Run) -> Shown:
    return error_panel(
        run.alias, CouldNotFindOut("nothing was verified", hint="run the cell with verify_download(run)")
    )


@section("cost")
def cost_of_certainty(run: Run) -> Answer:
    """How long each level would take on this host, from its own speed."""
    report = checkpoint_of(run)
    speed = measure_hashing(run.host, report.path)
    rows = cost_rows(report, speed)
    summary = f"a digest of everything takes about {rows[3][3]}"
    value = {
        "speed": speed.model_dump(mode="json"),
        "levels": [dict(zip(_COST_NAMES, row, strict=True)) for row in rows],
    }
    return SectionResult(state=State.OK, summary=summary, value=value), cost_shown(run.alias, report, speed)


_COST_NAMES = ("level", "reads", "proves", "takes")


def checkpoint_of(run: Run) -> CheckpointReport:
    """The run's verified checkpoint, verified now if it wasn't yet; a deploy goes on only with one that is whole.

    Raises Refused in `90-deploy` for one with a critical finding, CouldNotFindOut for one that could not be read.
    """
    report: CheckpointReport = run.answers.get("checkpoint") or _verified(run)
    if run.record.runbook == DEPLOY and report.state is State.CRITICAL:
        raise Refused(f"the checkpoint is not whole: {report.summary}", hint=f"run {VERIFY}")
    if run.record.runbook == DEPLOY and report.state is State.UNKNOWN:
        raise CouldNotFindOut(f"whether the checkpoint is whole is not known: {report.summary}", hint=f"run {VERIFY}")
    return report


def _verified(run: Run) -> CheckpointReport:
    path = checkpoint_path(run.host, run.parameters.model)
    level = getattr(run.parameters, "level", "extents")
    run.answers.pop("checkpoint", None)  # verified anew, an older answer doesn't count even if this one fails
    report = verify_checkpoint(run.host, path, level=level, is_everything_hashed=False, on_progress=_Progress(run))
    run.answers["checkpoint"] = report
    return report


class _Progress:
    """Tells how far it is: in the record every few seconds, in the notebook each second, if it takes that long."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.screen = Screen()
        self.told_at = self.painted_at = time.monotonic()

    def __call__(self, event: Mapping[str, Any]) -> None:
        now = time.monotonic()
        text = _progress_text(event)
        if now - self.told_at >= TOLD_S:
            self.told_at = now
            self.run.tell("progress", text, section="verify-download")
        if now - self.painted_at >= PAINTED_S:
            self.painted_at = now
            self.screen.paint(answer_panel(self.run.alias, State.OK, text))


def _progress_text(event: Mapping[str, Any]) -> str:
    if not event["n_files"]:
        return f"{event['stage']}: the link was lost"
    size = f"{shown_size(event['bytes'])} of {shown_size(event['total_bytes'])}"
    rate = f", {event['bytes_per_s'] / 1e9:.2f} GB/s" if event.get("bytes_per_s") else ""
    left = f", {event['eta_s']:.0f} s left" if event.get("eta_s") else ""
    return f"{event['stage']}: {event['files']} of {event['n_files']} files, {size}{rate}{left}"


def _notes(report: CheckpointReport) -> list[str]:
    if not report.n_shards:
        return list(report.notes)
    sizes = ", ".join(f"{dtype} {shown_size(size)}" for dtype, size in report.bytes_by_dtype.items())
    commit = f"; commit {report.commit[:12]}" if report.commit else ""
    parameters = f"{shown_parameters(report.n_parameters)} parameters ({sizes}){commit}"
    return [f"{parameters}; level {report.level}, {report.layout}, in {report.duration_s:.2f} s", *report.notes]
