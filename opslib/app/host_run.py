"""One runbook on one host, for an engine that may start its task again: what was done is not done twice.

An engine (Prefect, Airflow, a shell loop) starts the same task anew when a worker was lost. The records say what the
task did before: each run that it began names it. One that came to an outcome is the answer; one whose process is still
there is waited for; of one that was lost the host itself is asked, by running the runbook, whose first steps do that.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from opslib.app.binding import is_rehearsal_alias
from opslib.app.catalogue import effect_of, find_runbook
from opslib.app.form import typed
from opslib.app.headless import check_run
from opslib.app.reviewing import select_records
from opslib.domain.parameters import schema_of
from opslib.domain.states import State, Value
from opslib.errors import BadParameter
from opslib.hosts.inventory import load_inventory
from opslib.records.index import RecordEntry, read_entry
from opslib.records.operator import STARTED_BY

Tell = Callable[[str], None]

_ASK_EVERY_S = 1.0
_REFUSED = 4
_STATES = {state.exit_code: state for state in State}


class HostEnd(Value):
    """How a runbook ended on one host."""

    host: str
    state: State
    reason: str
    exit_code: int  # as of `opslib run`
    record: str = ""  # its folder; "" where nothing was begun
    is_found: bool = False  # an earlier start of the same task had come to it

    @property
    def word(self) -> str:
        """The state in one word; a refusal has its own.

        >>> HostEnd(host="a", state=State.UNKNOWN, reason="", exit_code=4).word
        'refused'
        """
        return "refused" if self.exit_code == _REFUSED else self.state.value

    @property
    def is_open(self) -> bool:
        """Whether another try may tell more: it could not be found out, or the host refused (another has its lock)."""
        return self.exit_code == State.UNKNOWN.exit_code or (self.exit_code == _REFUSED and bool(self.record))


def run_once(
    runbook: str,
    host: str,
    given: Mapping[str, Any],
    *,
    runs_dir: Path,
    task: str,
    since: datetime | None = None,
    tell: Tell,
) -> HostEnd:
    """The end of `runbook` on `host` for this `task` (its name in a line): found in records, waited for, or run now.

    Only runs that began after `since` count as this task's, where that is given: what came of those before was told
    already. `tell` gets the lines of the story. Interrupted, it asks the run to end in order, and waits for that.
    """
    name, _ = find_runbook(runbook)
    for begun in earlier_runs(runs_dir, name, host, task, since):
        tell(f"this task began {begun.name} before: {begun.shown_state}")
        entry = _waited_for(begun)
        if entry.status == "finished" and entry.state not in (None, State.UNKNOWN):
            state = State(str(entry.state))
            end = {"state": state, "reason": entry.reason, "exit_code": state.exit_code, "record": entry.folder}
            return HostEnd(host=host, is_found=True, **end)
    return _run(host, run_command(name, host, given, runs_dir), task, tell)


def earlier_runs(
    runs_dir: Path, runbook: str, host: str, task: str, since: datetime | None = None
) -> list[RecordEntry]:
    """The runs that this task began on this host, newest first; each one's record names the task."""
    entries = [entry for entry in select_records(runs_dir, host=host, runbook=runbook) if entry.started_at]
    entries = [entry for entry in entries if since is None or (entry.started_at or since) > since]
    return [entry for entry in entries if entry.user.endswith(started_by(task))]


def started_by(task: str) -> str:
    """How a record's `user` ends where a task of an engine began the run."""
    return f" (by {task})"


def run_command(runbook: str, host: str, given: Mapping[str, Any], runs_dir: Path) -> list[str]:
    """The argument vector of `opslib run` for one host; raises BadParameter where the host is given twice.

    >>> run_command("10-verify-download", "a", {"level": "sample"}, Path("runs"))[3:]
    ['run', '10-verify-download', '-p', 'host=a', '-p', 'level=sample', '--runs-dir', 'runs', '--json']
    """
    chosen = {**chosen_host(runbook, host, given), **given}
    words = [part for name, value in chosen.items() for part in ("-p", f"{name}={_word(value)}")]
    return [sys.executable, "-m", "opslib.cli", "run", runbook, *words, "--runs-dir", str(runs_dir), "--json"]


def check_hosts(runbook: str, hosts: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raise Refused for whatever `opslib run` would refuse on one of them, and for a change that nobody agreed to."""
    for host in hosts:
        asked = check_run(runbook, {**chosen_host(runbook, host, given), **given})
        is_change = effect_of(asked.notebook) == "write" and not asked.options.dry_run
        if is_change and getattr(asked.parameters, "consent", "given") != "given" and not _is_practice(host):
            raise BadParameter("consent: nobody is there to ask when a worker runs this", hint="consent: given")


def _is_practice(host: str) -> bool:
    return is_rehearsal_alias(host) or load_inventory().settings(host).is_rehearsal


def chosen_host(runbook: str, host: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameter that names the host; raises BadParameter where `given` names one as well."""
    if twice := {"host", "hosts"} & given.keys():
        raise BadParameter(f"{min(twice)}: the host is chosen by the task, not by the parameters")
    return {"host": host} if "host" in schema_of(runbook).model_fields else {"hosts": [host]}


def _word(value: Any) -> str:
    return "null" if value is None else typed(value)


def _waited_for(entry: RecordEntry) -> RecordEntry:
    """The record when its run has ended; at once where another machine began it: then the host's lock tells."""
    while entry.status == "running" and entry.controller == os.uname().nodename:
        time.sleep(_ASK_EVERY_S)
        entry = read_entry(Path(entry.folder))
    return entry


def _run(host: str, command: list[str], task: str, tell: Tell) -> HostEnd:
    environment = {**os.environ, STARTED_BY: task}
    with tempfile.TemporaryFile() as document:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=document,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,  # an engine signals its whole group; a second signal would end the run out of order
        )
        try:
            _hand_on(process.stderr, tell)
            process.wait()
        except BaseException:  # the engine ends this task: the run ends in order, and puts back what it had begun
            process.terminate()
            threading.Thread(target=_hand_on, args=(process.stderr, lambda _line: None), daemon=True).start()
            process.wait()
            raise
        document.seek(0)
        return read_end(host, document.read(), process.returncode)


def _hand_on(lines: IO[str] | None, tell: Tell) -> None:
    for line in lines or ():
        if line.strip():
            tell(line.rstrip())


def read_end(host: str, document: bytes, exit_code: int) -> HostEnd:
    """What `opslib run --json` said; a run that was killed said nothing.

    >>> read_end("a", b"", -9).reason
    'opslib run ended with exit status -9 and said nothing'
    """
    found: dict[str, Any] = {}
    with suppress(ValueError, RecursionError):
        found = json.loads(document)
    outcome = found.get("outcome")
    if outcome:
        state, reason = State(outcome["state"]), outcome["reason"]
    elif "error" in found:
        state, reason = State.UNKNOWN, "; ".join(found["error"]["problems"])
    else:
        state, reason = State.UNKNOWN, f"opslib run ended with exit status {exit_code} and said nothing"
    code = exit_code if exit_code in (*_STATES, _REFUSED) else State.UNKNOWN.exit_code
    return HostEnd(host=host, state=state, reason=reason, exit_code=code, record=found.get("record") or "")
