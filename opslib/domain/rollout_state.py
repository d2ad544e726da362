"""The state of a rollout, folded from its events: where each host stands, and what the whole is doing."""

from collections.abc import Iterable
from functools import reduce
from typing import Any, Literal

from pydantic import AwareDatetime

from opslib.domain.rollout import BAD, UNDER_WAY, HostStep, RolloutEvent, RolloutPlan, UnitFound, waves
from opslib.domain.states import Outcome, State, Value

Phase = Literal["new", "running", "paused", "stopping", "ended", "undoing", "undone"]
_ASKED: dict[str, Phase] = {"pause": "paused", "resume": "running", "stop": "stopping"}


class HostProgress(Value):
    """Where one host stands."""

    host: str
    wave: int  # 0 is the canary
    step: HostStep = HostStep.UNTOUCHED
    state: State | None = None  # of its run
    text: str = ""
    record: str = ""  # name of the folder of its newest run
    records: tuple[str, ...] = ()
    process_id: int | None = None
    begun_at: AwareDatetime | None = None  # when it was touched first
    since_at: AwareDatetime | None = None
    found: UnitFound | None = None  # before this rollout did anything there
    left: UnitFound | None = None
    is_due: bool = True


class RolloutState(Value):
    """What is known of a rollout after some of its events."""

    plan: RolloutPlan
    hosts: tuple[HostProgress, ...]
    phase: Phase = "new"
    asked: str = ""  # what was asked last through the control file or by a signal, and by whom
    wave: int | None = None  # the newest that began
    process_id: int | None = None
    begun_at: AwareDatetime | None = None  # the newest process's
    ended_at: AwareDatetime | None = None
    is_undone: bool = False  # undoing was begun: it can't go on
    outcome: Outcome | None = None
    notes: tuple[str, ...] = ()

    def host(self, alias: str) -> HostProgress:
        """Where that host stands; KeyError for one that the rollout isn't about."""
        return {progress.host: progress for progress in self.hosts}[alias]

    def at(self, *steps: HostStep) -> tuple[HostProgress, ...]:
        """The hosts that stand at one of these steps, in the order of their turns."""
        return tuple(progress for progress in self.hosts if progress.step in steps)

    @property
    def untouched(self) -> tuple[str, ...]:
        """The hosts that nothing was done to."""
        return tuple(progress.host for progress in self.at(HostStep.UNTOUCHED))

    @property
    def failures(self) -> tuple[HostProgress, ...]:
        """The hosts that came to no good end and haven't a turn before them."""
        return tuple(progress for progress in self.at(*BAD) if not progress.is_due)

    @property
    def under_way(self) -> tuple[HostProgress, ...]:
        """The hosts that something is being done to."""
        return self.at(*UNDER_WAY)


def new_state(plan: RolloutPlan) -> RolloutState:
    """The state before the first event."""
    numbers = {alias: number for number, group in enumerate(waves(plan)) for alias in group}
    return RolloutState(plan=plan, hosts=tuple(HostProgress(host=alias, wave=numbers[alias]) for alias in plan.hosts))


def fold(plan: RolloutPlan, events: Iterable[RolloutEvent]) -> RolloutState:
    """The state after all events."""
    return reduce(after, events, new_state(plan))


def after(state: RolloutState, event: RolloutEvent) -> RolloutState:
    """The state after one more event; of a host that it isn't about it knows nothing, and stays."""
    match event.kind:
        case "host":
            changed: dict[str, Any] = {"hosts": tuple(_moved(progress, event) for progress in state.hosts)}
        case "begun":
            changed = {
                "hosts": tuple(_due_again(progress) for progress in state.hosts),
                "phase": "running",
                "asked": "",
                "process_id": event.process_id,
                "begun_at": event.at,
                "ended_at": None,
                "outcome": None,
            }
        case "wave":
            changed = {"wave": event.wave}
        case "asked":
            word = event.text.partition(" ")[0]
            changed = {"asked": event.text, "phase": _asked(state.phase, word)}
        case "note":
            changed = {"notes": (*state.notes, event.text)}
        case "undo-begun":
            changed = {
                "phase": "undoing",
                "is_undone": True,
                "process_id": event.process_id,
                "begun_at": event.at,
                "ended_at": None,
                "outcome": None,
            }
        case "ended" | "undo-ended":
            outcome = Outcome(state=event.state or State.UNKNOWN, reason=event.text)
            phase: Phase = "ended" if event.kind == "ended" else "undone"
            changed = {"phase": phase, "ended_at": event.at, "outcome": outcome}
    return state.model_copy(update=changed)


def _asked(phase: Phase, word: str) -> Phase:
    """What was asked; a stop stays one, and what has ended is past asking."""
    is_open = phase in ("running", "paused") or (phase == "undoing" and word == "stop")
    return _ASKED.get(word, phase) if is_open else phase


def _due_again(progress: HostProgress) -> HostProgress:
    """A new process gives every host a turn that has not passed."""
    return progress if progress.step is HostStep.PASSED else progress.model_copy(update={"is_due": True})


def _moved(progress: HostProgress, event: RolloutEvent) -> HostProgress:
    if progress.host != event.host:
        return progress
    changed: dict[str, Any] = {"text": event.text or progress.text, **_stepped(progress, event)}
    if event.state is not None:
        changed["state"] = event.state
    if event.record and event.record not in progress.records:
        changed |= {"record": event.record, "records": (*progress.records, event.record)}
    if event.process_id is not None:
        changed["process_id"] = event.process_id
    if event.found is not None:
        changed["found"] = progress.found or event.found  # what a second attempt finds is not what was there before
    if event.left is not None:
        changed["left"] = event.left
    return progress.model_copy(update=changed)


def _stepped(progress: HostProgress, event: RolloutEvent) -> dict[str, Any]:
    """What an event says of the host's step."""
    if event.step is None:
        return {}
    changed: dict[str, Any] = {"is_due": bool(event.is_due)}
    if event.step is not HostStep.UNTOUCHED:
        changed["begun_at"] = progress.begun_at or event.at
    if event.step is not progress.step:
        changed |= {"step": event.step, "since_at": event.at, "text": event.text, "state": event.state}
        if event.step is HostStep.RUNNING:  # what was known of an earlier run is not this one's
            changed |= {"record": "", "process_id": None}
    return changed
