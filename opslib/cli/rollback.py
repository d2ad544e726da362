"""`opslib rollback`: service back first."""

import json
from pathlib import Path

import click

from opslib.app.catalogue import default_runs_dir
from opslib.app.rolling_back import find_deploy, save_evidence
from opslib.cli.acting import agree, at_work, bound, tell
from opslib.cli.lifecycle import tell_report
from opslib.cli.numbers import Number
from opslib.cli.options import json_option, runs_dir_option, yes_option
from opslib.cli.showing import show
from opslib.cli.story import plain_table
from opslib.domain.host import Host
from opslib.domain.lifecycle import LifecycleReport, report_of
from opslib.domain.plans import Plan
from opslib.domain.rollback import served_version
from opslib.domain.states import CheckResult, State
from opslib.workflow import lifecycle
from opslib.workflow.facts import gather_unit_status, unknown_unit
from opslib.workflow.install import apply_plan, unit_path
from opslib.workflow.rollback import gather_kept, gather_served, model_note, plan_rollback


@click.command("rollback")
@click.argument("host")
@click.argument("unit")
@click.option("--to", "wanted", default="", metavar="VERSION", help="A kept version: -1, -2, or its time stamp.")
@click.option("--list", "is_list", is_flag=True, help="Only list the kept versions.")
@click.option("--ready-timeout", "ready_s", type=Number(1, 86400), default=900.0, show_default=True, metavar="SECONDS")
@runs_dir_option("Where the records are")
@yes_option
@json_option
def rollback_command(
    host: str,
    unit: str,
    wanted: str,
    ready_s: float,
    runs_dir: Path | None,
    *,
    is_list: bool,
    is_yes: bool,
    as_json: bool,
) -> int:
    """Bring UNIT on HOST back to the last deploy that served (unit, environment, model), and start it.

    Which one that is, records and the host's own journal tell. The evidence of what is wrong now is saved before.
    Exit code 0: it serves again; 2: it does not; 3: could not find out; 4: refused, nothing was changed.
    """
    place = runs_dir or default_runs_dir()
    with bound(host) as opened:
        if is_list:
            return _list(opened, unit, as_json=as_json)
        deploy = find_deploy(opened, unit, wanted, runs_dir=place)
        planned, restarted = plan_rollback(opened, unit, deploy), lifecycle.plan(opened, unit, "restart")
        if note := model_note(opened, deploy):
            tell(note)
        agree(opened, [planned, restarted], is_yes=is_yes)
        tell(save_evidence(host, unit, runs_dir=place))
        with at_work(opened, unit, "rollback"):
            report = _bring_back(opened, unit, planned, ready_s)
    return tell_report(report, as_json=as_json)


def _bring_back(host: Host, unit: str, planned: Plan, ready_s: float) -> LifecycleReport:
    applied = apply_plan(host, planned, on_step=lambda step: tell(f"{step.title}: {step.state.value} {step.detail}"))
    for command in applied.undo:
        tell(f"undo: {command}")
    if applied.state is not State.OK:
        failed = CheckResult(name="files", state=applied.state, summary=applied.steps[-1].detail)
        return report_of(host.settings.alias, unit, "rollback", (failed,), "", duration_s=0.0)
    report = lifecycle.restart(host, unit, ready_s=ready_s, tell=tell)
    n_steps = len(planned.steps)
    files = CheckResult(name="files", state=State.OK, summary=f"{planned.title}: {n_steps} steps, each asked again")
    return report.model_copy(update={"verb": "rollback", "checks": (files, *report.checks)})


def _list(host: Host, unit: str, *, as_json: bool) -> int:
    kept = gather_kept(host, unit_path(host, unit))
    if not kept and not gather_unit_status(host, unit).is_installed:
        raise unknown_unit(host, unit)
    served = served_version(kept, gather_served(host, unit))
    name = served[0].name if served and served[0] else "now" if served else ""
    if as_json:
        document = {"versions": [version.model_dump(mode="json") for version in kept], "served_last": name}
        show(json.dumps({"host": host.settings.alias, "unit": unit, **document}, ensure_ascii=False))
        return 0
    rows = [["now", "-", "", "served last" if name == "now" else ""]]
    for number, version in enumerate(kept, 1):
        rows.append([version.name, f"-{number}", version.path, "served last" if version.name == name else ""])
    show("\n".join(plain_table(("kept until", "--to", "file", ""), rows)))
    return 0
