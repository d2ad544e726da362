"""A preflight of the practice host and of a real Debian: one round trip, no false alarm, and what is bad is found."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opslib.domain.host import Host, HostSettings
from opslib.domain.lock import LockHolder, lock_path
from opslib.domain.preflight import PreflightReport
from opslib.domain.preflight_reading import Wanted
from opslib.domain.states import State
from opslib.errors import LockHeld
from opslib.hosts.recording import RecordingHost
from opslib.workflow.lock import hold_lock
from opslib.workflow.preflight import run_preflight
from tests.conftest import opened
from tests.rig.scenario import scenario_host
from tests.rig.skip import or_skip

UNIT = "vllm-minimax"
MODEL = "minimax-m2-230b-fp8"
FLAGS = ("--port", "8000", "--tensor-parallel-size", "4", "--max-model-len", "131072")
KINDS = pytest.mark.parametrize("kind", ["rehearsal", pytest.param("standin", marks=pytest.mark.realhost)])


@pytest.fixture(scope="module")
def standin() -> Iterator[HostSettings]:
    """Settings of a real Debian with the stand-in engine, its GPUs and its model."""
    with or_skip(scenario_host("healthy")) as settings:
        yield settings


def settings_of(request: pytest.FixtureRequest, kind: str) -> HostSettings:
    found = request.getfixturevalue(kind)
    return found if isinstance(found, HostSettings) else found.settings


def wanted(host: Host, **changes: object) -> Wanted:
    given = {"unit": UNIT, "port": 8000, "gpus": (0, 1, 2, 3), "gpu_memory_utilization": 0.95, "flags": FLAGS}
    path = f"{host.settings.models_dir}/{MODEL}"
    return Wanted.model_validate({**given, "guard_wait_s": 300, "model_path": path, **changes})


def states(report: PreflightReport) -> dict[str, tuple[State, str]]:
    return {check.name: (check.state, check.summary) for check in report.checks if check.state is not State.OK}


@KINDS
def test_a_healthy_host_is_fit_in_one_round_trip(kind, request, tmp_path):
    """One program is sent and nothing else; no check is bad, and what can't be known there is unknown."""
    with opened(settings_of(request, kind)) as host:
        host.run(("true",))
        transcript = tmp_path / "transcript.jsonl"
        report = run_preflight(RecordingHost(host, transcript), wanted(host))
    sent = [json.loads(line) for line in transcript.read_text().splitlines()]
    assert [entry["program"] for entry in sent] == ["preflight"]
    assert report.state is State.OK, states(report)
    assert set(states(report)) <= {"receipt", "kernel"}


@pytest.mark.realhost
def test_a_host_without_gpu_and_engine_says_so(debian):
    """A bare Debian: no engine and no model is critical, GPUs that nobody wants are not asked, sources that aren't there unknown."""
    with opened(debian.settings) as host:
        found = states(run_preflight(host, wanted(host, gpus=())))
        assert {name: state.value for name, (state, _) in found.items()} == {
            "engine": "critical",
            "flags": "unknown",
            "model": "critical",
            "receipt": "unknown",
        }
        assert states(run_preflight(host, wanted(host)))["gpus"][0] is State.CRITICAL


@pytest.mark.realhost
def test_a_login_without_rights_is_told_less_and_nothing_wrong(standin):
    """Without sudo the same look is taken with the login's own rights; nothing healthy turns bad by it."""
    bare = standin.model_copy(update={"user": "nosudo"})
    with opened(bare) as host:
        report = run_preflight(host, wanted(host))
    assert report.state is State.OK, states(report)


