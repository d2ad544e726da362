"""A runbook without a browser: checked parameters in, papermill, a record folder out."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import opslib.errors
from opslib.app.binding import check_alias
from opslib.app.catalogue import find_runbook
from opslib.app.kernel import KernelControl, execute_runbook
from opslib.app.survey import chosen_aliases
from opslib.domain.parameters import RunParameters, SurveyHostsParameters, validate_parameters
from opslib.domain.record import RunRecord, new_record
from opslib.domain.redaction import redact
from opslib.domain.states import Outcome, State
from opslib.errors import OpslibError
from opslib.records.folder import RunFolder
from opslib.records.html import export_html
from opslib.records.secrets import reference_secrets
from opslib.records.tail import EventTail

OnEvent = Callable[[dict[str, Any]], None]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_S = 15.0  # for the cell to end after an interrupt; then the kernel is killed


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
    """Run a runbook by name with the parameters `given`; the record is kept whatever happens.

    Raises Refused (BadParameter, UnknownName) before the folder exists and before any host is contacted.
    SIGINT, SIGTERM and SIGHUP end the run in order; its record then says `interrupted`, its exit code is 3.
    """
    name, notebook = find_runbook(runbook)
    parameters = validate_parameters(name, given)
    secrets = reference_secrets(parameters.references)
    _check_aliases(parameters)
    started_at = datetime.now(UTC)
    named = (parameters.recorded_host, parameters.recorded_unit, name)
    folder = RunFolder.create(runs_dir, *named, started_at, secrets=secrets)
    folder.write_record(new_record(name, parameters, started_at=started_at))
    on_folder(folder.path)
    control = KernelControl()
    error = _execute(notebook, _chosen(parameters, given), folder, control, on_event)
    record = _closed(folder, error, control)
    folder.write_record(record)
    _export(folder, on_event)
    assert record.outcome is not None
    return RunResult(record.outcome, folder.path, record.shown_exit_code, record)


def _check_aliases(parameters: RunParameters) -> None:
    if isinstance(parameters, SurveyHostsParameters):  # one that may say `all`
        chosen_aliases(parameters.aliases)
        return
    for alias in parameters.aliases:
        check_alias(alias)


def _chosen(parameters: RunParameters, given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.model_dump().items() if name in given}


def _execute(
    notebook: Path, parameters: dict[str, Any], folder: RunFolder, control: KernelControl, on_event: OnEvent
) -> BaseException | None:
    """Run the notebook in a thread, so that this one can hand on events and take signals; its error, if any."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            execute_runbook(notebook, parameters, folder, control)
        except BaseException as error:  # noqa: BLE001 - judged below: a record is kept whatever happened
            errors.append(error)

    tail = EventTail(folder.path)
    thread = threading.Thread(target=work, name="runbook", daemon=True)
    with _signals_to(control):
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
            _hand_on(tail, on_event)
            control.keep_stopping(GRACE_S)
    _hand_on(tail, on_event)
    return errors[0] if errors else None


def _hand_on(tail: EventTail, on_event: OnEvent) -> None:
    """Hand on what was told since; a terminal or reader that has left doesn't end the run."""
    for event in tail.read():
        with suppress(OSError):
            on_event(event)


@contextmanager
def _signals_to(control: KernelControl) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP stop the run instead of this process, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        control.stop(signal.Signals(number).name)

    previous = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _closed(folder: RunFolder, error: BaseException | None, control: KernelControl) -> RunRecord:
    """The record's last state: its own outcome, or why it has none."""
    record = folder.read_record()
    assert record is not None  # written before the kernel was started
    now = datetime.now(UTC)
    last = record.sections[-1].name if record.sections else "the beginning"
    if control.stopped_by:
        if record.outcome is not None:
            return record
        where = _running_section(folder) or f"after {last}"
        return record.interrupted(f"interrupted by {control.stopped_by} {where}{_left_on_host(record)}", now)
    if record.outcome is not None:
        return record
    name, sentence = _one_line(error, folder.secrets)
    refused = getattr(opslib.errors, name, OpslibError)
    code = refused.exit_code if isinstance(refused, type) and issubclass(refused, OpslibError) else None
    reason = f"the runbook ended after {last}: {sentence}" if error else f"the runbook ended after {last}, undecided"
    outcome = Outcome(state=State.UNKNOWN, reason=reason)
    if name == "DeadKernelError":
        return record.interrupted(f"the kernel died after {last}{_left_on_host(record)}", now)
    return record.finished(outcome, now, exit_code=code)


def _running_section(folder: RunFolder) -> str:
    """The words "during NAME" for the section that had begun and not ended; "" where none had."""
    begun = ""
    for event in folder.events():
        if event.get("kind") == "section-started":
            begun = str(event.get("section", ""))
        elif event.get("kind") == "section-ended" and event.get("section") == begun:
            begun = ""
    return f"during {begun}" if begun else ""


def _left_on_host(record: RunRecord) -> str:
    """What an interrupted run leaves there: a unit that was installed may be running, and how both are undone."""
    undo = [
        command
        for section in reversed(record.sections)
        if isinstance(section.value, dict) and section.name in {"install", "remedy"}
        for command in section.value.get("undo") or (section.value.get("applied") or {}).get("undo") or ()
    ]
    if not undo:
        return ""
    stop = f"sudo systemctl stop {record.unit}"
    return f"; {record.unit} is installed and may be running: {stop}; undo: {' && '.join(undo)}"


def _one_line(error: BaseException | None, secrets: tuple[str, ...]) -> tuple[str, str]:
    """Name and sentence of an error; papermill wraps that of the cell."""
    if error is None:
        return "", ""
    name = getattr(error, "ename", type(error).__name__)
    lines = str(getattr(error, "evalue", error)).strip().splitlines() or [""]
    return name, redact(f"{name}: {lines[0]}", secrets)


def _export(folder: RunFolder, on_event: OnEvent) -> None:
    """The offline page; that it can't be drawn is told, and is no reason to lose the outcome."""
    with suppress(FileNotFoundError):
        try:
            export_html(folder)
        except Exception as error:  # noqa: BLE001
            on_event({"kind": "line", "section": "record", "text": f"the HTML page could not be made: {error}"})
