"""One run of a runbook: its parameters, its host, its record, and the gate between its sections."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from opslib.app.binding import open_bound_host
from opslib.app.catalogue import default_runs_dir
from opslib.app.door import guard_kernel
from opslib.app.form import settle_form
from opslib.app.keeping import show_record_note
from opslib.domain.actions import Action, frozen_by
from opslib.domain.host import Host, HostSettings
from opslib.domain.parameter_parts import RunParameters
from opslib.domain.parameters import schema_of, validate_parameters
from opslib.domain.problems import nearest
from opslib.domain.record import RunRecord, SectionRecord, new_record
from opslib.domain.states import Outcome, State, Value, worst
from opslib.errors import UnknownName
from opslib.hosts.careful import CarefulHost
from opslib.hosts.open import LOCAL, open_host
from opslib.records.evidence import redact_again
from opslib.records.folder import RunFolder
from opslib.records.operator import operator
from opslib.records.secrets import reference_secrets


class SectionResult(Value):
    """What a section answers: its state, the sentence an operator reads, and the JSON value kept in the record."""

    state: State
    summary: str
    value: Any = None
    is_headline: bool = False  # part of the sentence of a good outcome
    is_final: bool = True  # False: critical, but a later section may cure it (a crash with a remedy)
    is_dry_end: bool = False  # a dry run ended here, before its first change
    exit_code: int | None = None  # where it isn't the state's own: 4 for a refusal
    cause: str | None = None  # the failure catalogue's id of what went wrong


class Run:
    """What the sections of one notebook share: parameters, host, record, earlier answers, and the gate between them."""

    def __init__(self, parameters: Any, host: Host, folder: RunFolder, record: RunRecord) -> None:
        self.parameters = parameters
        self.host = host
        self.folder = folder
        self.record = record
        self.answers: dict[str, Any] = {}  # what a section hands to later ones, by glossary name
        self.results: dict[str, SectionResult] = {}
        self.stopped_by: str | None = None
        self.closing = ExitStack()  # what lasts as long as the run: its locks, what an end in the middle puts back
        self.is_finished = False  # it came to an outcome of its own

    @property
    def alias(self) -> str:
        """The host's alias; every output names it."""
        return self.host.settings.alias

    @property
    def is_dry_run(self) -> bool:
        """Whether the run only asks, and ends before its first change."""
        return self.record.is_dry_run

    def note(self, text: str) -> None:
        """Keep what befell the run itself (a question asked again, a lock taken over), and tell it."""
        self.record = self.record.model_copy(update={"notes": (*self.record.notes, text)})
        self.folder.write_record(self.record)
        self.tell("note", text, section="run")

    @property
    def is_headless(self) -> bool:
        """Whether nobody is there to click."""
        return bool(os.environ.get("OPSLIB_HEADLESS"))

    def tell(self, kind: str, text: str, *, section: str = "", state: State | None = None, **more: object) -> None:
        """Append one event to the record, and so to a terminal that follows it."""
        event: dict[str, Any] = {"kind": kind, "section": section, "text": text, **more}
        self.folder.append_event(event if state is None else {**event, "state": state.value})

    def keep(self, name: str, result: SectionResult, *, started_at: datetime, duration_s: float) -> None:
        """Record a section's answer; run again, a section replaces what it answered before."""
        self.results[name] = result
        section = SectionRecord(
            name=name,
            state=result.state,
            summary=result.summary,
            value=result.value,
            started_at=started_at,
            duration_s=round(duration_s, 3),
        )
        state = None if result.is_dry_end else result.state  # a dry run has done nothing that could be frozen
        what: Any = {"what": "ran", "state": state, "detail": result.summary, "at": started_at}
        self.record = self.record.with_section(section).with_action(self._action(name, **what))
        self.folder.write_record(self.record)

    def _action(self, section: str, **facts: Any) -> Action:
        by: Any = "headless" if self.is_headless else "JupyterLab"
        return Action(**{"at": datetime.now(UTC), "user": operator(), "by": by, "section": section, **facts})

    def act(self, section: str, what: Literal["refused", "unfroze"], detail: str) -> None:
        """Keep what the operator did besides running sections."""
        self.record = self.record.with_action(self._action(section, what=what, detail=detail))
        self.folder.write_record(self.record)
        self.tell(f"section-{what}", detail, section=section)

    def unfreeze(self, section: str, why: str = "") -> None:
        """Let a section that changed the host run once more in this record, which says who allowed it, and why.

        Raises UnknownName for a section that isn't frozen.
        """
        frozen = [name for name in self.results if frozen_by(self.record.actions, name)]
        if section not in frozen:
            raise UnknownName(f"no section {section!r} has succeeded in this record{nearest(section, frozen)}")
        self.act(section, "unfroze", why or "no reason given")

    def supersede(self, name: str, result: SectionResult) -> None:
        """Let a later finding replace how an earlier section counts in the outcome; its record stays."""
        self.results[name] = result

    def judge(self) -> Outcome:
        """The run's outcome: where it stopped and why, else the worst of what its sections answered."""
        stopper = self.results.get(self.stopped_by or "")
        if stopper is not None and stopper.is_dry_end:
            found = worst(result.state for result in self.results.values())
            bad = [result.summary for result in self.results.values() if result.state is found is not State.OK]
            return Outcome(state=found, reason="; ".join([stopper.summary, *bad[-1:]]))
        if stopper is not None:
            return Outcome(state=stopper.state, reason=f"stopped at {self.stopped_by}: {stopper.summary}")
        if not self.results:
            return Outcome(state=State.UNKNOWN, reason="no section was run")
        state = worst(result.state for result in self.results.values())
        headlines = [result for result in self.results.values() if result.is_headline and result.state is State.OK]
        last = next(result for result in reversed(self.results.values()) if result.state is state)
        # a warning takes no good news back, what is worse does
        told = {State.OK: headlines or [last], State.WARNING: [*headlines, last]}.get(state, [last])
        return Outcome(state=state, reason="; ".join(result.summary for result in told))

    def finish(self, outcome: Outcome) -> None:
        """Close the record with its outcome, and free what the run held."""
        self.is_finished = True
        self.closing.close()
        redact_again(self.folder)  # of what was learned only later
        stopper = self.results.get(self.stopped_by or "")
        stopper = None if stopper and stopper.is_dry_end else stopper
        code = stopper.exit_code if stopper else None
        causes = [result.cause for result in self.results.values() if result.cause]
        cause = stopper.cause if stopper else causes[-1] if causes else None
        self.record = self.record.finished(outcome, datetime.now(UTC), exit_code=code)
        self.record = self.record.model_copy(update={"cause": cause})
        self.folder.write_record(self.record)
        self.tell("outcome", outcome.reason, state=outcome.state)


