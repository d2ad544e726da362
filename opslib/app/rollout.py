"""A rollout from its plan to its end: wave by wave, each host in its own process, its state on the disk."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opslib.app.completing import complete_record
from opslib.app.rollout_host import take_turn
from opslib.app.rollout_record import write_story
from opslib.app.rollout_running import LISTEN_EVERY_S, PATIENCE_S, OnChange, Rollout
from opslib.app.rollout_truth import ask_truth
from opslib.app.rollout_undo import undo_hosts
from opslib.app.rollout_worker import parameters_text
from opslib.domain.rollout import HostStep, RolloutPlan, wave_words, waves
from opslib.domain.rollout_judge import judge_rollout, judge_undo, next_wave
from opslib.domain.rollout_state import RolloutState
from opslib.domain.states import Outcome, State
from opslib.errors import Refused
from opslib.records.rollout import RolloutFolder

OnFolder = Callable[[Path], None]


@dataclass(frozen=True)
class RolloutEnd:
    """How a rollout, or its undoing, came out."""

    outcome: Outcome
    state: RolloutState
    folder: Path


def run_rollout(
    plan: RolloutPlan, runs_dir: Path, *, on_folder: OnFolder = lambda _path: None, on_change: OnChange
) -> RolloutEnd:
    """Carry a checked plan out; its record is kept whatever happens. Raises Refused before anything is contacted."""
    folder = RolloutFolder.create(runs_dir, plan, parameters_text(dict(plan.parameters)))
    on_folder(folder.path)
    with folder.held():
        rollout = Rollout(folder, on_change)
        with _ended_in_order(rollout):
            rollout.note("begun", process_id=os.getpid())
            return _go_on(rollout)


def resume_rollout(folder: RolloutFolder, *, on_change: OnChange) -> RolloutEnd:
    """Go on where a rollout stopped or was killed, once each host's truth is asked again.

    Raises LockHeld where another process runs it, Refused where it was undone, CouldNotFindOut where events were lost.
    """
    with folder.held():
        folder.check_whole()
        rollout = Rollout(folder, on_change)
        if rollout.state.is_undone:
            raise Refused(f"{folder.path.name} was undone", hint="begin a new rollout")
        folder.forget_wishes()
        with _ended_in_order(rollout):
            rollout.note("begun", process_id=os.getpid(), text="resumed")
            ask_truth(rollout)
            return _go_on(rollout)


def undo_rollout(folder: RolloutFolder, *, on_change: OnChange) -> RolloutEnd:
    """Bring every host back to how the rollout found it, the one that was touched last first.

    Raises LockHeld where a process runs it, CouldNotFindOut where events were lost.
    """
    with folder.held():
        folder.check_whole()
        rollout = Rollout(folder, on_change)
        folder.forget_wishes()
        with _ended_in_order(rollout):
            rollout.note("undo-begun", process_id=os.getpid())
            undo_hosts(rollout)
            return _end(rollout, "undo-ended", judge_undo(rollout.state))


@contextmanager
def _ended_in_order(rollout: Rollout) -> Iterator[None]:
    """Signals are taken meanwhile, and the connections closed at the end."""
    try:
        with rollout.signals():
            yield
    finally:
        rollout.close()


def _go_on(rollout: Rollout) -> RolloutEnd:
    """Wave after wave, until none is left or something forbids the next."""
    is_first = True
    while True:
        rollout.listen()
        if not is_first:
            _pause(rollout)
        rollout.wait_while_paused()
        _still_serving(rollout)
        number, hosts = next_wave(rollout.state)
        if not hosts:
            return _end(rollout, "ended", judge_rollout(rollout.state))
        n_waves = len(waves(rollout.plan))
        rollout.note("wave", text=f"{wave_words(number, n_waves)}: {', '.join(hosts)}", wave=number)
        _run_wave(rollout, hosts)
        is_first = False


def _run_wave(rollout: Rollout, hosts: Sequence[str]) -> None:
    """All hosts of a wave, so many at once; comes back when each has had its turn or is not to have it any more."""
    with ThreadPoolExecutor(rollout.plan.workers, thread_name_prefix="rollout") as pool:
        turns: set[Future[None]] = {pool.submit(take_turn, rollout, alias) for alias in hosts}
        left, faults = turns, []
        while left:
            done, left = wait(left, timeout=LISTEN_EVERY_S, return_when=FIRST_COMPLETED)
            faults += [fault for turn in done if (fault := turn.exception())]
            if faults:  # the state can't be written any more: nothing else is begun
                for turn in left:
                    turn.cancel()
            else:
                rollout.listen()
    if faults:
        raise faults[0]


def _pause(rollout: Rollout) -> None:
    """The time between two waves; a stop ends it."""
    if not next_wave(rollout.state)[1] or not rollout.plan.pause_s:
        return
    end_at = time.monotonic() + rollout.plan.pause_s
    rollout.note("note", text=f"pause of {rollout.plan.pause_s} s before the next wave")
    while time.monotonic() < end_at and rollout.state.phase != "stopping":
        rollout.listen()
        time.sleep(LISTEN_EVERY_S)


def _still_serving(rollout: Rollout) -> None:
    """Whether the hosts that have passed serve on; one that doesn't has failed after all."""
    passed = [progress.host for progress in rollout.state.at(HostStep.PASSED)]
    if not rollout.plan.is_write or not passed or not next_wave(rollout.state)[1]:
        return
    end_at = time.monotonic() + PATIENCE_S
    while True:
        serving = rollout.serving(passed)
        lost = [alias for alias, serves in serving.items() if serves is None]
        if not lost or time.monotonic() > end_at or rollout.state.phase == "stopping":
            break
        rollout.listen()
        time.sleep(1)
    for alias, serves in serving.items():
        if serves is False:
            rollout.note("host", alias, HostStep.FAILED, "it passed, and serves no longer", state=State.CRITICAL)
        elif serves is None:
            text = "it passed, and can't be asked any more whether it serves"
            rollout.note("host", alias, HostStep.UNKNOWN, text, state=State.UNKNOWN)


def _end(rollout: Rollout, kind: str, outcome: Outcome) -> RolloutEnd:
    rollout.note(kind, text=outcome.reason, state=outcome.state)
    try:
        write_story(rollout.folder, rollout.state)
    except Exception as error:  # noqa: BLE001 - a record without its story is still a record
        rollout.note("note", text=f"the record's notebook could not be made: {error}")
    complete_record(rollout.folder.folder)
    return RolloutEnd(outcome, rollout.state, rollout.folder.path)
