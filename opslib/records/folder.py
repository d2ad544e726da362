"""The folder of one run: every file written by atomic replace, every text redacted at this door."""

import json
import os
import re
import socket
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from opslib.domain.big_outputs import shorten_outputs
from opslib.domain.record import SCHEMA_VERSION, RunRecord
from opslib.domain.record_shape import first_fault, misshapen
from opslib.domain.redaction import named_secrets, redact, redact_notebook, redact_value
from opslib.errors import CouldNotFindOut, Refused, UnknownName, reason_of
from opslib.records.operator import operator, versions
from opslib.records.secrets import environment_secrets

RECORD_FILE = "record.json"
EVENTS_FILE = "events.jsonl"
NOTEBOOK_FILE = "notebook.ipynb"
HTML_FILE = "record.html"
EVIDENCE_DIR = "evidence"
_ROOM = "make room there, or name another place for records (--runs-dir, or OPSLIB_RUNS)"


class RunFolder:
    """One record: `runs/<UTC time>-<host>-<unit>-<runbook>/`; usable from several threads."""

    def __init__(self, path: Path, *, secrets: Iterable[str] = ()) -> None:
        self.path = path
        self.secrets: tuple[str, ...] = environment_secrets(os.environ)
        self.add_secrets(secrets)
        self._lock = threading.Lock()

    @classmethod
    def create(
        cls,
        runs_dir: Path,
        host: str,
        unit: str,
        runbook: str,
        started_at: datetime,
        *,
        secrets: Iterable[str] = (),
    ) -> "RunFolder":
        """A new, empty folder; a name that is taken gets a number. Raises Refused where it can't be made."""
        stamp = started_at.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        name = "-".join(filter(None, (stamp, safe_name(host), safe_name(unit), safe_name(runbook))))
        for number in range(1, 1000):
            path = runs_dir / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise _not_made(runs_dir, path, error) from error
            return cls(path.resolve(), secrets=secrets)
        raise CouldNotFindOut(f"no free name for a record {name} in {runs_dir}")

    @classmethod
    def open(cls, path: Path, *, secrets: Iterable[str] = ()) -> "RunFolder":
        """An existing record folder; raises UnknownName where there is none."""
        if not path.is_dir():
            raise UnknownName(f"no record folder {path}")
        return cls(path.resolve(), secrets=secrets)

    @property
    def notebook_path(self) -> Path:
        """The executed notebook."""
        return self.path / NOTEBOOK_FILE

    @property
    def html_path(self) -> Path:
        """The offline page."""
        return self.path / HTML_FILE

    def write_json(self, name: str, value: object) -> Path:
        """Write a JSON file, redacted."""
        value = json.loads(json.dumps(value, ensure_ascii=False, default=str))
        text = json.dumps(redact_value(value, self.secrets), indent=2, ensure_ascii=False)
        return self._write(name, text.encode() + b"\n")

    def write_text(self, name: str, text: str) -> Path:
        """Write a text file, redacted."""
        self.learn_secrets(text)
        return self._write(name, redact(text, self.secrets).encode("utf-8", "replace"))

    def add_evidence(self, name: str, content: bytes, start: str = "") -> Path:
        """Keep evidence under `evidence/`, that of one start in a folder of its own; what is text is redacted."""
        with suppress(UnicodeDecodeError):
            text = content.decode("utf-8")
            self.learn_secrets(text)
            content = redact(text, self.secrets).encode()
        return self._write("/".join(filter(None, (EVIDENCE_DIR, safe_name(start), safe_name(name)))), content)

    def append_event(self, event: Mapping[str, Any]) -> None:
        """Add one line to the event file, redacted and flushed; `at` is filled in where it is missing."""
        stamped = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **event}
        line = json.dumps(redact_value(stamped, self.secrets), ensure_ascii=False, default=str) + "\n"
        try:
            with self._lock, (self.path / EVENTS_FILE).open("ab") as file:
                file.write(line.encode("utf-8", "replace"))
        except OSError as error:
            said = f"{self.path / EVENTS_FILE} could not be written: {error.strerror}"
            raise CouldNotFindOut(said, hint=_ROOM) from error

    def events(self) -> Iterator[dict[str, Any]]:
        """All whole events so far; a torn last line is left out."""
        with suppress(FileNotFoundError):
            for line in (self.path / EVENTS_FILE).read_bytes().splitlines():
                with suppress(ValueError, RecursionError):
                    yield json.loads(line)

    def add_secrets(self, secrets: Iterable[str]) -> None:
        """Make more values known as secret from now on."""
        self.secrets = tuple(dict.fromkeys((*self.secrets, *filter(None, secrets))))

    def write_notebook(self, notebook: Mapping[str, Any], *, replace: tuple[str, str] = ("", "")) -> Path:
        """Replace the notebook, redacted, big outputs beside it; every text `replace[0]` becomes `replace[1]`."""
        short, beside = shorten_outputs(redact_notebook(notebook, self.secrets))
        for name, text in beside.items():
            content = text.encode("utf-8", "replace")
            if not (self.path / name).is_file() or (self.path / name).stat().st_size != len(content):
                self._write(name, content)
        text = json.dumps(short, indent=1, ensure_ascii=False)
        if replace[0]:
            text = text.replace(*replace)
        return self._write(NOTEBOOK_FILE, text.encode("utf-8", "replace") + b"\n")

    def learn_secrets(self, *texts: str) -> None:
        """Make known as secret what texts themselves say is one (a unit's environment, a key given by a flag)."""
        self.add_secrets(secret for text in texts for secret in named_secrets(text))

    def write_record(self, record: RunRecord) -> Path:
        """Replace `record.json`; who runs it, where and in which process is filled in where it is missing."""
        here = {
            "user": operator(),
            "controller": socket.gethostname(),
            "process_id": os.getpid(),
            "versions": versions(),
        }
        missing = {name: value for name, value in here.items() if not getattr(record, name)}
        record = record.model_copy(update=missing)
        try:
            return self.write_json(RECORD_FILE, record.model_dump(mode="json"))
        except CouldNotFindOut:
            self.drop_if_empty()
            raise

    def drop_if_empty(self) -> None:
        """Take the folder away while nothing is in it: a run that could not begin leaves none."""
        with suppress(OSError):
            self.path.rmdir()

    def read_record(self) -> RunRecord | None:
        """The record so far, or None where there is none yet; raises CouldNotFindOut for one that can't be read."""
        path = self.path / RECORD_FILE
        try:
            if not path.is_file():  # a FIFO would keep its reader waiting
                return None
            content = path.read_bytes()
        except OSError as error:
            raise CouldNotFindOut(f"{path} can't be read: {reason_of(error)}") from error
        try:
            record = RunRecord.model_validate_json(content)
        except ValidationError as error:
            newer = re.match(rb'\s*{\s*"schema_version":\s*(\d{1,6})\b', content)
            raise self._no_record(first_fault(error), int(newer[1]) if newer else 0) from error
        if (fault := misshapen(record)) or record.schema_version > SCHEMA_VERSION:
            raise self._no_record(fault, record.schema_version)
        return record

    def _no_record(self, why: str, version: int) -> CouldNotFindOut:
        if version > SCHEMA_VERSION:
            why = f"a newer opslib wrote it (version {version} of its format, not {SCHEMA_VERSION})"
        hint = f"opslib runs verify {self.path} says whether it was altered since it was sealed"
        return CouldNotFindOut(f"{self.path / RECORD_FILE} is no record that can be read: {why}", hint=hint)

    def _write(self, name: str, content: bytes) -> Path:
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, content)
        except OSError as error:
            raise CouldNotFindOut(f"{path} could not be written: {error.strerror}", hint=_ROOM) from error
        return path


def atomic_write(path: Path, content: bytes) -> None:
    """Replace a file so that a reader sees the old or the new content, never a part, also after a power cut."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _not_made(runs_dir: Path, path: Path, error: OSError) -> Refused:
    """Which part of the way to a record folder is in the way."""
    there = next((part for part in (path, *path.parents) if os.path.lexists(part)), path)
    what = f"{there} is no directory" if not there.is_dir() else f"in {there}: {reason_of(error)}"
    hint = "give a directory that this login may write with --runs-dir or $OPSLIB_RUNS"
    return Refused(f"--runs-dir {runs_dir}: the record folder could not be made: {what}", hint=hint)


def safe_name(text: str) -> str:
    """A text as a part of a file name: letters, digits, dot, underscore, hyphen; at most 80 characters.

    >>> safe_name("rehearsal:port-in-use"), safe_name("../etc/passwd")
    ('rehearsal-port-in-use', 'etc-passwd')
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:80]
