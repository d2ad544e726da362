"""The run on one host of a rollout: `opslib run` as a process of its own, with a record of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import yaml

from opslib.domain.record import RunRecord
from opslib.errors import CouldNotFindOut, OpslibError, reason_of
from opslib.records.folder import RunFolder

_RECORD = re.compile(r"^record  (\S.*)$", re.MULTILINE)
_SAID = re.compile(r"^opslib: (\S.*)$", re.MULTILINE)


class Worker:
    """One run that was begun; it goes on when this process dies, and its record tells how it ended."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process_id = process.pid
        self.log = log
        self._process = process
        self._is_stopped = False

    @property
    def is_running(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How it ended."""
        return self._process.poll()

    def wait(self, seconds: float) -> None:
        """Wait until it ends, but not longer than that."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def stop(self) -> None:
        """Ask it to end in order, once: it puts back what it has begun."""
        if not self._is_stopped and self.is_running:
            self._is_stopped = True
            self._process.terminate()


def start_worker(
    runbook: str, host: str, *, parameters: Path, runs_dir: Path, log: Path, options: Iterable[str] = ()
) -> Worker:
    """Begin the runbook on a host; raises CouldNotFindOut where its log can't be written (a full disk)."""
    argv = [sys.executable, "-m", "opslib.cli", "run", runbook, "-f", str(parameters)]
    argv += ["-p", f"host={host}", "--runs-dir", str(runs_dir), "--json", *options]
    try:
        log.parent.mkdir(exist_ok=True)
        with log.open("wb") as told:
            # A session of its own, and no pipe to us: Ctrl-C is for the rollout, and its death is not the run's.
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=told,
                start_new_session=True,
                env=_environment(),
            )
    except OSError as error:
        raise CouldNotFindOut(f"the run on {host} could not be begun: {reason_of(error)}") from error
    return Worker(process, log)


def _environment() -> dict[str, str]:
    """What a run is told: not that somebody wants colours, as a kernel is; its log is read here."""
    given = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "CLICOLOR_FORCE")}
    return {**given, "PYTHONUNBUFFERED": "1"}


def parameters_text(parameters: dict[str, object]) -> str:
    """What every host's run is given, as a file of parameters."""
    return yaml.safe_dump(parameters, sort_keys=False, allow_unicode=True)


def record_of(log: Path) -> Path | None:
    """The record folder that a run has named in its log; None before it has one, and where it was refused."""
    found = _RECORD.search(_told(log))
    return Path(found[1]) if found else None


def refusal_in(log: Path) -> str:
    """Why a run that has no record was refused, in its own words."""
    return "; ".join(_SAID.findall(_told(log)))


def read_worker_record(path: Path | None) -> RunRecord | None:
    """The record of a run, None where there is none that can be read."""
    with suppress(OpslibError):
        return RunFolder.open(path).read_record() if path else None
    return None


def _told(log: Path) -> str:
    try:
        return log.read_text("utf-8", "replace")
    except OSError:
        return ""
