"""Does it say what it should?"""

import asyncio

from opslib.app.putting_back import roll_back
from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, waiting_section
from opslib.domain.canary import CanaryReport
from opslib.domain.canary_compare import judge_canary
from opslib.records.fingerprints import keep_fingerprint, kept_fingerprints
from opslib.views.canary import canary_panel
from opslib.workflow.canary import take_fingerprint


@waiting_section("canary")
async def canary(run: Run) -> Answer:
    """The same few questions as ever, greedily: the same answers as at the first good deploy, or why not."""
    report = await asyncio.to_thread(_ask, run)
    run.answers["canary"] = report
    if report.verdict == "corrupt":
        done = await asyncio.to_thread(roll_back, run, "corrupt")
        report = report.model_copy(update={"summary": report.summary + done})
    kept_in = _keep(run, report)
    value = report.model_dump(mode="json")
    cause = "checkpoint/corrupt" if report.verdict == "corrupt" else None
    result = SectionResult(state=report.state, summary=report.summary, value=value, cause=cause)
    return result, canary_panel(run.alias, report, kept_in=kept_in)


def _ask(run: Run) -> CanaryReport:
    parameters = run.parameters
    taken = take_fingerprint(
        run.host,
        unit=parameters.unit,
        port=parameters.port,
        model=parameters.client_model_name,
        has_gpus=bool(getattr(parameters, "gpus", True)),
    )
    now = taken.model_copy(update={"record": run.folder.path.name})
    return judge_canary(now, kept_fingerprints(run.folder.path.parent, now.model_digest))


def _keep(run: Run, report: CanaryReport) -> str:
    """Keep the first good fingerprint of these weights, dtype and engine beside the records; where, or ""."""
    if report.verdict in ("corrupt", "unknown") or not report.fingerprint.model_digest:
        return ""
    path = keep_fingerprint(run.folder.path.parent, report.fingerprint)
    return f"runs/{path.parent.name}/{path.name}"
