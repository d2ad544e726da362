"""The picture of a launch: phases, both signals, GPUs, restarts and the journal, the same in both forms."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from opslib.domain.engine_log import Phase
from opslib.domain.facts.gpu import Gpu
from opslib.domain.launch_events import HealthSeen
from opslib.domain.launch_phases import PhaseSpan
from opslib.domain.launch_record import LaunchUpdate
from opslib.domain.launch_status import Crash, LaunchState, LaunchStatus, status_changes
from opslib.domain.launch_story import LaunchStory
from opslib.views.launch import launch_panel

T0 = datetime(2026, 11, 29, 12, tzinfo=UTC)
GPU = Gpu(
    index=3,
    name="H100",
    uuid="GPU-3",
    memory_total_bytes=80 * 2**30,
    memory_used_bytes=20 * 2**30,
    memory_free_bytes=60 * 2**30,
    driver_version="570",
)


def at(seconds):
    return T0 + timedelta(seconds=seconds)


def story_of(*statuses):
    story, before = LaunchStory(), LaunchStatus(since=T0, at=T0, last_heard_at=T0)
    for status in statuses:
        event = HealthSeen(at=status.at, status_code=status.health_status_code)
        story.take(LaunchUpdate(event=event, changes=status_changes(before, status), status=status))
        before = status
    return story


def status(seconds, **values):
    return LaunchStatus(since=T0, at=at(seconds), last_heard_at=T0, **values)


def stripped(html):
    return re.sub(r"<[^>]+>", "", html).replace("&nbsp;", " ")


@pytest.mark.parametrize(
    ("state", "label"),
    [
        (LaunchState.STARTING, "… starting"),
        (LaunchState.RESTARTING, "… restarting"),
        (LaunchState.READY, "✓ ok"),
        (LaunchState.CRASHED, "✗ critical"),
        (LaunchState.ABORTED, "? unknown"),
    ],
)
def test_label_tells_whether_it_goes_on(state, label):
    """As long as a launch goes on it is labelled by what it does; an aborted watch ends *unknown*."""
    panel = launch_panel("gpu-a", "vllm-b", story_of(status(1, state=state)))
    assert panel.text.startswith(f"{label}  gpu-a: vllm-b {state.value}")
    assert label in stripped(panel.html)


def test_strips_share_one_line_of_time():
    """Phases and both signals are blocks whose widths are shares of the same time, red where it crashed."""
    spans = (
        PhaseSpan(id="importing", title="importing", began_at=at(0), ended_at=at(25)),
        PhaseSpan(id="weights", title="loading weights", began_at=at(25), n=5, total=10),
    )
    crash = Crash(invocation_id="a", noticed_by="journal", text="died", seen_at=at(50))
    story = story_of(
        status(20, active_state="active", sub_state="running"),
        status(80, active_state="active", sub_state="running", health_status_code=200),
        status(100, active_state="active", sub_state="running", health_status_code=200, phases=spans, crashes=(crash,)),
    )
    panel = launch_panel("gpu-a", "vllm-b", story)
    titles = dict(re.findall(r'title="([^"]+)" style="width:([\d.]+)%', panel.html))
    assert titles["importing: 0.0 to 25.0 s"] == "25.00"
    assert titles["loading weights 5/10: 25.0 to 100.0 s"] == "75.00"
    assert titles["active (running): 20.0 to 100.0 s"] == "80.00"
    assert titles["closed: 0.0 to 80.0 s"] == "80.00"
    assert titles["200: 80.0 to 100.0 s"] == "20.00"
    assert panel.html.count("crash seen at 50.0 s") == 3
    assert "importing 25.0 s · loading weights 5/10 75.0 s" in panel.text
    assert "0.0 s closed → 80.0 s 200" in panel.text


def test_each_gpu_has_its_bar():
    """A GPU that holds memory is a row with a bar of its share, in text the same figures."""
    panel = launch_panel("gpu-a", "vllm-b", story_of(status(1, gpus=(GPU,))))
    assert 'title="25 %"' in panel.html
    assert "20.0 of 80.0 GiB" in stripped(panel.html)
    assert re.search(r"GPU 3 +20.0 of 80.0 GiB", panel.text)


def test_restarts_are_told_with_their_budget():
    """How often systemd started it again, and what is left before it gives up."""
    text = launch_panel("gpu-a", "vllm-b", story_of(status(1, n_restarts=2, budget_words="2 of 3 starts"))).text
    assert re.search(r"restarts +2 \(2 of 3 starts\)", text)


def test_choice_of_lines_is_said():
    """A picture that hides lines of the journal says which."""
    panel = launch_panel("gpu-a", "vllm-b", story_of(status(1)), level="ERROR", search="<oom>")
    assert "Journal: no line of level ERROR and worse with '<oom>'." in panel.text
    assert "&lt;oom&gt;" in panel.html


def test_watch_that_ended_without_a_verdict_says_so():
    """Played again, a launch whose watcher went away is not shown as one that goes on; one with a verdict is as it was."""
    going = story_of(status(7, phase=Phase(id="weights", order=4, title="loading weights")))
    assert "The watch ended here, after 7.0 s, without a verdict" in launch_panel("a", "b", going, is_over=True).text
    ready = story_of(status(7, state=LaunchState.READY))
    assert launch_panel("a", "b", ready, is_over=True).html == launch_panel("a", "b", ready).html
