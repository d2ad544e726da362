"""A scenario handed to a person without its name: a copy of a runbook on a practice host, and the answer at the end."""

import base64
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from opslib.app.catalogue import default_runs_dir, find_runbook
from opslib.app.scenario_table import readable
from opslib.domain.problems import nearest
from opslib.domain.record import RunRecord
from opslib.domain.states import Value
from opslib.errors import Refused, UnknownName
from opslib.records.folder import RunFolder
from opslib.records.index import list_records
from opslib.rehearsal.scenarios import list_scenarios, load_scenario

PREFIX = "drill-"
RUNBOOK = "90-deploy"


class Drill(Value):
    """One drill: its neutral name, the runbook's copy, and the scenario, sealed so that nobody reads it by chance."""

    name: str
    runbook: str
    begun_at: datetime
    sealed: str

    @property
    def alias(self) -> str:
        """The host's alias, which says nothing about the scenario."""
        return f"rehearsal:{self.name}"

    @property
    def scenario(self) -> str:
        """What it really is."""
        return base64.b64decode(self.sealed).decode()

    @property
    def notebook(self) -> Path:
        """The copy that the person runs."""
        return drills_dir() / f"{self.name}.ipynb"


def drills_dir() -> Path:
    """Where drills lie: beside the records."""
    return default_runs_dir() / "drills"


def begin_drill(
    scenario: str | None = None, *, runbook: str = RUNBOOK, choose: Callable[[Sequence[str]], str] = secrets.choice
) -> Drill:
    """Make a drill of a scenario, or of any: its notebook has the parameters that the scenario needs.

    Raises UnknownName for an unknown scenario or runbook.
    """
    from opslib.app.continuing import filled_in  # noqa: PLC0415 - brings papermill

    loaded = load_scenario(scenario or choose(list_scenarios()))
    name, notebook = find_runbook(runbook)
    drill = Drill(
        name=f"{PREFIX}{secrets.token_hex(2)}",
        runbook=name,
        begun_at=datetime.now(UTC),
        sealed=base64.b64encode(loaded.name.encode()).decode(),
    )
    given = {**(loaded.parameters if name == RUNBOOK else {}), "host": drill.alias}
    drills_dir().mkdir(parents=True, exist_ok=True)
    drill.notebook.write_text(filled_in(notebook, given), "utf-8")
    (drills_dir() / f"{drill.name}.json").write_text(drill.model_dump_json() + "\n", "utf-8")
    return drill


def list_drills() -> list[Drill]:
    """All drills, the newest first; a file that a full disk or a kill left torn is none."""
    found: list[Drill] = []
    for path in drills_dir().glob(f"{PREFIX}*.json"):
        with suppress(OSError, ValueError):  # pydantic's ValidationError and UnicodeDecodeError are ValueErrors
            found.append(Drill.model_validate_json(path.read_text("utf-8")))
    return sorted(found, key=lambda drill: drill.begun_at, reverse=True)


def find_drill(name: str | None = None) -> Drill:
    """The drill of that name, or the newest; raises UnknownName."""
    known = {drill.name: drill for drill in list_drills()}
    if not known:
        raise UnknownName("there is no drill yet", hint="opslib drill --random")
    wanted = next(iter(known)) if name is None else name
    if wanted not in known:
        raise UnknownName(f"unknown drill {wanted!r}{nearest(wanted, list(known))}")
    return known[wanted]


def is_drill(alias: str) -> bool:
    """Whether an alias is a drill's.

    >>> is_drill("rehearsal:drill-7f3a"), is_drill("rehearsal:healthy")
    (True, False)
    """
    return alias.startswith(f"rehearsal:{PREFIX}")


def run_of(drill: Drill) -> RunRecord | None:
    """The newest run of a drill that came to its end, if there is one."""
    for entry in list_records(default_runs_dir()):
        if entry.host == drill.alias and entry.status == "finished":
            return RunFolder.open(Path(entry.folder)).read_record()
    return None


def reveal(drill: Drill, *, is_given_up: bool = False) -> list[str]:
    """What a drill was, and what its run came to, as lines.

    Raises Refused while no run of it has come to its end, unless it is given up.
    """
    record = run_of(drill)
    if record is None and not is_given_up:
        hint = f"run {drill.notebook} to its outcome, or `opslib drill --reveal --give-up {drill.name}`"
        raise Refused(f"{drill.name} is not over: none of its runs has an outcome", hint=hint)
    scenario = load_scenario(drill.scenario)
    expected = scenario.expected
    lines = [
        f"{drill.name} was {scenario.name}: {scenario.sentence}",
        f"expected: {expected.state} (exit {expected.exit_code}), cause {expected.cause}",
        f"in the record: {readable(expected.sentence)}",
    ]
    if record is not None and record.outcome is not None:
        lines.append(
            f"your run: {record.outcome.state} (exit {record.shown_exit_code}), cause {record.cause or 'none'}"
        )
    return lines


def lab_command(drill: Drill) -> list[str]:
    """What opens a drill's notebook in JupyterLab, with its saves kept as a record."""
    root = default_runs_dir().parent
    server = [f"--ServerApp.root_dir={root}", "--ServerApp.jpserver_extensions=opslib.app.keeping=True"]
    return [sys.executable, "-m", "jupyter", "lab", *server, str(drill.notebook)]


def open_in_lab(drill: Drill) -> int:
    """Run JupyterLab on a drill's notebook until it is ended; its exit status."""
    return subprocess.run(lab_command(drill), check=False).returncode