def begin_run(runbook: str, namespace: Mapping[str, Any]) -> Run:
    """Start a run of `runbook` with the parameters that stand in a notebook's `namespace` (pass `globals()`).

    Raises Refused (BadParameter, UnknownName) before any host is contacted.
    """
    started_at = datetime.now(UTC)
    schema = schema_of(runbook)
    given = {name: namespace[name] for name in schema.model_fields if name in namespace}
    parameters: Any = validate_parameters(runbook, given)
    secrets = reference_secrets(parameters.references)
    host = _bound_host(parameters)
    headless_folder = os.environ.get("OPSLIB_RUN_DIR")
    if headless_folder:
        folder = RunFolder.open(Path(headless_folder), secrets=secrets)
    else:
        named = (parameters.recorded_host, parameters.recorded_unit, runbook)
        folder = RunFolder.create(default_runs_dir(), *named, started_at, secrets=secrets)
    record = new_record(runbook, parameters, host.settings, started_at=started_at)
    guard_kernel(folder)
    facts: dict[str, Any] = {"is_dry_run": bool(os.environ.get("OPSLIB_DRY_RUN"))}
    if headless_folder:
        facts["parent_process_id"] = os.getppid()
    record = record.model_copy(update=facts)
    folder.write_record(record)
    settle_form(runbook)
    run = Run(parameters, host, folder, record)
    if run.is_headless:
        retries = int(os.environ.get("OPSLIB_RETRIES", "0"))
        run.host = CarefulHost(host, retries=retries, is_dry_run=run.is_dry_run, on_retry=run.note)
    if not run.is_headless:
        show_record_note(folder.path)
    return run


def _bound_host(parameters: RunParameters) -> Host:
    """The one host that the run is about; this machine, under the run's own name, where it is about several or none."""
    if len(parameters.aliases) == 1:
        return open_bound_host(parameters.aliases[0])
    return open_host(HostSettings(alias=parameters.recorded_host, address=LOCAL))
