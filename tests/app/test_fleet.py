"""`70-fleet` without hosts: its plan, its live panel and its buttons over a rollout that is only played."""

import asyncio
import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from opslib.app import fleet, fleet_panel
from opslib.app.fleet_matrix import FleetMatrix, sections_reached
from opslib.app.fleet_panel import FleetPanel
from opslib.app.headless import check_run
from opslib.app.rollout import RolloutEnd
from opslib.app.rollout_record import write_story
from opslib.app.run import Run
from opslib.app.sections import fleet as sections
from opslib.domain.parameters import FleetParameters, validate_parameters
from opslib.domain.record import new_record
from opslib.domain.rollout import HostStep, RolloutEvent, RolloutPlan
from opslib.domain.rollout_state import fold
from opslib.domain.states import Outcome, State
from opslib.errors import BadParameter, CouldNotFindOut, UnknownName
from opslib.records.folder import RunFolder
from opslib.records.rollout import RolloutFolder

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
PLAN = RolloutPlan(runbook="10-verify-download", unit="u", hosts=("gpu-a", "gpu-b"), begun_at=NOW)
INVENTORY = "".join(
    f'[hosts.{name}]\naddress = "{name}.example"\nlabels = ["{label}"]\n'
    for name, label in (("gpu-a", "prod"), ("gpu-b", "prod"), ("gpu-c", "lab"))
)


@pytest.fixture
def inventory(tmp_path, monkeypatch):
    path = tmp_path / "hosts.toml"
    path.write_text(INVENTORY)
    monkeypatch.setenv("OPSLIB_HOSTS", str(path))


@pytest.fixture
def run(tmp_path):
    """As much of a run as the panel needs."""
    told = []
    folder = RunFolder.create(tmp_path / "runs", "fleet", "", "70-fleet", NOW)
    tell = lambda kind, text, **_: told.append((kind, text))  # noqa: E731
    return SimpleNamespace(folder=folder, is_headless=False, told=told, tell=tell)


@pytest.fixture
def painted(monkeypatch):
    """What is shown, one after the other: the matrix and the buttons."""
    shown = []
    monkeypatch.setattr(fleet_panel.Screen, "paint", lambda _, what: shown.append(what))
    return shown


def parameters(**given):
    found = validate_parameters("70-fleet", given)
    assert isinstance(found, FleetParameters)
    return found


def test_labels_choose_hosts_and_consent_is_handed_on(inventory):
    """A label means its hosts; ticket and consent reach each host's run where its runbook takes them."""
    plan = fleet.plan_fleet(
        parameters(hosts=["prod"], runbook="deploy", consent="given", ticket="INC-1", runbook_parameters={"port": 8001})
    )
    assert plan.hosts == ("gpu-a", "gpu-b")
    assert plan.parameters == {"port": 8001, "consent": "given", "ticket": "INC-1"}
    assert "consent" not in fleet.plan_fleet(parameters(hosts=["prod"], consent="given")).parameters


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"runbook": "deplyo"}, "runbook: unknown runbook"),
        ({"runbook": "90", "runbook_parameters": {"prot": 8001}}, "did you mean port?"),
        ({"runbook": "deploy", "runbook_parameters": {"environment": {"HF_TOKEN": "abc"}}}, "env:NAME"),
        ({"wave": "half"}, "wave: expected a number of hosts"),
    ],
)
def test_what_is_wrong_is_refused_before_any_host(given, words):
    """A misspelt runbook, its parameters and a literal secret are refused as in the runbook itself."""
    with pytest.raises(BadParameter) as error:
        check_run("fleet", given)
    assert words in str(error.value)
    assert "abc" not in str(error.value)


def test_an_unknown_host_names_the_nearest(inventory):
    """Neither host nor label: the nearest is offered."""
    with pytest.raises(UnknownName, match="did you mean prod"):
        fleet.plan_fleet(parameters(hosts=["prd"]))


def played(folder, *, ends=True, asked=()):
    """A rollout that waits until this was asked of it, then ends."""

    def carry(on_folder, on_change):
        on_folder(folder.path)
        events = [RolloutEvent(at=NOW, kind="begun"), RolloutEvent(at=NOW, kind="wave", wave=0, text="canary")]
        for event in events:
            folder.append(event)
        on_change(events[-1], folder.state())
        heard = []
        while len(heard) < len(asked):
            heard += [wish.ask for wish in folder.wishes()]
        if not ends:
            raise CouldNotFindOut("the disk is full")
        events.append(RolloutEvent(at=NOW, kind="host", host="gpu-a", step=HostStep.PASSED, text="whole"))
        events.append(RolloutEvent(at=NOW, kind="ended", state=State.OK, text="all hosts passed"))
        state = fold(PLAN, events)
        on_change(events[-2], state)
        return RolloutEnd(Outcome(state=State.OK, reason=", ".join(heard)), state, folder.path)

    return carry


async def watched(panel, carry, names=()):
    """Watch it, and press the buttons of these names as soon as they are there."""
    watching = asyncio.ensure_future(panel.watch(carry))
    if names:
        while panel._buttons._widget is None:  # noqa: ASYNC110 - the panel has no event for it
            await asyncio.sleep(0.01)
        for button in panel._buttons._widget.children[0].children:
            if button.description in names:
                button.click()
    return await watching


