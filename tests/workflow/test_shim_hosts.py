"""The notify shim under a real systemd, with the stand-in engine: what `systemctl` says is true."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opslib.app.headless import run_headless
from opslib.rehearsal.scenarios import load_scenario
from opslib.rehearsal.standin_install import standin_files
from opslib.workflow.answering import check_flags
from opslib.workflow.install import apply_plan, plan_install, unit_text_for
from opslib.workflow.running import running_flags
from opslib.workflow.unit_files import gather_unit_files
from tests.conftest import opened
from tests.rig.debian import install_standin
from tests.rig.inventory import write_inventory

pytestmark = pytest.mark.realhost

UNIT = "vllm-minimax"
LIMIT = "TimeoutStartSec=2411"  # the guard, 230 GB from a slow disk, warming up
START = "a start is given 2411 s: guard 360 s, 230.1 GB of weights at 200 MB/s 1151 s, warming up 900 s"
HEALTH_URL = "http://127.0.0.1:8000/health"
FLAGS = "--port 8000 --tensor-parallel-size 4 --gpu-memory-utilization 0.95 --max-model-len 131072 --max-num-seqs 64"


@pytest.fixture(scope="module")
def machine(debian: Any) -> Iterator[Any]:
    """A real Debian with the stand-in engine and the kit's unit of it, run by the shim."""
    settings = install_standin(debian, "healthy")
    with opened(settings) as host:
        text = unit_text_for(
            host,
            unit=UNIT,
            model_path=f"{settings.models_dir}/minimax-m2-230b-fp8",
            flags=FLAGS.split(),
            gpus=[0, 1, 2, 3],
            required_free_gib=60,
            wait_s=20,
            notify_stall_s=3,
        )
        assert apply_plan(host, plan_install(host, unit=UNIT, unit_text=text)).state == "ok"
    return debian


def set_engine(debian: Any, scenario: str, *, clock_factor: float, start_s: int = 60, **figures: Any) -> None:
    """The stand-in engine with other figures, and the unit's start timeout."""
    files = standin_files(load_scenario(scenario), prefix="/opt/standin")
    path = next(name for name in files if name.endswith("rehearsal.json"))
    known = json.loads(files[path][0])
    known |= {"clock_factor": clock_factor, "engine": {**known["engine"], **figures}}
    drop_in = f"[Service]\nTimeoutStartSec={start_s}\nTimeoutStopSec=5\nRestartSec=1\n"
    place = f"/etc/systemd/system/{UNIT}.service.d/10-case.conf"
    debian.put_files({path: (json.dumps(known).encode(), 0o644), place: (drop_in.encode(), 0o644)})
    debian.ssh("systemctl", "daemon-reload")


def wait_for(debian: Any, name: str, wanted: str, seconds: float = 30.0) -> list[str]:
    """The values that a property of the unit was seen to have, until it has the wanted one."""
    seen: list[str] = []
    deadline = time.monotonic() + seconds
    while not (seen and wanted in seen[-1]):
        assert time.monotonic() < deadline, f"{name} is not {wanted!r}: {seen}"
        value = debian.ssh("systemctl", "show", "--property", name, "--value", UNIT).stdout.strip()
        seen += [value] if value not in seen[-1:] else []
        time.sleep(0.05)
    return seen


@pytest.fixture(autouse=True)
def stopped(machine: Any) -> Iterator[None]:
    """Each test leaves the unit as if it had never run."""
    yield
    machine.ssh("systemctl", "stop", UNIT, timeout_s=60)
    machine.ssh("systemctl", "reset-failed", UNIT)


def test_start_returns_at_the_first_token_and_status_shows_the_phases(machine: Any) -> None:
    """A load slower than the start timeout doesn't fail while it moves; the first request after the start is answered."""
    set_engine(machine, "healthy", clock_factor=20, start_s=3)
    machine.ssh("systemctl", "start", "--no-block", UNIT)
    seen = wait_for(machine, "StatusText", "serving")
    took = machine.ssh("systemctl", "start", UNIT, timeout_s=60)  # joins the job, or finds it done
    assert took.returncode == 0, took.stderr
    active = machine.ssh("systemctl", "show", "--property", "ActiveState", "--value", UNIT).stdout.strip()
    assert active == "active"
    shards = [text for text in seen if text.startswith("loading weights ")]
    assert any("/125" in text for text in shards), seen
    assert seen.index("resolving configuration") < seen.index(shards[-1]) < seen.index("serving")
    journal = machine.ssh("journalctl", "--unit", UNIT, "--output=cat", "--no-pager").stdout
    assert journal.index('"POST /v1/completions HTTP/1.1" 200') < journal.index("Started vllm-minimax.service")
    assert "127.0.0.1" in journal  # of the shim's own request: the engine's lines go on unchanged


