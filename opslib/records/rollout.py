"""The folder of a rollout: its plan, its state as events that are only ever added, what was asked of it, its lock.

`runs/<UTC time>-rollout-<runbook>/` is a record like any other (`record.json`, page, seal), and holds besides
`rollout.json` (the plan), `state.jsonl` (one event a line, on the disk before what it announces is done),
`control.jsonl` (pause, resume, stop), `parameters.yaml` and `logs/` (what each host's run told).
"""

import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from errno import ENOSPC
from io import RawIOBase
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout
from pydantic import ValidationError

from opslib.domain.record import RunRecord
from opslib.domain.record_shape import first_fault
from opslib.domain.redaction import redact_value
from opslib.domain.rollout import RolloutEvent, RolloutPlan
from opslib.domain.rollout_state import RolloutState, fold
from opslib.domain.states import Value
from opslib.errors import CouldNotFindOut, LockHeld, OpslibError, UnknownName, reason_of
from opslib.records.find import find_record
from opslib.records.folder import RunFolder
from opslib.records.operator import operator

PLAN_FILE = "rollout.json"
STATE_FILE = "state.jsonl"
CONTROL_FILE = "control.jsonl"
PARAMETERS_FILE = "parameters.yaml"
LOGS_DIR = "logs"
_LOCKS_DIR = ".rollouts"  # beside the records: a record is sealed while its lock is held
_BEGINNING = b'{"at": "'  # of every event's line
Asked = Literal["pause", "resume", "stop"]


class Wish(Value):
    """What somebody asked of a rollout that runs."""

    at: datetime
    ask: Asked
    by: str = ""