def test_buttons_ask_the_rollout_while_its_cell_waits(run, painted, monkeypatch):
    """Pause, Resume and Stop reach the rollout through its folder; sentences stay in the buttons' place."""
    monkeypatch.setattr(fleet_panel, "_REFRESH_S", 0.02)
    folder = RolloutFolder.create(run.folder.path.parent, PLAN)
    names = ("Pause", "Resume", "Stop")
    end = asyncio.run(watched(FleetPanel(run), played(folder, asked=names), names))
    assert end.outcome.reason == "pause, resume, stop"
    assert [text for kind, text in run.told if kind == "note"] == [
        f"{name}: asked; it is heard between two hosts" for name in names
    ]
    assert [line.split(" UTC ")[1].partition(":")[0] for line in painted[-1].text.splitlines()] == list(names)
    assert ("line", "gpu-a passed: whole") in run.told


def test_headless_there_are_no_buttons(run, painted):
    """Nobody is there to press: only the matrix is shown, and its last state is the rollout's end."""
    run.is_headless = True
    asyncio.run(watched(FleetPanel(run), played(RolloutFolder.create(run.folder.path.parent, PLAN))))
    assert all(hasattr(shown, "html") for shown in painted)
    assert painted[-1].text.startswith("✓ ok  all hosts passed")


def test_what_stops_a_rollout_reaches_its_cell(run, painted):
    """An error of the thread is the cell's own, so that the section says it."""
    folder = RolloutFolder.create(run.folder.path.parent, PLAN)
    with pytest.raises(CouldNotFindOut, match="disk is full"):
        asyncio.run(watched(FleetPanel(run), played(folder, ends=False)))


def test_an_interrupted_cell_asks_the_rollout_to_stop(run, painted):
    """Whoever interrupts the cell wants no further host begun; those under way come to their end."""
    folder = RolloutFolder.create(run.folder.path.parent, PLAN)

    async def interrupted():
        watching = asyncio.ensure_future(FleetPanel(run).watch(played(folder, asked=("stop",))))
        await asyncio.sleep(0.2)
        watching.cancel()
        await asyncio.wait({watching})

    asyncio.run(interrupted())
    wishes = [json.loads(line) for line in (folder.path / "control.jsonl").read_text().splitlines()]
    assert [wish["ask"] for wish in wishes] == ["stop"]


@pytest.fixture
def planned(tmp_path, painted):
    """A run of `70-fleet` whose plan stands."""
    parameters_of_it = parameters()
    folder = RunFolder.create(tmp_path / "runs", "fleet", "", "70-fleet", NOW)
    begun = Run(parameters_of_it, None, folder, new_record("70-fleet", parameters_of_it, started_at=NOW))
    begun.host = SimpleNamespace(settings=SimpleNamespace(alias="fleet"))
    begun.answers["plan"] = PLAN
    return begun


def test_run_again_its_cell_goes_on_where_it_stopped(planned, monkeypatch):
    """The record says how to go on while nothing has ended; the cell run again resumes the same rollout, then all is said."""
    folder = RolloutFolder.create(planned.folder.path.parent, PLAN)

    def stopped(_plan, _runs_dir, *, on_folder, on_change):
        return played(folder, ends=False)(on_folder, on_change)

    monkeypatch.setattr(sections, "run_rollout", stopped)
    asyncio.run(sections.roll_out(planned))
    assert planned.record.left.endswith(f"opslib rollout --resume {folder.path.name}")
    assert planned.results["rollout"].state is State.UNKNOWN
    resumed = []

    def resume(which, *, on_change):
        resumed.append(which.path)
        return played(which)(lambda _path: None, on_change)

    monkeypatch.setattr(sections, "resume_rollout", resume)
    asyncio.run(sections.roll_out(planned))
    assert resumed == [folder.path]
    assert planned.record.left == ""
    assert planned.results["rollout"].state is State.OK
    assert "gpu-a" in sections.show_fleet(planned).text


def host_run(runs_dir, host):
    folder = RunFolder.create(runs_dir, host, "u", "10-verify-download", NOW)
    folder.append_event({"kind": "section-started", "section": "identify"})
    folder.append_event({"kind": "section-ended", "section": "identify", "state": "ok"})
    folder.append_event({"kind": "section-started", "section": "verify-download"})
    return folder


def test_sections_are_read_as_they_come(tmp_path):
    """What a run has begun and ended is read from its events, and read again only where they have grown."""
    folder = host_run(tmp_path, "gpu-a")
    assert sections_reached(folder.path) == {"identify": State.OK, "verify-download": None}
    matrix = FleetMatrix(tmp_path)
    first = matrix._sections(folder.path.name)
    assert matrix._sections(folder.path.name) is first
    folder.append_event({"kind": "section-ended", "section": "verify-download", "state": "critical"})
    assert matrix._sections(folder.path.name)["verify-download"] is State.CRITICAL
    assert matrix._sections("") == {}


def test_the_page_of_a_rollout_shows_the_matrix(tmp_path):
    """Its notebook holds the matrix as an output that needs no kernel, with links between the records."""
    folder, own = RolloutFolder.create(tmp_path, PLAN), host_run(tmp_path, "gpu-a")
    event = RolloutEvent(at=NOW, kind="host", host="gpu-a", step=HostStep.RUNNING, text="its run", record=own.path.name)
    write_story(folder, fold(PLAN, [event]))
    cells = json.loads((folder.path / "notebook.ipynb").read_text())["cells"]
    [shown] = [output["data"] for cell in cells for output in cell.get("outputs", [])]
    assert f"../{own.path.name}" in "".join(shown["text/html"])
    assert "✓…" in "".join(shown["text/plain"])