@pytest.mark.realhost
def test_a_login_s_own_units_are_asked_of_its_own_manager(standin):
    """With scope = "user" the login itself is the unit's user, its own limits count, and its lock lies in its home."""
    fields = standin.model_dump(exclude={"sudo", "unit_dir", "state_dir"})
    own = HostSettings.model_validate({**fields, "scope": "user"})
    nobody = LockHolder(user="n", controller="n", process_id=1, runbook="n", since=datetime.now(UTC))
    with opened(own) as host, hold_lock(host, UNIT, nobody):
        report = run_preflight(host, wanted(host, holder=nobody))
        assert host.run(("stat", "--format=%a", f"/home/ops/.local/state/opslib/locks/{UNIT}.lock")).is_success
    found = {check.name: check for check in report.checks}
    assert found["model"].summary.startswith("ops may read")
    assert found["lock"].summary == "held by this run"
    assert report.state is not State.CRITICAL, states(report)


@KINDS
def test_what_is_in_the_way_is_found(kind, request):
    """A port that is taken, a flag that isn't known, a GPU that isn't there, a model that isn't there, a unit at work."""
    settings = settings_of(request, kind)
    who = LockHolder(
        user="ana", controller="desk", process_id=7, runbook="90-deploy", since=datetime(2026, 3, 1, tzinfo=UTC)
    )
    with opened(settings) as host, opened(settings) as other, hold_lock(other, UNIT, who), ExitStack() as taken:
        port = taken.enter_context(
            _taken_port("" if kind != "rehearsal" else request.getfixturevalue("rehearsal").loopback)
        )
        changes = {
            "port": port,
            "flags": ("--max-num-sequences", "8"),
            "gpus": (0, 9),
            "model_path": "/srv/models/none",
        }
        found = states(run_preflight(host, wanted(host, **changes)))
        mine = states(run_preflight(host, wanted(host, holder=who)))
    assert {name for name, (state, _) in found.items() if state is State.CRITICAL} == {
        "port", "flags", "gpus", "model", "lock",
    }  # fmt: skip
    assert "did you mean --max-num-seqs?" in found["flags"][1]
    assert "ana on desk (process 7)" in found["lock"][1]
    assert "lock" not in mine


