"""A change that succeeded is made once in a record; who ran, was refused and unfroze what stands there."""

from datetime import UTC, datetime

import pytest

from opslib.app.run import Run, SectionResult
from opslib.app.section import section, waiting_section
from opslib.domain.parameters import validate_parameters
from opslib.domain.record import new_record
from opslib.domain.states import State
from opslib.errors import CouldNotFindOut, UnknownName
from opslib.records.folder import RunFolder
from opslib.views.shown import Shown
from tests.fakes import FakeHost

ONCE, AGAIN = "a" * 32, "b" * 32


@pytest.fixture(params=["JupyterLab", "headless"])
def run(request, tmp_path, monkeypatch):
    monkeypatch.delenv("OPSLIB_HEADLESS", raising=False)
    monkeypatch.setenv("SUDO_USER", "alice")
    if request.param == "headless":
        monkeypatch.setenv("OPSLIB_HEADLESS", "1")
    now = datetime.now(UTC)
    folder = RunFolder.create(tmp_path, "h", "u", "90-deploy", now)
    parameters = validate_parameters("90-deploy", {})
    run = Run(parameters, FakeHost(), folder, new_record("90-deploy", parameters, started_at=now))
    run.by = request.param
    return run


def changing(states):
    """A section that changes something each time its body runs, with these answers."""
    done = []

    @section("install", changes=True)
    def install(run):
        done.append(run)
        answer = states[len(done) - 1]
        if isinstance(answer, Exception):
            raise answer
        value = {"start": {"invocation_id": (ONCE, AGAIN)[len(done) - 1]}}
        return SectionResult(state=answer, summary=f"done {len(done)}", value=value), Shown("<p>done</p>", "done")

    return install, done


def test_success_is_frozen_until_it_is_unfrozen(run):
    """Run again it refuses, naming who ran it, and its answer stays; after run.unfreeze it runs; the record says all."""
    install, done = changing([State.OK, State.OK])
    install(run)
    refused = install(run)
    assert len(done) == 1
    assert "was not run again: it succeeded in this record" in refused.text
    assert f"(sudo by alice) ({run.by})" in refused.text
    assert 'run.unfreeze("install")' in refused.text
    assert run.folder.read_record().sections[0].summary == "done 1"
    run.unfreeze("install", "the disk was full")
    install(run)
    assert len(done) == 2
    record = run.folder.read_record()
    told = [(one.what, one.section, one.detail, one.by) for one in record.actions]
    assert [one[0] for one in told] == ["ran", "refused", "unfroze", "ran"]
    assert told[2][2] == "the disk was full"
    assert {one[3] for one in told} == {run.by}
    assert all(one.user.endswith("(sudo by alice)") for one in record.actions)
    assert record.invocation_ids == (ONCE, AGAIN)
    assert record.versions["python"]


@pytest.mark.parametrize("first", [State.CRITICAL, State.UNKNOWN, CouldNotFindOut("no answer")])
def test_what_did_not_succeed_may_be_run_again(run, first):
    """A change that failed, or of which nobody knows, is no success, and isn't frozen."""
    install, done = changing([first, State.OK])
    install(run)
    install(run)
    assert len(done) == 2


def test_reading_is_never_frozen(run):
    """A section that only asks may ask as often as it likes."""
    asked = []

    @section("ask")
    def ask(run):
        asked.append(run)
        return SectionResult(state=State.OK, summary="so"), Shown("<p>so</p>", "so")

    ask(run)
    ask(run)
    assert len(asked) == 2


async def _launch(run):
    return SectionResult(state=State.OK, summary="ready"), Shown.nothing()


def test_a_waiting_section_is_frozen_too(run):
    """The same holds for a cell that awaits."""
    import asyncio

    launch = waiting_section("launch", changes=True)(_launch)
    asyncio.run(launch(run))
    assert "was not run again" in asyncio.run(launch(run)).text


def test_only_what_is_frozen_is_unfrozen(run):
    """Unfreezing names a section that has succeeded; else it is refused with what there is."""
    install, _ = changing([State.OK])
    install(run)
    with pytest.raises(UnknownName, match="did you mean install"):
        run.unfreeze("instal")


def test_the_sections_that_change_a_host_are_frozen():
    """Every section of the kit whose name says that it changes a host says so to its frame."""
    import inspect

    from opslib.app.sections import install, launch, relaunch, remedy

    for one in (install, launch, remedy, relaunch):
        closed = inspect.getclosurevars(one).nonlocals
        assert closed["changes"] is True
