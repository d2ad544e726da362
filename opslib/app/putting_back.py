"""A headless run that is ended in the middle of its changes puts the host back as it found it."""

from typing import Literal, NamedTuple

from opslib.app.run import Run
from opslib.domain.host import Host
from opslib.domain.launch import LaunchState, LaunchStatus
from opslib.domain.plans import FileChange, Plan
from opslib.errors import OpslibError
from opslib.workflow.facts import gather_unit_status
from opslib.workflow.install import RELOAD
from opslib.workflow.launch import start_unit, stop_unit

_FOUND = "found"  # under which name the run keeps what it found
_UP = ("active", "activating", "reloading")


class Found(NamedTuple):
    """What was there before the run's first change: each file that it changes, the unit's state, and its start."""

    files: dict[str, tuple[FileChange, bytes | None]]
    was_up: bool
    invocation_id: str


def note_found(run: Run, plan: Plan) -> None:
    """Keep what is there before `plan` is applied; from now on an end in the middle puts it back."""
    if not run.is_headless and not getattr(run.parameters, "roll_back_on", ()):
        return  # a person decides
    found: Found | None = run.answers.get(_FOUND)
    if found is None:
        status = gather_unit_status(run.host, run.parameters.unit)
        found = run.answers[_FOUND] = Found({}, status.active_state in _UP, status.invocation_id)
        if run.is_headless:
            run.closing.callback(put_back, run)
    for step in plan.steps:
        if step.file and step.file.path not in found.files:
            sudo = run.host.settings.has_sudo
            found.files[step.file.path] = (step.file, run.host.read_file(step.file.path, sudo=sudo))


def put_back(run: Run) -> None:
    """Bring back what `note_found` has kept, unless the run came to its own end or its engine answers.

    The record says what was done; where it can't be done, what is left and its undo stay to be said.
    """
    found: Found | None = run.answers.pop(_FOUND, None)
    status: LaunchStatus | None = run.answers.get("launch")
    if found is None or run.is_finished or (status is not None and status.state is LaunchState.READY):
        return
    try:
        _say(run, f"a roll-back was begun on {run.alias}, and may be done in part")
    except OpslibError:  # a full disk: nothing is undone of which the record could not tell
        return
    try:
        said = _put_all_back(run, found)
    except OpslibError as error:
        _say(run, "")
        run.note(f"the roll-back failed: {error}")
        return
    _say(run, f"rolled back on {run.alias}: {said}")
    run.tell("note", run.record.left, section="run")


def _say(run: Run, left: str) -> None:
    """Write what is left into the record, before anything else is done."""
    run.record = run.record.model_copy(update={"left": left})
    run.folder.write_record(run.record)


def roll_back(run: Run, why: Literal["corrupt", "worse"]) -> str:
    """Put back what the run changed, where `roll_back_on` names the reason; what was done, in words, or ""."""
    if why not in getattr(run.parameters, "roll_back_on", ()):
        return ""
    found: Found | None = run.answers.pop(_FOUND, None)
    if found is None:
        return "; nothing to roll back: this run changed nothing"
    try:
        said = _put_all_back(run, found)
    except OpslibError as error:
        run.answers[_FOUND] = found
        return f"; the roll-back failed: {error.message}"
    run.answers["undo"] = []  # done
    run.record = run.record.model_copy(update={"left": f"rolled back on {run.alias}: {said}"})
    return f"; rolled back: {said}"


def _put_all_back(run: Run, found: Found) -> str:
    """The run's own unit, then the one that had made room for it."""
    said = _put_back(run.host, run.parameters.unit, found)
    replaced: str | None = run.answers.pop("replaced", None)
    if replaced is None:
        return said
    start_unit(run.host, replaced)
    return f"{said}; {replaced}, which had made room, is started again"


def _put_back(host: Host, unit: str, found: Found) -> str:
    """Files first, then systemd, then the unit as it was: stopped, or running with what it had."""
    changed = [path for path, (change, old) in found.files.items() if _restored(host, change, old)]
    if changed:
        host.run(RELOAD, sudo=True)
    files = f"{len(changed)} files as before" if changed else "no file was changed"
    status = gather_unit_status(host, unit)
    if not found.was_up:
        if status.active_state in _UP or status.sub_state.startswith("auto-restart"):
            stop_unit(host, unit)
            return f"{files}; {unit} is stopped, as it was found"
        return f"{files}; {unit} is not running, as it was found"
    if status.active_state in _UP and status.invocation_id == found.invocation_id:
        return f"{files}; {unit} runs on, as it was found"
    start_unit(host, unit)
    return f"{files}; {unit} was running and is started again with what it had"


def _restored(host: Host, change: FileChange, old: bytes | None) -> bool:
    """Whether a file had to be brought back."""
    sudo = host.settings.has_sudo
    if host.read_file(change.path, sudo=sudo) == old:
        return False
    if old is None:
        host.run(("rm", "--force", change.path), sudo=sudo)
    else:
        host.write_file(change.path, old, mode=change.mode, owner=change.owner, sudo=sudo)
    return True