@contextmanager
def _taken_port(loopback: str) -> Iterator[int]:
    """A port of the host on which something listens: sshd's own on a real host; on the practice host one is opened."""
    if not loopback:
        yield 22
        return
    with socket.create_server((loopback, 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.realhost
def test_a_left_over_engine_is_told_from_one_that_somebody_runs(standin):
    """A worker that outlived its unit is an orphan with its proof and the command that ends it; a live unit's is not."""
    holder = "/opt/standin/bin/vllm-left"
    root = standin.model_copy(update={"user": "root"})
    with opened(root) as host, opened(standin) as ops:
        assert host.run(("ln", "-s", "hold-gpu-memory", holder)).is_success
        script = f"setsid {holder} 50 1 >/dev/null 2>&1 & sleep 1; exit 1"
        run = ("systemd-run", "--unit=vllm-gone", "--property=KillMode=process", "--wait", "sh", "-c", script)
        host.run(run)
        gone = next(check for check in run_preflight(ops, wanted(ops)).checks if check.name == "gpu memory")
        assert host.run(("systemd-run", "--unit=vllm-other", holder, "50", "2")).is_success
        assert host.run(tuple(gone.next_step.split("sudo ")[1].split())).is_success  # as it is said
        host.run(("sleep", "2"))
        lives = next(check for check in run_preflight(ops, wanted(ops)).checks if check.name == "gpu memory")
        host.run(("systemctl", "stop", "vllm-other"))
    assert gone.state is State.CRITICAL
    assert "a left-over engine holds 50.0 GiB" in gone.summary, gone
    assert "is of vllm-gone.service, which is failed" in gone.summary
    assert "sudo kill " in gone.next_step
    assert lives.state is State.CRITICAL
    assert "vllm-other" in lives.summary
    assert "stop vllm-other" in lives.next_step


@pytest.mark.realhost
def test_a_model_that_the_unit_s_user_may_not_read(standin):
    """The user is the unit's own; what it may not read is counted and named."""
    root = standin.model_copy(update={"user": "root"})
    text = "[Service]\nUser=nosudo\nExecStart=/bin/true\n"
    with opened(root) as host:
        model = f"{standin.models_dir}/{MODEL}"
        host.write_file("/etc/systemd/system/vllm-own-user.service", text.encode())
        host.run(("systemctl", "daemon-reload"))
        host.run(("chmod", "600", f"{model}/config.json"))
        report = run_preflight(host, wanted(host, unit="vllm-own-user"))
        host.run(("chmod", "644", f"{model}/config.json"))
        again = run_preflight(host, wanted(host, unit="vllm-own-user"))
    assert states(report)["model"][1].startswith("nosudo may not read 1 of")
    assert "model" not in states(again)


# ---------------------------------------------------------------- two operators at once


@pytest.mark.parametrize("kind", ["rehearsal", pytest.param("standin", marks=[pytest.mark.realhost, pytest.mark.slow])])
def test_of_two_deploys_at_once_one_is_refused(kind, request, tmp_path):
    """Two operators launch one unit in the same moment: one does, the other is refused (4) and told by whom."""
    settings = settings_of(request, kind)

    def deploy(operator: str) -> subprocess.CompletedProcess[str]:
        run = begin_deploy(settings, operator, tmp_path)
        stdout, stderr = run.communicate()
        return subprocess.CompletedProcess(run.args, run.returncode, stdout, stderr)

    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(deploy, ("ana", "bob")))
    assert sorted(run.returncode for run in ended) == [0, 4], [run.stderr[-600:] for run in ended]
    won, lost = sorted((json.loads(run.stdout) for run in ended), key=lambda document: document["exit_code"])
    assert Path(won["record"]).name in lost["outcome"]["reason"]
    assert "is locked: " in lost["outcome"]["reason"]
    assert [entry["name"] for entry in lost["sections"]] == ["identify", "preflight"]
    assert is_free(settings)


def begin_deploy(settings: HostSettings, operator: str, folder: Path) -> "subprocess.Popen[str]":
    """`opslib run 30-launch` of an operator with a machine of their own: no lock of this one is shared."""
    fields = settings.model_dump(exclude={"alias"}, exclude_none=True, exclude_defaults=True)
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items() if not isinstance(value, dict)]
    inventory = folder / f"{operator}.toml"
    inventory.write_text("[hosts.both]\n" + "\n".join(lines) + "\n")
    own = {"OPSLIB_HOSTS": str(inventory), "OPSLIB_LOCKS": str(folder / operator)}
    words = ["-p", "host=both", "-p", "consent=given", "-p", "max_num_seqs=64", "--json"]
    command = [
        sys.executable,
        "-m",
        "opslib.cli",
        "run",
        "30-launch",
        *words,
        "--runs-dir",
        str(folder / f"of-{operator}"),
    ]
    return subprocess.Popen(
        command, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def is_free(settings: HostSettings) -> bool:
    """Whether the unit's lock can be had."""
    nobody = LockHolder(user="n", controller="n", process_id=1, runbook="n", since=datetime.now(UTC))
    with opened(settings) as host:
        try:
            with hold_lock(host, UNIT, nobody):
                return True
        except LockHeld:
            return False


def wait_until(question: Callable[[], bool], limit_s: float) -> float | None:
    """The seconds until it was so; None where it wasn't within the limit."""
    began_at = time.monotonic()
    while time.monotonic() - began_at < limit_s:
        if question():
            return time.monotonic() - began_at
        time.sleep(0.3)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@KINDS
def test_a_run_that_is_ended_frees_its_lock(kind, number, request, tmp_path):
    """However a run is ended, in order or not, its lock is free seconds later."""
    settings = settings_of(request, kind)
    run = begin_deploy(settings, "ana", tmp_path)
    try:
        with opened(settings) as host:
            assert wait_until(lambda: bool(host.read_file(lock_path(settings, UNIT), sudo=True)), 120) is not None
        run.send_signal(number)
        assert wait_until(lambda: is_free(settings), 30) is not None
    finally:
        run.kill()
        run.communicate()
