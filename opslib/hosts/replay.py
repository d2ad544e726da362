"""A host that answers from a recording: what a machine said once, it says again, without a machine."""

import difflib
import json
import re
import shlex
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import opslib.errors
from opslib.domain.host import CommandResult, HostSettings, LineStream, WriteReceipt
from opslib.domain.redaction import redact_value
from opslib.errors import BadParameter, CouldNotFindOut, OpslibError, Refused, UnexpectedAnswer
from opslib.hosts import files
from opslib.hosts.recording import Entry, as_bytes, digest

_MAX_QUOTED = 160  # of a question in a message; a program's arguments are long


class ReplayHost:
    """Answers from a recording that `RecordingHost(..., has_results=True)` wrote.

    The same question asked again gets the recorded answers in their order, then the last one for ever. Whether it is
    asked with sudo doesn't matter, nor does a moment in it (`--since=@SECONDS`): the recording has a clock of its own.
    A question that was never asked raises UnexpectedAnswer, which names the nearest one that was; a write that was
    not recorded, with the same content, raises Refused. `is_paced` gives a stream's lines at the recorded pace.
    """

    def __init__(self, transcript: Path, *, alias: str | None = None, is_paced: bool = False) -> None:
        entries = _read(transcript)
        self._settings = _settings(entries, transcript)
        if alias:
            self._settings = self._settings.model_copy(update={"alias": alias})
        self._transcript = transcript
        self._is_paced = is_paced
        self._lock = threading.Lock()
        self._answers: dict[str, deque[Entry]] = {}
        for entry in entries:
            if key := _key_of(entry):
                self._answers.setdefault(key, deque()).append(entry)

    @property
    def settings(self) -> HostSettings:
        """The recorded host's settings."""
        return self._settings

    def connect(self) -> None:
        """Nothing is connected to."""

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,  # noqa: A002
        timeout_s: float = 30.0,
        sudo: bool = False,
    ) -> CommandResult:
        """What the command answered when it was recorded; one that had input only with the same input."""
        del timeout_s, sudo
        entry = self._next(_run_key(argv, digest(input) if input else None))
        return self._result(entry, argv)

    def run_program(
        self, main: str, arguments: Mapping[str, object], *, timeout_s: float = 60.0, sudo: bool = False
    ) -> CommandResult:
        """What the on-host program answered when it was recorded, with the same arguments."""
        del timeout_s, sudo
        return self._result(self._next(_program_key(main, arguments)), (main,))

    def stream(self, argv: Sequence[str], *, sudo: bool = False) -> AbstractContextManager[LineStream]:
        """The recorded lines of the command, and then how it ended."""
        del sudo
        return self._stream(self._next(_run_key(argv, None)))

    def stream_program(
        self, main: str, arguments: Mapping[str, object], *, sudo: bool = False, python: str = ""
    ) -> AbstractContextManager[LineStream]:
        """The recorded lines of the program, and then how it ended."""
        del sudo, python
        return self._stream(self._next(_program_key(main, arguments)))

    def read_file(self, path: str, *, sudo: bool = False) -> bytes | None:
        """The file as it was read when it was recorded."""
        return files.read_file(self, path, sudo=sudo)

    def write_file(
        self, path: str, content: bytes, *, mode: int = 0o644, owner: str | None = None, sudo: bool = False
    ) -> WriteReceipt:
        """The recorded receipt, when the same content was written there; nothing is ever changed."""
        del owner, sudo
        key = _write_key(path)
        with self._lock:
            recorded = self._answers.get(key, ())
            same = [entry for entry in recorded if (entry["sha256"], entry["mode"]) == (digest(content), mode)]
        if not same:
            what = "with other content" if recorded else "never"
            raise Refused(
                f"{path} was {what} written in the recording",
                host=self._settings.alias,
                hint="a replay changes nothing",
            )
        return WriteReceipt.model_validate(same[0]["receipt"])

    def forward_port(self, remote_port: int) -> AbstractContextManager[int]:
        """A recording has no ports: raises CouldNotFindOut."""
        raise CouldNotFindOut(f"a recording has no port {remote_port}", host=self._settings.alias)

    def close(self) -> None:
        """Nothing is open."""

    def _next(self, key: str) -> Entry:
        with self._lock:
            if key not in self._answers:
                key = next(
                    (known for known in self._answers if _timeless(known) == _timeless(key)), None
                ) or self._unknown(key)
            answers = self._answers[key]
            return answers.popleft() if len(answers) > 1 else answers[0]

    def _unknown(self, key: str) -> NoReturn:
        nearest = difflib.get_close_matches(key, self._answers, n=1, cutoff=0.0)
        was = f"the nearest that was: `{_short(nearest[0])}`" if nearest else "nothing was"
        message = f"`{_short(key)}` was not asked when {self._transcript.name} was recorded; {was}"
        raise UnexpectedAnswer(message, host=self._settings.alias, hint="record it again")

    def _result(self, entry: Entry, argv: Sequence[str]) -> CommandResult:
        self._raise_recorded(entry)
        if "result" not in entry:
            raise UnexpectedAnswer("a stream was recorded there, no result", host=self._settings.alias)
        fields = entry["result"]
        outputs = {name: as_bytes(fields[name]) for name in ("stdout", "stderr")}
        return CommandResult.model_validate({**fields, **outputs, "argv": tuple(argv)})

    @contextmanager
    def _stream(self, entry: Entry) -> Iterator[LineStream]:
        lines = _ReplayedLines(entry.get("lines", []), lambda: self._raise_recorded(entry), is_paced=self._is_paced)
        try:
            yield lines
        finally:
            lines.close()

    def _raise_recorded(self, entry: Entry) -> None:
        if error := entry.get("error"):
            kind: type[OpslibError] = getattr(opslib.errors, error["kind"], CouldNotFindOut)
            raise kind(error["message"], host=self._settings.alias, hint=error["hint"])


