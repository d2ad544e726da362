"""What `run` and `rehearse` share: a headless run that is told, and its end as text or JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opslib.app.catalogue import default_runs_dir
from opslib.app.headless import RunResult, run_headless
from opslib.cli.showing import show
from opslib.cli.story import Story, badge_text


def tell_run(runbook: str, given: Mapping[str, Any], *, runs_dir: Path | None, as_json: bool) -> int:
    """Run a runbook and tell it; returns the exit code."""
    story = Story(is_quiet_stdout=as_json)
    result = run_headless(
        runbook,
        given,
        runs_dir=runs_dir or default_runs_dir(),
        on_event=story.tell,
        on_folder=lambda path: story.say(f"record  {path}", "dim"),
    )
    if as_json:
        show(json.dumps(_document(result), ensure_ascii=False))
    else:
        _tell_end(story, result)
    return result.exit_code


def _tell_end(story: Story, result: RunResult) -> None:
    page = result.folder / "record.html"
    story.say()
    if story.last_outcome != result.outcome.reason:  # the runbook ended without telling it
        story.say(f"{badge_text(result.outcome.state.value)}  {result.outcome.reason}", "bold")
    story.say(f"record  {result.folder}")
    story.say(f"read    {(page if page.is_file() else result.folder / 'notebook.ipynb').as_uri()}")


def _document(result: RunResult) -> dict[str, Any]:
    record = result.record
    document = record.model_dump(mode="json", include=_FIELDS)
    ended_at = record.ended_at or record.started_at
    document["duration_s"] = round((ended_at - record.started_at).total_seconds(), 3)
    return {**document, "record": str(result.folder), "exit_code": result.exit_code}


_FIELDS = {"runbook", "host", "unit", "answered", "started_at", "ended_at", "sections", "outcome", "status"}
