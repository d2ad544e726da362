"""What `run` and `rehearse` share: a headless run that is told, and its end as text or JSON."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import click

from opslib.app.catalogue import default_runs_dir
from opslib.app.headless import RunResult, run_headless
from opslib.cli.showing import show
from opslib.cli.story import Story, badge_text
from opslib.domain.headless import HeadlessOptions, NotifyOn
from opslib.domain.schedule import parse_span

_OPTIONS = (
    click.option("--timeout", metavar="SPAN", help="End the run in order after this time: 90, 20min, 2h."),
    click.option("--retries", type=click.IntRange(0, 20), help="How often a read of a lost host is repeated [2]."),
    click.option("--notify", multiple=True, metavar="REF", help="Who is told: env:NAME or file:PATH of an apprise URL"),
    click.option("--notify-on", type=click.Choice(get_args(NotifyOn)), help="When they are told [problem]."),
)


def headless_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `run` and `schedule` share."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, under the names that they have in a file of parameters."""
    timeout = options.get("timeout")
    named = {**options, "timeout_s": parse_span(timeout, "--timeout") if timeout else None}
    given = {name: named[name] for name in HeadlessOptions.model_fields if name in named}
    return {name: value for name, value in given.items() if value not in (None, ()) and value is not False}


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


_FIELDS = {
    *("runbook", "host", "unit", "answered", "started_at", "ended_at", "sections", "outcome", "status", "cause"),
    *("is_dry_run", "notes"),
}
