"""Undoing a rollout: every host that it touched is brought back to how it was found, and asked whether it is."""

from opslib.app.rollout_host import at_work, reach, replaced_unit
from opslib.app.rollout_running import Rollout
from opslib.domain.host import Host
from opslib.domain.rollout import HostStep, UnitFound
from opslib.domain.rollout_state import HostProgress
from opslib.domain.states import State
from opslib.errors import CouldNotFindOut, OpslibError, Refused
from opslib.records.alive import is_alive
from opslib.workflow import lifecycle
from opslib.workflow.unit_found import gather_found, restore_found

_READY_S = 900.0


def undo_hosts(rollout: Rollout) -> None:
    """One host after the other, the one that was touched last first; what can't be undone is named, and passed over."""
    touched = [progress for progress in rollout.state.hosts if progress.found is not None and progress.begun_at]
    left = [progress for progress in touched if progress.step is not HostStep.UNDONE]
    for progress in sorted(left, key=lambda each: each.begun_at or rollout.plan.begun_at, reverse=True):
        rollout.listen()
        if rollout.state.phase == "stopping":
            return
        _undo(rollout, progress)


def _undo(rollout: Rollout, progress: HostProgress) -> None:
    alias, found = progress.host, progress.found
    assert found is not None
    try:
        _wait_for_run(rollout, progress)
        host = reach(rollout, alias)
        with at_work(rollout, host):
            text = _put_back(rollout, host, found)
    except Refused as error:
        rollout.note("host", alias, HostStep.FAILED, f"not undone: {error}", state=State.CRITICAL)
    except OpslibError as error:
        rollout.note("host", alias, HostStep.UNKNOWN, f"not undone: {error}", state=State.UNKNOWN)
    else:
        rollout.note("host", alias, HostStep.UNDONE, text, state=State.OK)
    finally:
        rollout.release(alias)


def _put_back(rollout: Rollout, host: Host, found: UnitFound) -> str:
    """What was done; raises Refused where the host is not as it was found after that."""
    alias, unit, replaces = host.settings.alias, rollout.plan.unit, replaced_unit(rollout)
    now = gather_found(host, unit, replaces=replaces)
    is_down_meanwhile = now.files != found.files or now.is_up != found.is_up

    def wait(words: str) -> None:
        rollout.note("host", alias, text=words)

    rollout.admit(alias, is_serving=now.is_serving and is_down_meanwhile, on_wait=wait)
    rollout.note("host", alias, text="is brought back to how it was found")
    said = restore_found(host, unit, found, replaces=replaces)
    if found.is_serving:
        report = lifecycle.start(host, unit, ready_s=_READY_S, tell=wait)
        if report.state is not State.OK:
            raise Refused(f"{said}; but it does not serve as it did: {report.summary}", host=alias)
    again = gather_found(host, unit, replaces=replaces)
    other = [path for path in found.files if again.files.get(path) != found.files[path]]
    if other or again.is_up != found.is_up:
        what = f"{other[0]} has other bytes" if other else "it is up" if again.is_up else "it is down"
        raise Refused(f"{said}; but asked again, {what}", host=alias)
    return f"{said}; asked again: it {again.words}"


def _wait_for_run(rollout: Rollout, progress: HostProgress) -> None:
    """A run that still goes on would change the host again."""
    number = progress.process_id
    if progress.step is HostStep.RUNNING and number and is_alive(rollout.plan.controller, number, progress.since_at):
        raise CouldNotFindOut(f"its run still goes on (process {number})", host=progress.host, hint="wait, or end it")
