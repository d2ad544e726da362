"""From a failure to the runbook that goes on: a copy of it in the record, its parameters filled in."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from opslib.app.catalogue import find_runbook
from opslib.app.form import typed
from opslib.app.index import link_to
from opslib.domain.parameters import defaults_of
from opslib.domain.states import State
from opslib.errors import CouldNotFindOut, OpslibError
from opslib.views.panels import next_runbook
from opslib.views.shown import Shown

if TYPE_CHECKING:
    from opslib.app.run import Run, SectionResult


class Next(NamedTuple):
    """The runbook that goes on after a section has failed, and why."""

    runbook: str
    why: str


NEXT: Mapping[str, Next] = {
    "verify-download": Next("10-verify-download", "When the download is mended, verify it again"),
    "plan-memory": Next("20-plan-memory", "Plan again with other figures"),
    "preflight": Next("30-launch", "When that is mended, start it again"),
    "install": Next("30-launch", "Install and start it again"),
    "launch": Next("40-investigate-crash", "Find out why"),
    "investigate": Next("30-launch", "When the cause is mended, start it again"),
    "remedy": Next("30-launch", "When the cause is mended, start it again"),
    "relaunch": Next("40-investigate-crash", "Find out why"),
    "canary": Next("10-verify-download", "Verify what lies on the disk, with level=digest"),
    "benchmark": Next("40-investigate-crash", "If the engine went away, find out why"),
}
UNREACHED = Next("00-survey-hosts", "Look the host over")


def add_next(run: "Run", section: str, result: "SectionResult", shown: Shown) -> Shown:
    """What a section that stopped its run shows, with the way on; a refusal has its own hint."""
    way = UNREACHED if result.exit_code == CouldNotFindOut.exit_code else NEXT.get(section)
    if way is None or result.exit_code not in (None, CouldNotFindOut.exit_code) or result.state is State.OK:
        return shown
    try:
        name, notebook = find_runbook(way.runbook)
    except OpslibError:  # a kit without that notebook
        return shown
    given = parameters_for(run, name)
    copy = run.folder.write_text(f"next-{name}.ipynb", filled_in(notebook, given))
    href = link_to(copy, run.folder.path if run.is_headless else None)
    return next_runbook(shown, name, way.why, command_for(name, given), href=href)


def parameters_for(run: "Run", runbook: str) -> dict[str, Any]:
    """What the next runbook is given: all parameters that both know, the host, and the start that crashed."""
    defaults = defaults_of(runbook)
    given = {name: value for name, value in run.parameters.model_dump().items() if name in defaults}
    if "hosts" in defaults:
        given["hosts"] = list(run.parameters.aliases)
    status = run.answers.get("launch")
    if "invocation" in defaults and status is not None and not run.host.settings.is_rehearsal:
        # A practice host ends with its notebook: the next one lets its unit crash anew.
        given["invocation"] = (status.crash.invocation_id if status.crash else "") or status.invocation_id
    return given


def command_for(runbook: str, given: Mapping[str, Any]) -> str:
    """The command that runs it headless; parameters at their defaults are left out, but for the host and the unit."""
    defaults = defaults_of(runbook)
    named = {
        name: value for name, value in given.items() if value != defaults[name] or name in {"host", "hosts", "unit"}
    }
    words = [f"-p {shlex.quote(f'{name}={_word(value)}')}" for name, value in named.items()]
    return " ".join(["opslib run", runbook, *words])


def _word(value: Any) -> str:
    return "null" if value is None else typed(value)


def filled_in(notebook: Path, given: Mapping[str, Any]) -> str:
    """The text of a runbook whose parameters are filled in, as papermill does it."""
    import nbformat  # noqa: PLC0415 - as papermill
    from papermill.parameterize import parameterize_notebook  # noqa: PLC0415 - takes a while, and most runs are good

    copybook = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    copybook.metadata["papermill"] = nbformat.from_dict({})  # type: ignore[no-untyped-call]  # noted a second time there
    for cell in copybook.cells:
        cell.metadata.setdefault("tags", [])  # papermill asks each
    filled = parameterize_notebook(copybook, dict(given), kernel_name="python3", language="python")
    filled.metadata.pop("papermill", None)
    return str(nbformat.writes(filled)) + "\n"  # type: ignore[no-untyped-call]
