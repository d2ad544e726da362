"""A real vLLM behind the notify shim: `systemctl` tells its phases and its first token, and a dead core is a failure."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from subprocess import CompletedProcess

import pytest

from opslib.domain.vllm_unit import render_vllm_unit
from opslib.workflow.shim import shim_text
from tests.rig.real_vllm import ENVIRONMENT, MODEL_DIR, SERVE_FLAGS, VLLM, RealVllmHost

pytestmark = [pytest.mark.realvllm, pytest.mark.timeout(500, func_only=True)]

UNIT = "vllm-shim"
SHIM = "/var/lib/opslib/notify_shim.py"
START_S, STALL_S = 10, 25  # the start timeout; how long a start may stand still
STILL_S, MOVES_S, N_PULSES = 5, 1, 4  # a slow disk: the engine stands still, goes on for a second, stands still, ...

Starting = Future[CompletedProcess[str]]


class Unit:
    """The kit's unit with the shim, and what systemd says of it."""

    def __init__(self, real: RealVllmHost, pool: ThreadPoolExecutor) -> None:
        self.real, self.debian, self._pool = real, real.debian, pool

    def put(self, model: str, *, stop_s: int = 30, restart_s: int = 1) -> None:
        """Install it for that model, not started, with a short start timeout."""
        text = render_vllm_unit(
            unit=UNIT,
            vllm=VLLM,
            model_path=model,
            flags=("--port", "8000", *SERVE_FLAGS),
            environment=ENVIRONMENT,
            notify=("/usr/bin/python3", SHIM, "--stall-s", str(STALL_S), "--"),
        )
        path = f"/etc/systemd/system/{UNIT}.service"
        times = f"TimeoutStartSec={START_S}\nTimeoutStopSec={stop_s}\nRestartSec={restart_s}\n"
        files = {SHIM: (shim_text().encode(), 0o755), path: (text.encode(), 0o644)}
        self.debian.put_files({**files, f"{path}.d/10-case.conf": (f"[Service]\n{times}".encode(), 0o644)})
        self.debian.ssh("systemctl", "daemon-reload")

    def start(self) -> Starting:
        """`systemctl start`, which takes as long as the start does."""
        return self._pool.submit(self.debian.ssh, "systemctl", "start", UNIT, timeout_s=300)

    def shown(self, name: str) -> str:
        """A property of the unit."""
        return self.debian.ssh("systemctl", "show", "--property", name, "--value", UNIT).stdout.strip()

    def journal(self) -> str:
        """All its lines so far."""
        return self.debian.ssh("journalctl", f"--unit={UNIT}", "--output=cat", "--no-pager").stdout

    def stand_still_now_and_then(self) -> None:
        """Stop all processes of the engine core, again and again, as a disk would that hangs."""
        pulse = f"pkill -STOP VLLM; sleep {STILL_S}; pkill -CONT VLLM; sleep {MOVES_S}"
        self.debian.ssh("systemd-run", "sh", "-c", f"for n in $(seq {N_PULSES}); do {pulse}; done")

    def statuses(self, starting: Starting, until: str = "") -> list[str]:
        """What `systemctl status` shows, one after the other, until that or until the start is over."""
        seen: list[str] = []
        deadline = time.monotonic() + 250
        while not starting.done() and not (until and until in seen):
            assert time.monotonic() < deadline, (seen, self.journal()[-4000:])
            text = self.shown("StatusText")
            seen += [text] if text not in seen[-1:] else []
            time.sleep(0.1)
        return seen


@pytest.fixture
def unit(real_vllm: RealVllmHost) -> Iterator[Unit]:
    """The unit, stopped at the end."""
    with ThreadPoolExecutor(1) as pool:
        yield Unit(real_vllm, pool)
        real_vllm.debian.ssh("systemctl", "stop", UNIT, timeout_s=90)
    real_vllm.debian.ssh("systemctl", "reset-failed", UNIT)


def test_slow_start_returns_at_the_first_token_and_a_killed_core_leads_to_a_restart(unit: Unit) -> None:
    """Over its start timeout it doesn't fail while it moves now and then; Restart=on-failure sees the core's death."""
    unit.put(MODEL_DIR)
    began_at = time.monotonic()
    starting = unit.start()
    seen = unit.statuses(starting, until="joining ranks")
    unit.stand_still_now_and_then()
    seen += unit.statuses(starting)
    took_s = time.monotonic() - began_at
    journal = unit.journal()
    assert starting.result().returncode == 0, (seen, journal[-4000:])
    assert took_s > 3 * START_S
    assert journal.index('"POST /v1/completions HTTP/1.1" 200') < journal.index(f"Started {UNIT}")
    order = ("resolving configuration", "joining ranks")  # the weights of a tiny model are there at once
    assert [text for text in dict.fromkeys(seen) if text in order] == list(order), seen
    assert (unit.shown("ActiveState"), unit.shown("NRestarts"), unit.shown("StatusText")) == ("active", "0", "serving")

    unit.debian.ssh("kill", "-KILL", unit.real.engine_core_pid(UNIT))
    deadline = time.monotonic() + 300
    while (unit.shown("NRestarts"), unit.shown("ActiveState")) != ("1", "active"):
        assert time.monotonic() < deadline, unit.journal()[-4000:]
        time.sleep(0.5)
    assert "and nobody had asked it to stop: a failure" in unit.journal()
    assert len(unit.debian.ssh("pgrep", "--full", SHIM).stdout.split()) == 1
    unit.debian.ssh("systemctl", "stop", UNIT, timeout_s=90)
    assert (unit.shown("ActiveState"), unit.shown("Result")) == ("inactive", "success")


def test_a_load_that_stalls_fails_at_its_own_deadline(unit: Unit) -> None:
    """A shard that nobody ever delivers (a FIFO: as a dead network disk): the start times out where it stands still."""
    shard = sorted(unit.real.copy_model("tiny-stuck").glob("*.safetensors"))[2]
    shard.unlink()
    os.mkfifo(shard)
    unit.put("/srv/models/tiny-stuck", stop_s=2, restart_s=600)  # its result stands until it is started again
    starting = unit.start()
    seen = unit.statuses(starting, until="loading weights 0/5")
    stuck_at = time.monotonic()
    seen += unit.statuses(starting)
    took_s = time.monotonic() - stuck_at
    assert (starting.result().returncode, unit.shown("Result")) == (1, "timeout"), (seen, unit.journal()[-4000:])
    assert "loading weights 0/5; nothing moves since 10 s" in seen, seen
    assert STALL_S - 4 <= took_s <= STALL_S + 40
    assert unit.debian.ssh("pgrep", "--full", "VLLM|vllm serve").stdout == ""
