"""`opslib adopt`: a unit that the kit did not write, read as it is, and one flag of it changed."""

import json

import click

from opslib.cli.acting import agree, at_work, bound, tell
from opslib.cli.lint import finding_lines
from opslib.cli.options import json_option, yes_option
from opslib.cli.showing import show
from opslib.cli.story import badge_text
from opslib.domain.host import Host
from opslib.domain.redaction import redact
from opslib.domain.states import State
from opslib.domain.unit_files import UnitFiles
from opslib.domain.unit_words import group_by_flag
from opslib.errors import BadParameter
from opslib.workflow.install import ApplyReport, apply_plan
from opslib.workflow.lint import LintReport, lint_text
from opslib.workflow.unit_files import gather_unit_files, plan_flag, refuse_bad_flag


@click.command("adopt")
@click.argument("host")
@click.argument("unit")
@click.option("--set", "given", metavar="FLAG[=VALUE]", help="Set one engine flag: --set --max-num-seqs=256.")
@click.option("--unset", metavar="FLAG", help="Take one engine flag out.")
@click.option("--force", "is_forced", is_flag=True, help="Set a flag or value that the installed vLLM would refuse.")
@yes_option
@json_option
def adopt_command(
    host: str, unit: str, given: str | None, unset: str | None, *, is_forced: bool, is_yes: bool, as_json: bool
) -> int:
    """Read UNIT on HOST, whoever wrote it, drop-ins included; with --set or --unset change one flag of its engine.

    Everything else keeps its wording. The installed vLLM has to know the flag and to read its value. The running engine
    keeps its flags until `opslib restart`. An engine in docker or podman is recognised and said, not changed. Exit code
    0: read, or changed and asked again; 2: a step did not hold; 3: could not find out; 4: refused, nothing was changed.
    """
    if given and unset:
        raise BadParameter("one flag at a time: --set or --unset")
    report = None
    with bound(host) as opened:
        if given or unset:
            report = _change(opened, unit, given, unset, is_forced=is_forced, is_yes=is_yes)
        files = gather_unit_files(opened, unit)
        lint = lint_text(opened, unit, files.text)
    if as_json:
        show(json.dumps(_document(host, files, lint, report), ensure_ascii=False))
    else:
        _tell(host, files, lint, report)
    return (report.state if report else State.OK).exit_code


def _change(
    host: Host, unit: str, given: str | None, unset: str | None, *, is_forced: bool, is_yes: bool
) -> ApplyReport:
    name, equals, value = (given or unset or "").partition("=")
    if not name.startswith("-"):
        raise BadParameter(f"{name!r} is no flag; as in --set --max-num-seqs=256")
    wanted = value if equals else None
    if given and not is_forced:
        refuse_bad_flag(host, unit, name, wanted)
    plan = plan_flag(host, unit, name, wanted, is_removed=bool(unset))
    agree(host, [plan], is_yes=is_yes)
    with at_work(host, unit, "adopt"):
        report = apply_plan(host, plan, on_step=lambda step: tell(f"{step.title}: {step.state.value} {step.detail}"))
    for command in report.undo:
        tell(f"undo: {command}")
    return report


def _flags(files: UnitFiles) -> list[str]:
    return [redact(" ".join(line)) for line in group_by_flag(files.merged.engine_argv)]


def _document(host: str, files: UnitFiles, lint: LintReport, report: ApplyReport | None) -> dict[str, object]:
    return {
        "host": host,
        "unit": files.unit,
        "files": [part.path for part in files.parts],
        "command": _flags(files),
        "environment": sorted(files.merged.environment),
        "container": files.container.words if files.container else None,
        "lint": [finding.model_dump(mode="json") for finding in lint.findings],
        "changed": report.model_dump(mode="json", include={"state", "steps", "undo"}) if report else None,
    }


def _tell(host: str, files: UnitFiles, lint: LintReport, report: ApplyReport | None) -> None:
    if report:
        done = f"{len(report.steps)} steps done and verified" if report.steps else "nothing had to change"
        words = done if report.state is State.OK else report.steps[-1].detail
        show(f"{badge_text(report.state.value)}  {host}: {files.unit}: {words}; it counts from `opslib restart` on")
    show(f"{files.unit}: {', '.join(part.path for part in files.parts)}")
    show("".join(f"    {line}\n" for line in _flags(files)), end="")
    show(finding_lines(lint), end="")