class RolloutFolder:
    """One rollout on this machine's disk; usable from several threads."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._control_offset = 0

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.folder.path

    @classmethod
    def create(cls, runs_dir: Path, plan: RolloutPlan, parameters: str | None = None) -> "RolloutFolder":
        """A new folder with the plan and the parameters in it, or none; raises OpslibError where it can't be made."""
        made = cls(RunFolder.create(runs_dir, "rollout", "", plan.runbook, plan.begun_at))
        try:
            made.folder.write_json(PLAN_FILE, plan.model_dump(mode="json"))
            if parameters is not None:
                made.folder.write_text(PARAMETERS_FILE, parameters)
        except OpslibError:  # a full disk
            shutil.rmtree(made.path, ignore_errors=True)
            raise
        return made

    @classmethod
    def open(cls, runs_dir: Path, name: str) -> "RolloutFolder":
        """An existing rollout by path, name, part of it, or `last`; raises UnknownName for what is none."""
        path = Path(name).expanduser()
        if not path.is_dir():
            path = _newest(runs_dir) if name == "last" else find_record(runs_dir, name)
        if not (path / PLAN_FILE).is_file():
            raise UnknownName(f"{path} is no rollout: it holds no {PLAN_FILE}", hint="opslib runs list names them")
        return cls(RunFolder.open(path))

    def plan(self) -> RolloutPlan:
        """What was planned; raises CouldNotFindOut where that can't be read."""
        try:
            return RolloutPlan.model_validate_json((self.path / PLAN_FILE).read_bytes())
        except OSError as error:
            raise CouldNotFindOut(f"{self.path / PLAN_FILE} can't be read: {reason_of(error)}") from error
        except ValidationError as error:
            raise CouldNotFindOut(f"{self.path / PLAN_FILE} is no plan: {first_fault(error)}") from error

    def events(self) -> Iterator[RolloutEvent]:
        """All whole events; a torn line is left out. Raises CouldNotFindOut where they can't be read."""
        for line in self._lines():
            with suppress(ValueError):
                yield RolloutEvent.model_validate_json(line)

    def check_whole(self) -> None:
        """Raise CouldNotFindOut where events were lost: who was touched, and what was found there, is not known then.

        A line that a killed process has torn loses nothing, as what it announces was not begun; any other that is no
        event does, and so does a host of `record.json` that no event knows.
        """
        n_bad = sum(1 for line in self._lines() if not _is_torn(line) and not _is_event(line))
        known = {f"on {progress.host}" for progress in self.state().hosts if progress.begun_at}
        record = self.folder.read_record()
        names = [section.name for section in record.sections] if record else []
        lost = [name.removeprefix("on ") for name in names if name not in known]
        said = [f"{n_bad} lines are no events" if n_bad else ""]
        said.append(f"it knows nothing of {', '.join(lost)}, which {'was' if len(lost) == 1 else 'were'} touched")
        if n_bad or lost:
            words = "; ".join(filter(None, said if lost else said[:1]))
            raise CouldNotFindOut(
                f"{self.path / STATE_FILE} is damaged: {words}",
                hint="nothing was done; opslib survey and opslib rollback HOST UNIT tell and undo one host at a time",
            )

    def _lines(self) -> list[bytes]:
        try:
            return (self.path / STATE_FILE).read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CouldNotFindOut(f"{self.path / STATE_FILE} can't be read: {reason_of(error)}") from error

    def state(self) -> RolloutState:
        """Where the rollout stands by what is on the disk."""
        return fold(self.plan(), self.events())

    def append(self, event: RolloutEvent) -> None:
        """Add one event, redacted; it is on the disk when this comes back. Raises CouldNotFindOut on a full disk."""
        self._append(STATE_FILE, event)

    def ask(self, ask: Asked, by: str = "") -> None:
        """Ask the process that runs the rollout to pause, to go on, or to stop; it reads it between two hosts."""
        self._append(CONTROL_FILE, Wish(at=datetime.now(UTC), ask=ask, by=by or operator()))

    def forget_wishes(self) -> None:
        """Pass over what was asked of an earlier process."""
        with suppress(OSError):
            self._control_offset = (self.path / CONTROL_FILE).stat().st_size

    def wishes(self) -> list[Wish]:
        """What was asked since the last call."""
        found: list[Wish] = []
        with suppress(OSError), (self.path / CONTROL_FILE).open("rb") as file:
            file.seek(self._control_offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._control_offset += len(line)
                with suppress(ValueError):
                    found.append(Wish.model_validate_json(line))
        return found

    def write_record(self, record: RunRecord) -> None:
        """Replace `record.json`: the rollout as a record like any other."""
        self.folder.write_record(record)

    def log_path(self, host: str) -> Path:
        """Where the run on a host tells its story."""
        return self.path / LOGS_DIR / f"{host}.log"

    @contextmanager
    def held(self) -> Iterator[None]:
        """The rollout's lock while the block lasts; raises LockHeld, naming the process, where another runs it."""
        place = self.path.parent / _LOCKS_DIR
        lock = FileLock(place / f"{self.path.name}.lock", timeout=0, thread_local=False)
        holder = place / f"{self.path.name}.holder"
        try:
            place.mkdir(exist_ok=True)
            lock.acquire()
        except Timeout:
            who = holder.read_text("utf-8").strip() if holder.is_file() else "another process"
            hint = f"opslib rollout --ask stop {self.path} lets it end in order"
            raise LockHeld(f"{who} runs this rollout: {self.path}", hint=hint) from None
        except OSError as error:
            raise CouldNotFindOut(f"{self.path} can't be locked: {reason_of(error)}") from error
        try:
            with suppress(OSError):  # a full disk: then only the name is missing
                holder.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", "utf-8")
            yield
        finally:
            holder.unlink(missing_ok=True)
            lock.release()

    def _append(self, name: str, value: Value) -> None:
        told = redact_value(value.model_dump(mode="json", exclude_defaults=True), self.folder.secrets)
        line = json.dumps(told, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        path = self.path / name
        try:
            with self._lock:
                _append_line(path, line)
        except OSError as error:
            raise CouldNotFindOut(f"{path} could not be written: {reason_of(error)}") from error


def _is_event(line: bytes) -> bool:
    with suppress(ValueError):
        RolloutEvent.model_validate_json(line)
        return True
    return False


def _is_torn(line: bytes) -> bool:
    """Whether it is the beginning of an event, or what a power cut leaves of one."""
    if not line.strip(b"\0"):
        return True
    if line[: len(_BEGINNING)] != _BEGINNING[: len(line)]:
        return False
    try:
        json.loads(line)
    except RecursionError:  # nested as no event is: damage, not its beginning
        return False
    except ValueError:
        return True
    return False


def _append_line(path: Path, line: bytes) -> None:
    """Add a whole line or nothing; one that a killed process has torn is ended first."""
    with path.open("a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            line = line if file.read(1) == b"\n" else b"\n" + line
        try:
            _write_through(file, line)
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise


def _write_through(file: RawIOBase, line: bytes) -> None:
    if file.write(line) != len(line):
        raise OSError(ENOSPC, os.strerror(ENOSPC))
    os.fsync(file.fileno())


def ask(folder: Path, asked: Asked, by: str = "") -> None:
    """Ask the process that runs the rollout in `folder` to pause, resume or stop; raises UnknownName for no rollout."""
    RolloutFolder.open(folder.parent, str(folder)).ask(asked, by)


def read_rollout(folder: Path) -> RolloutState:
    """Where the rollout in `folder` stands; raises UnknownName for no rollout."""
    return RolloutFolder.open(folder.parent, str(folder)).state()


def is_rollout(folder: Path) -> bool:
    """Whether a record folder is a rollout's."""
    return (folder / PLAN_FILE).is_file()


def _newest(runs_dir: Path) -> Path:
    with suppress(OSError):
        for path in sorted(runs_dir.iterdir(), reverse=True):
            if is_rollout(path):
                return path
    raise UnknownName(f"there is no rollout in {runs_dir}")
