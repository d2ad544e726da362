"""`opslib runs incident`: a post-mortem's draft of what the records of a ticket say."""

import json
from pathlib import Path

import click

from opslib.app.catalogue import default_runs_dir
from opslib.app.records import read_runs
from opslib.cli.options import json_option
from opslib.cli.runs_options import runs_dir_option, which_options
from opslib.cli.showing import show
from opslib.domain.run_incident import incident
from opslib.views.incident import incident_markdown


@click.command("incident")
@click.argument("records", nargs=-1)
@which_options
@runs_dir_option
@json_option
def incident_command(records: tuple[str, ...], runs_dir: Path | None, *, as_json: bool, **wanted: str) -> int:
    """Draft a post-mortem in Markdown from RECORDS, or from those that match.

    Impact, detection, first cause, what was tried, what cured it, open questions: only what the records say.
    Exit code 0, whatever they say; 4: refused.
    """
    if not records and not any(wanted.values()):
        raise click.UsageError("say which records: --ticket T, or their names")
    runs = read_runs(runs_dir or default_runs_dir(), records, **wanted)
    tickets = dict.fromkeys(run.record.ticket for run in runs if run.record.ticket)
    told = incident(wanted["ticket"] or ", ".join(tickets), runs)
    show(json.dumps(told.model_dump(mode="json"), ensure_ascii=False) if as_json else incident_markdown(told))
    return 0
