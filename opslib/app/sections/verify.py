"""Is the download whole?"""

from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, section
from opslib.domain.checkpoint import CheckpointReport
from opslib.domain.checkpoint_notes import shown_parameters, shown_size
from opslib.views.panels import answer_panel
from opslib.workflow.verify import checkpoint_path, verify_checkpoint

N_SHOWN = 20
COLUMNS = ("state", "finding", "file", "detail", "what to do")


@section("verify-download")
def verify_download(run: Run) -> Answer:
    """Whether every file that the model needs is on the host and whole."""
    path = checkpoint_path(run.host, run.parameters.model)
    report = verify_checkpoint(run.host, path, level=getattr(run.parameters, "level", "extents"))
    run.answers["checkpoint"] = report
    rows = [(f.state, f.kind, f.file, f.detail, f.repair) for f in report.findings[:N_SHOWN]]
    notes = [path, *_notes(report)]
    if len(report.findings) > N_SHOWN:
        notes.append(f"{len(report.findings) - N_SHOWN} more findings are in the record")
    for finding in report.findings[:N_SHOWN]:
        run.tell("line", f"{finding.file}: {finding.detail}", section="verify-download", state=finding.state)
    value = report.model_dump(mode="json", exclude={"config"})
    shown = answer_panel(run.alias, report.state, report.summary, rows=rows, columns=COLUMNS, notes=notes)
    is_headline = run.record.runbook == "10-verify-download"
    result = SectionResult(
        state=report.state, summary=report.summary, value=value, is_headline=is_headline, cause=report.cause
    )
    return result, shown


def _notes(report: CheckpointReport) -> list[str]:
    if not report.n_shards:
        return []
    sizes = ", ".join(f"{dtype} {shown_size(size)}" for dtype, size in report.bytes_by_dtype.items())
    commit = f"; commit {report.commit[:12]}" if report.commit else ""
    n_parameters = shown_parameters(report.n_parameters)
    return [f"{n_parameters} parameters ({sizes}){commit}; headers read in {report.duration_s:.2f} s"]