def test_blocking_start_waits_for_the_engine_and_a_stop_is_no_failure(machine: Any) -> None:
    """`systemctl start` comes back after the load; `stop` leaves no process and no failure."""
    set_engine(machine, "healthy", clock_factor=60)
    assert machine.ssh("systemctl", "start", UNIT, timeout_s=60).returncode == 0
    asked = machine.ssh("python3", "-c", f"import urllib.request as r; print(r.urlopen('{HEALTH_URL}').status)")
    assert asked.stdout.strip() == "200", asked
    machine.ssh("systemctl", "stop", UNIT, timeout_s=60)
    shown = machine.ssh("systemctl", "show", "--property", "Result,ActiveState", UNIT).stdout.split()
    assert sorted(shown) == ["ActiveState=inactive", "Result=success"]
    assert machine.ssh("pgrep", "--full", "/opt/standin/bin/vllm").stdout == ""


def test_stalled_load_fails_at_its_own_deadline(machine: Any) -> None:
    """Ranks that wait for each other for ever: nothing moves, the start times out, and no process is left."""
    set_engine(machine, "healthy", clock_factor=60, start_s=4, hang_after="distributed")
    began_at = time.monotonic()
    started = machine.ssh("systemctl", "start", UNIT, timeout_s=60)
    took_s = time.monotonic() - began_at
    result = machine.ssh("systemctl", "show", "--property", "Result", "--value", UNIT).stdout.strip()
    machine.ssh("systemctl", "stop", UNIT, timeout_s=60)
    assert (started.returncode, result) == (1, "timeout")
    assert took_s >= 4
    assert machine.ssh("pgrep", "--full", "/opt/standin/bin/vllm").stdout == ""


def test_engine_that_dies_with_status_0_is_a_failure_and_is_restarted(machine: Any) -> None:
    """The core is killed, the API server ends with 0: Restart=on-failure starts it again; so does a killed shim."""
    set_engine(machine, "healthy", clock_factor=60, engine_dead_exit_status=0)
    assert machine.ssh("systemctl", "start", UNIT, timeout_s=60).returncode == 0
    assert machine.ssh("pkill", "-KILL", "EngineCor").returncode == 0
    wait_for(machine, "NRestarts", "1")
    wait_for(machine, "StatusText", "serving")
    journal = machine.ssh("journalctl", "--unit", UNIT, "--output=cat", "--no-pager").stdout
    assert "the engine ended with status 0, and nobody had asked it to stop: a failure" in journal
    assert "Main process exited, code=exited, status=70" in journal
    machine.ssh("systemctl", "kill", "--kill-who=main", "--signal=KILL", UNIT)
    wait_for(machine, "NRestarts", "2")
    wait_for(machine, "StatusText", "serving")
    mains = machine.ssh("pgrep", "--full", "notify_shim.py").stdout.split()
    assert len(mains) == 1


def test_launch_runbook_ends_ok(machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`30-launch` with notify_systemd: the unit names the shim and waits as long as its model's size asks for, which the
    plan shows; the kit's own tracker finds the engine behind the shim.
    """
    set_engine(machine, "healthy", clock_factor=20)
    settings = machine.ops_settings.model_copy(update={"vllm": "/opt/standin/bin/vllm"})
    monkeypatch.setenv("OPSLIB_HOSTS", str(write_inventory(tmp_path / "hosts.toml", "debian", settings)))
    given = {"host": "debian", "consent": "given", "notify_systemd": True, "max_num_seqs": 64}
    result = run_headless("30-launch", given, runs_dir=tmp_path / "runs")
    assert (result.outcome.state, result.exit_code) == ("ok", 0), result.outcome
    unit_text = machine.ssh("systemctl", "cat", UNIT).stdout
    assert " -- /opt/standin/bin/vllm serve" in unit_text
    page = (result.folder / "record.html").read_text()
    assert LIMIT in unit_text
    assert START in page
    with opened(settings) as host:
        files = gather_unit_files(host, UNIT)
        assert running_flags(host, UNIT)["--port"] == "8000"
        assert "--stall-s" not in running_flags(host, UNIT)
        assert check_flags(host, files).state == "ok"
        assert files.merged.serve_arguments[0].endswith("minimax-m2-230b-fp8")