class _ReplayedLines:
    """Recorded lines, at once or at the pace at which they came."""

    def __init__(self, lines: Sequence[tuple[float, str]], end: Any, *, is_paced: bool) -> None:
        self._lines = lines
        self._end = end
        self._is_paced = is_paced
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        before = 0.0
        for at, line in self._lines:
            if self._closed.wait(max(0.0, at - before) if self._is_paced else 0.0):
                return
            before = at
            yield as_bytes(line)
        if not self._closed.is_set():
            self._end()

    def close(self) -> None:
        self._closed.set()


def _read(transcript: Path) -> list[Entry]:
    try:
        return [json.loads(line) for line in transcript.read_text("utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise BadParameter(f"cannot read the recording {transcript}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadParameter(f"{transcript} is no recording: {error}") from error


def _settings(entries: Sequence[Entry], transcript: Path) -> HostSettings:
    found = [entry["settings"] for entry in entries if isinstance(entry, dict) and "settings" in entry]
    if not found:
        hint = "record with $OPSLIB_RECORDING; $OPSLIB_TRANSCRIPT keeps vectors only"
        raise BadParameter(f"{transcript} has no host's settings, so no answers", hint=hint)
    return HostSettings.model_validate(found[0])


def _key_of(entry: Entry) -> str:
    if "write" in entry:
        return _write_key(entry["write"])
    if entry.get("program"):
        return _program_key(entry["program"], entry.get("arguments", {}))
    return _run_key(entry["argv"], entry.get("input_sha256")) if "argv" in entry else ""


def _run_key(argv: Sequence[str], input_sha256: str | None) -> str:
    # Redacted as the recording is, so that a question that held a secret is found again.
    return shlex.join(redact_value(list(argv))) + (f" < {input_sha256}" if input_sha256 else "")


def _program_key(main: str, arguments: Mapping[str, object]) -> str:
    return f"{main} {json.dumps(redact_value(dict(arguments)), sort_keys=True)}"


def _timeless(key: str) -> str:
    return re.sub(r"@\d+(\.\d+)?", "@", key)


def _short(key: str) -> str:
    return key if len(key) <= _MAX_QUOTED else f"{key[: _MAX_QUOTED - 1]}…"


def _write_key(path: str) -> str:
    return f"> {path}"
