"""A runbook without a browser: checked parameters in, papermill, a record folder out."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opslib.app.binding import check_alias
from opslib.app.catalogue import find_runbook
from opslib.app.completing import complete_record
from opslib.app.ending import closed_record
from opslib.app.kernel import KernelControl, execute_runbook
from opslib.app.notify import check_places, notify_end, notify_refusal
from opslib.app.signals import signals_to
from opslib.app.survey import chosen_aliases
from opslib.domain.headless import HeadlessOptions, split_options
from opslib.domain.parameter_parts import RunParameters
from opslib.domain.parameters import SurveyHostsParameters
from opslib.domain.record import RunRecord, new_record
from opslib.domain.states import Outcome
from opslib.errors import Refused
from opslib.records.folder import RunFolder
from opslib.records.secrets import reference_secrets
from opslib.records.tail import EventTail

OnEvent = Callable[[dict[str, Any]], None]

GRACE_S = 60.0  # for the cell to end after an interrupt, and to roll back what was begun; then the kernel is killed


@dataclass(frozen=True)
class RunResult:
    """How a headless run ended, and where its record lies."""

    outcome: Outcome
    folder: Path
    exit_code: int
    record: RunRecord


def run_headless(
    runbook: str,
    given: Mapping[str, Any],
    *,
    runs_dir: Path,
    on_event: OnEvent = lambda _event: None,
    on_folder: Callable[[Path], None] = lambda _path: None,
) -> RunResult:
    """Run a runbook by name with the parameters and options `given`; the record is kept whatever happens.

    Raises Refused (BadParameter, UnknownName) before the folder exists and before any host is contacted.
    SIGINT, SIGTERM, SIGHUP and the option `timeout_s` end the run in order; its record then says `interrupted`, its
    exit code is 3.
    """
    try:
        asked = check_run(runbook, given)
    except Refused as error:
        notify_refusal(given, runbook, error)
        raise
    started_at = datetime.now(UTC)
    options, parameters = asked.options, asked.parameters
    named = (parameters.recorded_host, parameters.recorded_unit, asked.runbook)
    folder = RunFolder.create(runs_dir, *named, started_at, secrets=asked.secrets)
    first = new_record(asked.runbook, parameters, started_at=started_at)
    folder.write_record(first.model_copy(update={"is_dry_run": options.dry_run}))
    on_folder(folder.path)
    control = KernelControl()
    fault = _execute(asked, _chosen(parameters, given), folder, control, on_event)
    record = closed_record(folder, fault, control)
    folder.write_record(record)
    record = _told(options, record, folder, on_event)
    complete_record(folder, lambda text: _hand_on([{"kind": "line", "section": "record", "text": text}], on_event))
    assert record.outcome is not None
    return RunResult(record.outcome, folder.path, record.shown_exit_code, record)


@dataclass(frozen=True)
class AskedRun:
    """A run whose names, parameters and options are right."""

    runbook: str
    notebook: Path
    options: HeadlessOptions
    parameters: RunParameters
    secrets: tuple[str, ...]


def check_run(runbook: str, given: Mapping[str, Any]) -> AskedRun:
    """What would be run; raises Refused for a wrong name, parameter, option, alias or reference. Contacts nobody."""
    name, notebook = find_runbook(runbook)
    options, parameters = split_options(name, given)
    secrets = (*reference_secrets(parameters.references), *check_places(options.notify))
    _check_aliases(parameters)
    return AskedRun(name, notebook, options, parameters, secrets)


def _told(options: HeadlessOptions, record: RunRecord, folder: RunFolder, on_event: OnEvent) -> RunRecord:
    """Notify where it is due; what came of it is in the record, and the outcome stays as it is."""
    for sentence in notify_end(options, record, folder):
        record = record.model_copy(update={"notes": (*record.notes, sentence)})
        event = {"kind": "note", "section": "notify", "text": sentence}
        folder.append_event(event)
        _hand_on([event], on_event)
    folder.write_record(record)
    return record


def _check_aliases(parameters: RunParameters) -> None:
    if isinstance(parameters, SurveyHostsParameters):  # one that may say `all`
        chosen_aliases(parameters.aliases)
        return
    for alias in parameters.aliases:
        check_alias(alias)


def _chosen(parameters: RunParameters, given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.model_dump().items() if name in given}


def _execute(
    asked: AskedRun, parameters: dict[str, Any], folder: RunFolder, control: KernelControl, on_event: OnEvent
) -> BaseException | None:
    """Run the notebook in a thread, so that this one can hand on events and take signals; its error, if any."""
    errors: list[BaseException] = []
    timeout_s, started = asked.options.timeout_s, time.monotonic()

    def work() -> None:
        try:
            execute_runbook(asked.notebook, parameters, folder, control, _variables(asked.options))
        except BaseException as error:  # noqa: BLE001 - judged below: a record is kept whatever happened
            errors.append(error)

    tail = EventTail(folder.path)
    thread = threading.Thread(target=work, name="runbook", daemon=True)
    with signals_to(lambda number: control.stop(number.name)):
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
            _hand_on(tail.read(), on_event)
            if timeout_s and time.monotonic() - started > timeout_s and not control.stopped_by:
                control.stop(f"its timeout of {timeout_s} s")
            control.keep_stopping(GRACE_S)
    _hand_on(tail.read(), on_event)
    return errors[0] if errors else None


def _variables(options: HeadlessOptions) -> dict[str, str]:
    """What the kernel is told of the options."""
    dry = {"OPSLIB_DRY_RUN": "1"} if options.dry_run else {}
    return {"OPSLIB_RETRIES": str(options.retries), **dry}


def _hand_on(events: Iterable[dict[str, Any]], on_event: OnEvent) -> None:
    """Hand on what was told since; a terminal or reader that has left doesn't end the run."""
    for event in events:
        with suppress(OSError):
            on_event(event)
