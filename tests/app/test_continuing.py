"""The way on after a failure: a copy of the next runbook with its parameters filled in, and the same as a command."""

import asyncio
import shlex
import threading
from datetime import UTC, datetime
from pathlib import Path

import nbformat
import pytest

from opslib.app.continuing import NEXT, UNREACHED, command_for, filled_in
from opslib.app.given import read_given
from opslib.app.run import Run, SectionResult
from opslib.app.section import INTERRUPTED, section, waiting_section
from opslib.domain.parameters import RUNBOOKS, validate_parameters
from opslib.domain.record import new_record
from opslib.domain.states import State
from opslib.errors import CouldNotFindOut
from opslib.records.folder import RunFolder
from opslib.views.shown import Shown
from tests.fakes import FakeHost

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path):
    parameters = validate_parameters("30-launch", {"host": "gpu-a", "unit": "vllm-b", "port": 8001})
    folder = RunFolder.create(tmp_path, "gpu-a", "vllm-b", "30-launch", datetime.now(UTC))
    record = new_record("30-launch", parameters, started_at=datetime.now(UTC))
    return Run(parameters, FakeHost(alias="gpu-a"), folder, record)


def asked(name, run, answer):
    """A section of this name that answers, or raises, what is given."""

    @section(name)
    def ask(run):
        if isinstance(answer, BaseException):
            raise answer
        return answer, Shown("<p>it failed</p>", "it failed")

    return ask(run)


@pytest.mark.parametrize("name", NEXT)
def test_each_failure_leads_to_a_runbook_with_its_parameters(name, run, monkeypatch):
    """A critical section ends with a link to a filled-in copy that lies in the record, and a command to type."""
    monkeypatch.setenv("OPSLIB_HEADLESS", "1")
    shown = asked(name, run, SectionResult(state=State.CRITICAL, summary="it failed"))
    copy = f"next-{NEXT[name].runbook}.ipynb"
    assert f'href="{copy}"' in shown.html
    assert f"opslib run {NEXT[name].runbook} -p host=gpu-a -p unit=vllm-b" in shown.text
    notebook = nbformat.read(run.folder.path / copy, as_version=4)
    injected = next(cell for cell in notebook.cells if "injected-parameters" in cell.metadata.get("tags", []))
    assert 'host = "gpu-a"' in injected.source
    assert 'unit = "vllm-b"' in injected.source


def test_an_unreachable_host_leads_to_the_survey(run, monkeypatch):
    """What could not be found out leads to the look over that host."""
    monkeypatch.setenv("OPSLIB_HEADLESS", "1")
    shown = asked("launch", run, CouldNotFindOut("no answer"))
    assert f"opslib run {UNREACHED.runbook} -p 'hosts=[gpu-a]'" in shown.text


def test_a_good_answer_leads_nowhere(run):
    """Nothing is added to what is ok, or to what a later section may cure."""
    assert asked("launch", run, SectionResult(state=State.OK, summary="ready")).text == "it failed"
    curable = SectionResult(state=State.CRITICAL, summary="crashed", is_final=False)
    assert asked("launch", run, curable).text == "it failed"


@pytest.mark.parametrize("runbook", [name for name in RUNBOOKS if (ROOT / f"notebooks/{name}.ipynb").exists()])
def test_command_gives_the_same_parameters_back(runbook):
    """What the command says is read as the values that the notebook's copy holds."""
    given = validate_parameters(runbook, {}).model_dump()
    words = shlex.split(command_for(runbook, given))[3:]
    read = read_given(runbook, (), [word for word in words if word != "-p"])
    assert validate_parameters(runbook, read) == validate_parameters(runbook, given)
    copy = nbformat.reads(filled_in(ROOT / f"notebooks/{runbook}.ipynb", given), as_version=4)
    namespace = {}
    exec(next(cell.source for cell in copy.cells if "injected-parameters" in cell.metadata.get("tags", [])), namespace)
    assert {name: namespace[name] for name in given} == given


def test_an_interrupt_leaves_a_sentence(run, monkeypatch):
    """Under a person's hands an interrupt is an unknown with a sentence, and the cell can be run again."""
    monkeypatch.delenv("OPSLIB_HEADLESS", raising=False)
    assert INTERRUPTED in asked("launch", run, KeyboardInterrupt()).text
    assert run.results["launch"].state is State.UNKNOWN
    assert asked("launch", run, SectionResult(state=State.OK, summary="ready")).text == "it failed"
    assert run.stopped_by is None


def test_a_waiting_section_keeps_the_loop_turning(run, monkeypatch):
    """A cell that waits for a click is cancelled soon: the loop turns though nothing else happens."""
    monkeypatch.delenv("OPSLIB_HEADLESS", raising=False)

    @waiting_section("confirm")
    async def ask(run):
        await asyncio.get_running_loop().create_future()

    async def interrupted():
        cell = asyncio.ensure_future(ask(run))
        await asyncio.sleep(0)
        # As a signal handler does it: nothing tells the selector that there is something to do.
        threading.Timer(0.1, cell.cancel).start()
        return await cell

    assert INTERRUPTED in asyncio.run(asyncio.wait_for(interrupted(), 10)).text


def test_an_interrupt_ends_a_headless_run(run, monkeypatch):
    """Headless whoever stopped the run writes its end."""
    monkeypatch.setenv("OPSLIB_HEADLESS", "1")
    with pytest.raises(KeyboardInterrupt):
        asked("launch", run, KeyboardInterrupt())
