"""A unit takes another one's place, on the rehearsal host and on a real Debian: the old one is never lost."""

import asyncio
import inspect

import pytest

from opslib.app import sections
from opslib.app.run import Run
from opslib.cli.main import call
from opslib.workflow.facts import gather_unit_status
from tests.conftest import opened
from tests.workflow.test_lifecycle_hosts import FLAGS, KINDS, hurry, install, served_host, use_inventory

OLD, NEW = "vllm-old", "vllm-new"
CELLS = ("identify", "preflight", "plan_unit", "confirm", "install", "replace", "launch", "bring_back", "outcome")


def launch(monkeypatch: pytest.MonkeyPatch, runs_dir, **given: object) -> Run:
    """`30-launch`, cell by cell, without a kernel."""
    monkeypatch.setenv("OPSLIB_HEADLESS", "1")
    monkeypatch.setenv("OPSLIB_RUNS", str(runs_dir))
    run = sections.begin_run("30-launch", {"replaces": OLD, "unit": NEW, "ready_timeout_s": 120, **given})

    async def play() -> None:
        for name in CELLS:
            shown = getattr(sections, name)(run)
            if inspect.isawaitable(shown):
                await shown

    asyncio.run(play())
    return run


def active(settings) -> dict[str, str]:
    """The active state of both units."""
    with opened(settings) as host:
        return {unit: gather_unit_status(host, unit).active_state for unit in (OLD, NEW)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_old_unit_makes_room_and_comes_back_where_the_new_one_fails(kind, tmp_path, monkeypatch) -> None:
    """A new unit that crashes: the old one serves again; one that serves: the old one stays stopped, its memory released."""
    given = {"host": "a", "consent": "given"}
    with served_host(kind, "sampler-oom") as settings:
        hurry(settings)
        install(settings, f"{FLAGS} --max-num-seqs 256", unit=OLD)
        use_inventory(tmp_path, settings, monkeypatch)
        assert call(["start", "a", OLD, "--yes"]) == 0
        failed = launch(monkeypatch, tmp_path / "runs", **given).results
        assert (failed["launch"].state, failed["replace"].state) == ("critical", "ok")
        assert "released, asked again" in failed["replace"].summary
        assert failed["bring-back"].state == "ok", failed["bring-back"]
        assert active(settings) == {OLD: "active", NEW: "inactive"}
        good = launch(monkeypatch, tmp_path / "runs", **given, max_num_seqs=256)
        assert good.results["launch"].state == "ok", good.judge()
        assert active(settings) == {OLD: "inactive", NEW: "active"}
        assert good.answers["undo"][-1] == f"sudo systemctl start {OLD}"
        assert "bring-back" not in good.results


def test_a_unit_never_takes_its_own_place(monkeypatch, tmp_path) -> None:
    """`replaces` that names the unit itself is refused when it is planned: nothing is installed or stopped."""
    run = launch(monkeypatch, tmp_path, host="rehearsal:healthy", replaces=f"{NEW}.service")
    assert (run.stopped_by, run.results["plan-unit"].exit_code) == ("plan-unit", 4)
    assert "its own place" in run.results["plan-unit"].summary
    assert "install" not in run.results
