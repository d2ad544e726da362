"""The buttons under a launch: each does what it says and leaves a sentence; headless there are none."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from opslib.app import launch_controls
from opslib.app.launch_controls import LaunchControls
from opslib.app.live import iterate
from opslib.domain.plans import Plan, Step
from opslib.domain.states import State
from opslib.errors import Refused
from opslib.records.folder import RunFolder
from opslib.records.watch_file import WatchFile


@pytest.fixture
def run(tmp_path):
    """As much of a run as the buttons need."""
    told = []
    return SimpleNamespace(
        host=SimpleNamespace(settings=SimpleNamespace(alias="gpu-a")),
        parameters=SimpleNamespace(unit="vllm-b"),
        folder=RunFolder.open(tmp_path),
        is_headless=False,
        told=told,
        tell=lambda kind, text, **_: told.append((kind, text)),
    )


@pytest.fixture
def shown(monkeypatch):
    """What the place of the buttons shows, one after the other."""
    painted = []
    monkeypatch.setattr(launch_controls.Screen, "paint", lambda _, what: painted.append(what))
    return painted


async def pressed(run, *names, choose=lambda **_: None):
    """Press the buttons of these names while something waits, then end the watch."""
    controls = LaunchControls(run, "launch", on_choose=choose)
    controls.show()
    for name in names:
        await asyncio.sleep(0.05)
        next(button for button in controls._row.children if button.description == name).click()
    await asyncio.sleep(0.05)
    await controls.close()
    return controls


@pytest.fixture
def planned(monkeypatch):
    """What a stop would do."""
    step = Step(title="stop vllm-b.service", command=("systemctl", "stop", "--", "vllm-b.service"))
    steps = (step, Step(title="ask until its GPU memory is released"))
    monkeypatch.setattr(launch_controls, "plan", lambda *_: Plan(host="gpu-a", title="stop", steps=steps))


WOULD = (
    "Stop unit would: on gpu-a stop vllm-b.service (`systemctl stop -- vllm-b.service`), "
    "then ask until its GPU memory is released."
)


def test_stop_says_what_it_would_do_and_what_it_did(run, shown, planned, monkeypatch):
    """*Stop unit* shows its steps first; confirmed, it asks the lifecycle's stop, whose report stays in the file."""
    asked = []
    report = SimpleNamespace(state=State.OK, summary="stop: inactive (dead); GPU memory: released")
    monkeypatch.setattr(launch_controls, "stop", lambda host, unit, **_: asked.append((host, unit)) or report)
    asyncio.run(pressed(run, "Stop unit"))
    assert asked == []
    assert WOULD in shown[-1].text
    controls = asyncio.run(pressed(run, "Stop unit", "Yes, stop it now"))
    assert asked == [(run.host, "vllm-b")]
    assert not controls.aborted.done()
    assert shown[-1].text.endswith("Stop unit: stop: inactive (dead); GPU memory: released.")


def test_a_stop_that_was_not_meant_does_nothing(run, shown, planned, monkeypatch):
    """Not confirmed, nothing is stopped, and *Stop unit* can be pressed again."""
    monkeypatch.setattr(launch_controls, "stop", lambda *_, **__: pytest.fail("stopped"))
    asyncio.run(pressed(run, "Stop unit", "No, let it run", "Stop unit"))
    assert shown[-1].text.count(WOULD) == 2
    assert "not meant, the unit goes on" in shown[-1].text


def test_stop_that_is_refused_says_so(run, shown, planned, monkeypatch):
    """A stop that the host refuses ends no watch; its words stay in the file."""

    def refuse(*_, **__):
        raise Refused("no sudo")

    monkeypatch.setattr(launch_controls, "stop", refuse)
    asyncio.run(pressed(run, "Stop unit", "Yes, stop it now"))
    assert "Stop unit: no sudo." in shown[-1].text


def test_keep_writes_the_journal_so_far(run, shown):
    """*Keep last journal* writes every journal entry of the watch into the record's evidence, and no other event."""
    file = WatchFile(run.folder.path / "watch-launch.jsonl")
    entry = {"realtime_at": "2026-11-29T12:00:00Z", "identifier": "vllm", "pid": 7, "message": "loading"}
    file.append({"event": "tick"})
    file.append({"event": "journal", "entry": entry})
    file.flush()
    asyncio.run(pressed(run, "Keep last journal"))
    kept = list(run.folder.path.glob("evidence/journal-launch-*.txt"))
    assert [path.read_text() for path in kept] == ["2026-11-29T12:00:00Z vllm[7]: loading\n"]
    assert f"1 entry is in evidence/{kept[0].name}." in shown[-1].text


def test_abort_settles_and_is_told(run, shown):
    """*Abort watching* settles what the watch waits on, and the record's events tell of it."""
    controls = asyncio.run(pressed(run, "Abort watching", "Abort watching"))
    assert controls.aborted.done()
    assert run.told == [("note", "Abort watching: the watch ended, the unit goes on.")]
    assert shown[-1].text.count("Abort watching") == 1


def test_no_button_pressed_leaves_no_widget(run, shown):
    """What stays in the file is a sentence, never a widget."""
    asyncio.run(pressed(run))
    assert shown[-1].text == "No button was pressed during this watch."


def test_each_change_of_a_field_counts(run, shown):
    """Level and words are told at each change, and the fields that follow show them."""
    chosen = []

    async def change():
        controls = LaunchControls(run, "launch", on_choose=lambda **kept: chosen.append(kept))
        controls.show()
        for at, value in ((-2, "ERROR"), (-1, "oom"), (-2, "INFO")):
            controls._row.children[at].value = value
            await asyncio.sleep(0.01)
        await controls.close()

    asyncio.run(change())
    assert chosen == [
        {"level": "ERROR", "search": ""},
        {"level": "ERROR", "search": "oom"},
        {"level": "INFO", "search": "oom"},
    ]
    assert shown


def test_headless_has_no_buttons(run, shown):
    """Where nobody is there, nothing is shown."""
    run.is_headless = True
    asyncio.run(pressed(run))
    assert shown == []


def test_stopped_wait_ends_at_once():
    """A wait that is stopped ends without waiting for the next item, and its source is closed at that item."""
    may_go_on, is_closed = threading.Event(), threading.Event()

    def source():
        try:
            yield 1
            may_go_on.wait(10)
            yield 2
        finally:
            is_closed.set()

    async def wait():
        stopped = asyncio.get_running_loop().create_future()
        got = []
        async for item in iterate(source, stopped=stopped):
            got.append(item)
            stopped.set_result(None)
        may_go_on.set()
        return got

    assert asyncio.run(asyncio.wait_for(wait(), 5)) == [1]
    assert is_closed.wait(5)
