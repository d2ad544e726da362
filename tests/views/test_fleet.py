"""The matrix of a rollout: who stands where, how far each run has come, in colours, shapes and plain text."""

from datetime import UTC, datetime

from opslib.domain.rollout import HostStep, RolloutEvent, RolloutPlan
from opslib.domain.rollout_state import fold, new_state
from opslib.domain.states import State
from opslib.views.fleet import fleet_hosts_panel, fleet_panel, fleet_plan_panel

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
PLAN = RolloutPlan(
    runbook="90-deploy", unit="vllm-a", hosts=("gpu-a", "gpu-b", "gpu-c"), wave="1", min_serving=1, begun_at=NOW
)
REACHED = {
    "gpu-a": {"identify": State.OK, "preflight": State.WARNING, "launch": State.CRITICAL},
    "gpu-b": {"identify": State.OK, "preflight": None},
}


def event(host, step, text="", **more):
    return RolloutEvent(at=NOW, kind="host", host=host, step=step, text=text, **more)


def state(*events):
    return fold(PLAN, [RolloutEvent(at=NOW, kind="begun"), RolloutEvent(at=NOW, kind="wave", wave=0), *events])


def shown(*events):
    return fleet_panel(state(*events), REACHED, lambda record: f"../{record}/record.html")


def test_a_row_says_how_far_its_run_has_come():
    """One sign per section: its state, … where it has begun, · where it wasn't reached; in the order of the runbook."""
    lines = shown(event("gpu-a", HostStep.FAILED, "crashed"), event("gpu-b", HostStep.RUNNING)).text.splitlines()
    rows = {line.split()[0]: line for line in lines if line.startswith("gpu-")}
    assert "✓!✗" in rows["gpu-a"]
    assert "✗ failed" in rows["gpu-a"]
    assert rows["gpu-a"].endswith("crashed")
    assert "✓…·" in rows["gpu-b"]
    assert "… running" in rows["gpu-b"]
    assert "···" in rows["gpu-c"]
    assert "… untouched" not in rows["gpu-c"]
    assert "sections: identify, preflight, launch" in lines


def test_a_host_leads_to_its_record():
    """Its name is a link once there is a record; what a host says is never taken for HTML."""
    html = shown(event("gpu-a", HostStep.RUNNING, "<b>x</b>", record="20261130-gpu-a")).html
    assert '<a href="../20261130-gpu-a/record.html">gpu-a</a>' in html
    assert "&lt;b&gt;x&lt;/b&gt;" in html
    assert ">gpu-c</a>" not in html
    assert 'title="preflight: has begun"' in html


def test_a_warning_stays_a_warning():
    """A host that passed with a warning is not as green as one that is ok."""
    text = shown(event("gpu-a", HostStep.PASSED, state=State.WARNING), event("gpu-b", HostStep.PASSED)).text
    assert "! passed" in text
    assert "✓ passed" in text


def test_the_headline_says_what_goes_on_then_what_came_of_it():
    """While it goes on: phase, hosts passed, wave, what was asked; at the end the outcome's sentence alone."""
    asked = RolloutEvent(at=NOW, kind="asked", text="pause by ana")
    going = shown(event("gpu-a", HostStep.PASSED), asked).text.splitlines()[0]
    assert going == "… paused  90-deploy: 1 of 3 hosts passed, canary, asked: pause by ana"
    ended = shown(RolloutEvent(at=NOW, kind="ended", state=State.CRITICAL, text="the canary failed")).text
    assert ended.splitlines()[0] == "✗ critical  the canary failed"


def test_the_plan_says_who_and_how_carefully():
    """Before anything is done: turns and hosts, and what holds it back."""
    text = fleet_plan_panel(new_state(PLAN)).text
    assert text.startswith("✓ ok  90-deploy on 3 hosts")
    assert [line.split()[0] for line in text.splitlines()[3:6]] == ["canary", "wave", "wave"]
    assert "at least 1 units serve at any time" in text
    assert "a unit is drained before it is replaced" in text


def test_every_host_has_its_way_at_the_end():
    """The closing table names each host's record, and leads to the page that joins them."""
    panel = fleet_hosts_panel(
        state(event("gpu-a", HostStep.PASSED, "ready", record="R1")), lambda record: f"{record}.html", "joined.html"
    )
    assert '<a href="R1.html">R1</a>' in panel.html
    assert '<a href="joined.html">' in panel.html
    assert "R1" in panel.text
