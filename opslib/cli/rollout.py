"""`opslib rollout`: a runbook over many hosts, a canary first."""

import json
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click

from opslib.app.catalogue import default_runs_dir, find_runbook
from opslib.app.given import read_given
from opslib.app.rollout import RolloutEnd, resume_rollout, run_rollout, undo_rollout
from opslib.app.rollout_dry import DryHost, dry_rollout
from opslib.app.rollout_planning import needs_consent, plan_rollout, with_consent
from opslib.app.rollout_record import how_to_go_on
from opslib.cli.options import (
    file_option,
    given_names,
    json_story_option,
    parameter_option,
    runs_dir_option,
    yes_option,
)
from opslib.cli.rollout_options import care_of, care_options
from opslib.cli.rollout_screen import RolloutScreen
from opslib.cli.showing import show
from opslib.cli.story import badge_text, plain_table
from opslib.domain.rollout import RolloutPlan, wave_words, waves
from opslib.domain.states import State, worst
from opslib.errors import BadParameter, ConsentMissing, OpslibError
from opslib.records.alive import is_alive
from opslib.records.folder import HTML_FILE
from opslib.records.rollout import Asked, RolloutFolder

_DRY = "dry run, nothing was changed: "
_MOST_NAMED = 3  # records of hosts that did not pass
_NARROWEST = 40  # columns for what a dry run said
_WITH_ALL = ("is_yes", "runs_dir", "as_json")  # what goes with --ask, --resume and --undo as well


@click.command("rollout")
@click.argument("runbook", default="")
@click.argument("more_hosts", nargs=-1, metavar="[HOST]...")
@click.option("--hosts", multiple=True, metavar="LABEL|ALIAS...", help="Hosts by alias or label of hosts.toml; all.")
@file_option
@parameter_option()
@care_options
@click.option("--dry-run", is_flag=True, help="Every read, no change: the waves, and what each host's run would do.")
@click.option("--resume", metavar="FOLDER", help="Go on with a rollout that stopped or was killed; `last`.")
@click.option("--undo", metavar="FOLDER", help="Bring back what a rollout changed, the newest change first; `last`.")
@click.option("--ask", type=click.Choice(get_args(Asked)), help="Ask the rollout FOLDER, which runs elsewhere.")
@yes_option
@runs_dir_option("Where the records go")
@json_story_option
def rollout_command(
    runbook: str,
    more_hosts: tuple[str, ...],
    *,
    hosts: tuple[str, ...],
    files: tuple[Path, ...],
    words: tuple[str, ...],
    resume: str | None,
    undo: str | None,
    ask: Asked | None,
    runs_dir: Path | None,
    dry_run: bool,
    is_yes: bool,
    as_json: bool,
    **care: Any,
) -> int:
    """Run RUNBOOK on many hosts: a canary first, then wave after wave; stops at a failure and leaves the rest as it is.

    opslib rollout deploy --hosts prod -f m2.yaml --min-serving 3. A host's unit is drained before it is replaced. The
    canary has to pass its gates: ready, the answers' fingerprint, the benchmark not worse. Ctrl-C lets the hosts under
    way come to their end and begins no other; twice ends them in order. The exit code is that of the outcome: 0 all
    hosts passed, 1 with warnings, 2 one failed, 3 could not find out, 4 refused.
    """
    place = runs_dir or default_runs_dir()
    screen = RolloutScreen(is_quiet_stdout=as_json)
    if ask:
        _nothing_else("--ask", "ask", "runbook")
        return _ask(RolloutFolder.open(place, runbook or "last"), ask)
    if resume is not None and undo is not None:
        raise BadParameter("--resume and --undo are two things")
    if resume is not None or undo is not None:
        name = "--undo" if resume is None else "--resume"
        _nothing_else(name, "resume", "undo")
        if not (resume or undo):
            raise BadParameter(f"{name}: which rollout? Its folder, its name or last")
        folder = RolloutFolder.open(place, resume or undo or "")
        folder.check_whole()
        if undo:
            _agree(f"Undo {folder.path.name} on {_n_touched(folder)} hosts?", folder.plan(), is_yes=is_yes)
        act = undo_rollout if resume is None else resume_rollout
        with screen.running():
            end = act(folder, on_change=screen.take)
        return tell_end(screen, end, as_json=as_json)
    asked = [name for word in (*hosts, *more_hosts) for name in word.split(",") if name]
    plan = _plan(runbook, asked, files, words, care)
    if dry_run:
        return _dry_run(screen, plan, place, as_json=as_json)
    tell_plan(screen, plan)
    if needs_consent(plan):
        _agree(f"Roll {plan.runbook} out over {len(plan.hosts)} hosts?", plan, is_yes=is_yes)
        plan = with_consent(plan)
    return carry_out(screen, plan, place, as_json=as_json)


