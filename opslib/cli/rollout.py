"""`opslib rollout`: a runbook over many hosts, a canary first."""

import sys
from pathlib import Path
from typing import Any, get_args

import click

from opslib.app.catalogue import default_runs_dir, find_runbook
from opslib.app.given import read_given
from opslib.app.rollout import resume_rollout, run_rollout, undo_rollout
from opslib.app.rollout_dry import dry_rollout
from opslib.app.rollout_planning import needs_consent, plan_rollout, with_consent
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
from opslib.cli.rollout_told import tell_dry_run, tell_end, tell_plan
from opslib.cli.showing import show
from opslib.domain.rollout import RolloutPlan
from opslib.errors import BadParameter, ConsentMissing, OpslibError
from opslib.records.alive import is_alive
from opslib.records.rollout import Asked, RolloutFolder

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
    tell_plan(screen, plan)
    if dry_run:
        found = dry_rollout(plan, place, tell=lambda text: screen.say(f"  {text}", "dim"))
        return tell_dry_run(screen, plan, found, as_json=as_json)
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


def _plan(runbook: str, asked: list[str], files: tuple[Path, ...], words: tuple[str, ...], care: Any) -> RolloutPlan:
    if not runbook:
        raise BadParameter("which runbook? opslib rollout deploy --hosts LABEL", hint="see opslib rollout --help")
    name, _ = find_runbook(runbook)
    return plan_rollout(name, asked, read_given(name, files, words), care_of(care))


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
