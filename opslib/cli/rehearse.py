"""`opslib rehearse`: the whole deploy on a practice host."""

import json
from pathlib import Path
from typing import Any

import click

from opslib.app.binding import check_alias
from opslib.app.given import read_given
from opslib.app.scenario_table import scenario_rows
from opslib.cli.options import json_story_option, parameter_option, refuse_given, runs_dir_option
from opslib.cli.rehearse_fleet import Wanted, rehearse_fleet
from opslib.cli.rollout_options import CARE_NAMES, care_options
from opslib.cli.running import tell_run
from opslib.cli.showing import show
from opslib.cli.story import plain_table
from opslib.rehearsal.fleet import MOST_HOSTS
from opslib.rehearsal.scenarios import DEFAULT_SCENARIO, load_scenario

RUNBOOK = "90-deploy"
_COUNT = click.IntRange(1, MOST_HOSTS)


@click.command("rehearse")
@click.option("--scenario", help="What goes wrong [sampler-oom; with --hosts healthy].")
@click.option("--list", "is_list", is_flag=True, help="List the scenarios and how the deploy comes out.")
@click.option("--hosts", "n_hosts", type=_COUNT, metavar="N", help="Rehearse a rollout over N practice hosts.")
@click.option("--scenario-on", "scenario_on", multiple=True, metavar="N=SCENARIO", help="What goes wrong on host N.")
@click.option(
    "--serve", "is_serve", is_flag=True, help="Only keep the hosts, or one, for commands in another terminal."
)
@care_options
@parameter_option("One parameter of 90-deploy.")
@runs_dir_option("Where the record goes")
@json_story_option
def rehearse_command(
    *,
    scenario: str | None,
    n_hosts: int | None,
    scenario_on: tuple[str, ...],
    words: tuple[str, ...],
    runs_dir: Path | None,
    is_list: bool,
    is_serve: bool,
    as_json: bool,
    **care: Any,
) -> int:
    """Deploy a 230B model on a practice host: no GPU, no root and no network needed.

    It runs the runbook 90-deploy over a real SSH connection, and leaves a record to read. The host itself ends with
    the command. With --hosts 8 it rolls the deploy out over eight of them, as opslib rollout does. The exit code is
    that of the outcome, which --list names for each scenario; 4: refused.
    """
    if is_list:
        _list(as_json=as_json)
        return 0
    if n_hosts is not None or is_serve:
        if is_serve:
            refuse_given((*CARE_NAMES, "words", "runs_dir"), "with --serve nothing is rolled out")
        given = read_given(RUNBOOK, (), words)
        wanted = Wanted(n_hosts or 1, scenario, scenario_on)
        return rehearse_fleet(wanted, given, care, runs_dir, is_serve=is_serve, as_json=as_json)
    refuse_given((*CARE_NAMES, "scenario_on"), "about many hosts: it needs --hosts")
    name = scenario or DEFAULT_SCENARIO
    host = f"rehearsal:{name}"
    check_alias(host)
    own = load_scenario(name).parameters
    given = {"consent": "given", **own, **read_given(RUNBOOK, (), words), "host": host}
    return tell_run(RUNBOOK, given, runs_dir=runs_dir, as_json=as_json)


def _list(*, as_json: bool) -> None:
    rows = list(scenario_rows())
    if as_json:
        show(json.dumps({"scenarios": [row._asdict() for row in rows]}, ensure_ascii=False))
        return
    shown = [[row.name, row.state, str(row.exit_code), row.cause, row.sentence] for row in rows]
    show("\n".join(plain_table(("scenario", "outcome", "exit", "cause", "what happens"), shown)))