def carry_out(
    screen: RolloutScreen, plan: RolloutPlan, runs_dir: Path, *, as_json: bool, can_go_on: bool = True
) -> int:
    """Roll it out and tell it; returns the exit code. Not `can_go_on`: its hosts end with this command."""

    def on_folder(path: Path) -> None:
        screen.say(f"record  {path}", "dim")

    with screen.running():
        end = run_rollout(plan, runs_dir, on_folder=on_folder, on_change=screen.take)
    return tell_end(screen, end, as_json=as_json, can_go_on=can_go_on)


def tell_plan(screen: RolloutScreen, plan: RolloutPlan) -> None:
    """The waves, and how carefully."""
    screen.say(f"{plan.runbook} over {len(plan.hosts)} hosts, {plan.unit}", "bold")
    groups = waves(plan)
    for number, group in enumerate(groups):
        if group:
            screen.say(f"  {wave_words(number, len(groups)):<12}  {', '.join(group)}")
    pause = f"a pause of {plan.pause_s} s between waves, " if plan.pause_s else ""
    serving = f"at least {plan.min_serving} units serve, " if plan.min_serving else ""
    screen.say(f"  {pause}{serving}{plan.max_failures} failures allowed, {plan.workers} runs at once", "dim")


def tell_end(screen: RolloutScreen, end: RolloutEnd, *, as_json: bool, can_go_on: bool = True) -> int:
    """The outcome and how to go on, as lines or as one JSON document; returns the exit code."""
    code = end.outcome.state.exit_code
    commands = how_to_go_on(end.folder, end.state) if can_go_on else {}
    if as_json:
        show(json.dumps(_document(end, commands), ensure_ascii=False))
        return code
    page = end.folder / HTML_FILE
    screen.say()
    screen.say(f"{badge_text(end.outcome.state.value)}  {end.outcome.reason}", "bold")
    screen.say(f"record  {end.folder}")
    if page.is_file():
        screen.say(f"read    {page.as_uri()}")
    _tell_why(screen, [progress.record for progress in end.state.failures])
    for what, command in commands.items():
        screen.say(f"{what:<6}  {command}")
    return code


def _tell_why(screen: RolloutScreen, records: list[str]) -> None:
    """How to read what the runs of the hosts that did not pass say; of many, the first."""
    for record in [record for record in records if record][:_MOST_NAMED]:
        screen.say(f"why     opslib runs show {record}")


def _document(end: RolloutEnd, commands: dict[str, str]) -> dict[str, Any]:
    state = end.state
    begun, ended = state.plan.begun_at, state.ended_at or state.plan.begun_at
    fields = {"host", "wave", "step", "state", "text", "record", "records"}
    return {
        "rollout": str(end.folder),
        "runbook": state.plan.runbook,
        "outcome": end.outcome.model_dump(mode="json"),
        "hosts": [progress.model_dump(mode="json", include=fields) for progress in state.hosts],
        "untouched": list(state.untouched),
        "next": commands,
        "begun_at": begun.isoformat(),
        "duration_s": round((ended - begun).total_seconds(), 3),
        "exit_code": end.outcome.state.exit_code,
    }


def _plan(runbook: str, asked: list[str], files: tuple[Path, ...], words: tuple[str, ...], care: Any) -> RolloutPlan:
    if not runbook:
        raise BadParameter("which runbook? opslib rollout deploy --hosts LABEL", hint="see opslib rollout --help")
    name, _ = find_runbook(runbook)
    return plan_rollout(name, asked, read_given(name, files, words), care_of(care))


