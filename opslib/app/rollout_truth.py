"""Before a rollout goes on, each host is asked how it stands: what is on the disk is what was known, not what is."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from opslib.app.rollout_host import judged, reach, replaced_unit
from opslib.app.rollout_running import LISTEN_EVERY_S, Rollout
from opslib.app.rollout_worker import record_of
from opslib.domain.rollout import UNDER_WAY, HostStep, UnitFound
from opslib.domain.rollout_state import HostProgress
from opslib.domain.states import State
from opslib.errors import OpslibError
from opslib.records.alive import is_alive
from opslib.workflow.unit_found import gather_found

_AT_ONCE = 8


def ask_truth(rollout: Rollout) -> None:
    """Ask every host that something was done to; what is not as the record says has its turn again."""
    touched = [progress for progress in rollout.state.hosts if progress.begun_at is not None]
    if not touched:
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(touched)), thread_name_prefix="truth") as pool:
        asked = [pool.submit(_settle, rollout, progress) for progress in touched]
        while not all(answer.done() for answer in asked):
            rollout.listen()
            time.sleep(LISTEN_EVERY_S)
    for answer in asked:
        answer.result()


def _settle(rollout: Rollout, progress: HostProgress) -> None:
    alias, step, state, text = progress.host, progress.step, progress.state, progress.text
    if step in UNDER_WAY:
        step, state, text = _cut_run(rollout, progress)
    if not rollout.plan.is_write:
        rollout.note("host", alias, step, text, state=state, is_due=step is not HostStep.PASSED)
        return
    try:
        now = gather_found(reach(rollout, alias), rollout.plan.unit, replaces=replaced_unit(rollout))
    except OpslibError as error:
        # refused as well (a key that is gone from this machine): how it stands, nobody has heard
        words = f"{text}; asked again: {error.message}"
        rollout.note("host", alias, HostStep.UNKNOWN, words, state=State.UNKNOWN, is_due=True)
        return
    if step is HostStep.PASSED:
        _settle_passed(rollout, progress, now, state, text)
        return
    words = f"{text}; asked again: {how_it_stands(progress.found, now)}"
    rollout.note("host", alias, step, words, state=state, is_due=True)


def _settle_passed(rollout: Rollout, progress: HostProgress, now: UnitFound, state: State | None, text: str) -> None:
    """One that has passed stays so while its unit is as it was left and serves."""
    left = progress.left if progress.step is HostStep.PASSED else now
    if left is not None and now.files != left.files:
        wrong = "its unit is not what its run has left: it has been changed since"
    elif not now.is_serving:
        wrong = f"it serves no longer{_rebooted(left, now)}"
    else:
        rollout.note("host", progress.host, HostStep.PASSED, text, state=state, left=now)
        return
    rollout.note("host", progress.host, HostStep.UNKNOWN, f"it had passed; {wrong}", state=State.UNKNOWN, is_due=True)


def how_it_stands(found: UnitFound | None, now: UnitFound) -> str:
    """How a unit stands beside how it was found."""
    if found is None:
        return now.words
    files = "its files are as they were found" if now.files == found.files else "its files were changed"
    return f"{files}, it {now.words}{_rebooted(found, now)}"


def _rebooted(before: UnitFound | None, now: UnitFound) -> str:
    return ", its host was rebooted" if before and before.boot_id and before.boot_id != now.boot_id else ""


def _cut_run(rollout: Rollout, progress: HostProgress) -> tuple[HostStep, State, str]:
    """How a run that nobody watched any more has ended; one that still goes on is waited for."""
    if progress.step is not HostStep.RUNNING:
        return HostStep.UNKNOWN, State.UNKNOWN, "the rollout was cut off before its run began"
    _wait_for_run(rollout, progress)
    named = rollout.folder.path.parent / progress.record if progress.record else None
    path: Path | None = named or record_of(rollout.folder.log_path(progress.host))
    if path is None or not path.is_dir():
        return HostStep.UNKNOWN, State.UNKNOWN, "its run was cut off before it had a record"
    if path.name != progress.record:
        rollout.note("host", progress.host, record=path.name)
    return judged(path)


def _wait_for_run(rollout: Rollout, progress: HostProgress) -> None:
    """A run outlives the rollout that began it: it is let come to its end."""
    controller, number, told = rollout.plan.controller, progress.process_id, False
    while number and is_alive(controller, number, progress.since_at) and not rollout.is_hard:
        if not told:
            rollout.note(
                "host", progress.host, text=f"its run goes on by itself (process {number}): waiting for its end"
            )
            told = True
        time.sleep(LISTEN_EVERY_S)