def _dry_run(screen: RolloutScreen, plan: RolloutPlan, runs_dir: Path, *, as_json: bool) -> int:
    tell_plan(screen, plan)
    found = dry_rollout(plan, runs_dir, tell=lambda text: screen.say(f"  {text}", "dim"))
    state = worst(host.state for host in found)
    if as_json:
        groups = [list(group) for group in waves(plan)]
        document = {"runbook": plan.runbook, "waves": groups, "hosts": [_dry_facts(host) for host in found]}
        show(json.dumps({**document, "is_dry_run": True, "exit_code": state.exit_code}, ensure_ascii=False))
        return state.exit_code
    rows = [[host.host, host.stands, badge_text(host.state.value), host.text] for host in found]
    screen.say()
    for line in _dry_lines(rows, screen.console.width if screen.console.is_terminal else None):
        screen.say(line)
    counts = Counter(host.state for host in found)
    said = ", ".join(f"{counts[each]} {each}" for each in sorted(counts, key=lambda each: each.exit_code, reverse=True))
    screen.say()
    n_hosts = "1 host" if len(found) == 1 else f"{len(found)} hosts"
    screen.say(f"{badge_text(state.value)}  dry run on {n_hosts}: {said}; nothing was changed", "bold")
    _tell_why(screen, [host.record for host in found if host.state is not State.OK])
    return state.exit_code


def _dry_lines(rows: list[list[str]], width: int | None) -> Iterator[str]:
    """The table; on a terminal what a run would do goes on below itself, or below its host where that is too narrow."""
    head = plain_table(("host", "its unit now", "dry run"), [row[:3] for row in rows])
    indent = max(map(len, head)) + 2
    for line, words in zip(head, ["what its run would do", *(row[3].removeprefix(_DRY) for row in rows)], strict=True):
        if width is None:
            yield f"{line:<{indent}}{words}"
        elif width - indent >= _NARROWEST:
            yield from textwrap.wrap(words, width, initial_indent=f"{line:<{indent}}", subsequent_indent=" " * indent)
        else:
            yield line
            yield from textwrap.wrap(words, width, initial_indent="    ", subsequent_indent="    ")


def _dry_facts(host: DryHost) -> dict[str, Any]:
    return {"host": host.host, "stands": host.stands, "state": host.state, "text": host.text, "record": host.record}


def _ask(folder: RolloutFolder, ask: Asked) -> int:
    state = folder.state()
    if state.outcome is not None:
        raise BadParameter(f"{folder.path.name} has ended: nobody is there to ask")
    if state.process_id and not is_alive(state.plan.controller, state.process_id, state.begun_at):
        what, hint = f"its process {state.process_id} is gone", f"opslib rollout --resume {folder.path} goes on"
        raise BadParameter(f"{folder.path.name}: {what}: nobody is there to ask", hint=hint)
    folder.ask(ask)
    show(f"asked {folder.path.name} to {ask}; it is heard between two hosts")
    return 0


def _nothing_else(name: str, *meant: str) -> None:
    """Refuse whatever else was given: a --dry-run that is passed over would act, a --wave would change nothing."""
    others = [option for option in given_names() if option not in (*meant, *_WITH_ALL)]
    if not others:
        return
    if "dry_run" in others:
        raise BadParameter(f"{name} has no --dry-run: it asks each host first, and acts", hint="see opslib survey")
    raise BadParameter(f"{name}: hosts and parameters of a rollout are those of its beginning: give its folder alone")


def _n_touched(folder: RolloutFolder) -> int:
    return sum(1 for progress in folder.state().hosts if progress.found is not None)


def _agree(question: str, plan: RolloutPlan, *, is_yes: bool) -> None:
    if is_yes or not _asks(plan):
        return
    if not sys.stdin.isatty():
        raise ConsentMissing("nobody is there to ask", hint="pass --yes to do what is shown")
    if not click.confirm(question, err=True):
        raise ConsentMissing("the operator did not consent")


def _asks(plan: RolloutPlan) -> bool:
    """Whether consent is a question: not on practice hosts; where the inventory is gone, it is."""
    try:
        return needs_consent(plan.model_copy(update={"parameters": {}}))
    except OpslibError:
        return True
