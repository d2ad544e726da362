"""A real vLLM behind the notify shim: `systemctl` tells its phases and its first token, and a dead core is a failure."""

import time
from collections.abc import Iterator

import pytest

from opslib.domain.vllm_unit import render_vllm_unit
from opslib.workflow.shim import shim_text
from tests.rig.real_vllm import ENVIRONMENT, MODEL_DIR, SERVE_FLAGS, VLLM, RealVllmHost

pytestmark = [pytest.mark.realvllm, pytest.mark.timeout(500, func_only=True)]

UNIT = "vllm-shim"
SHIM = "/var/lib/opslib/notify_shim.py"


@pytest.fixture
def unit(real_vllm: RealVllmHost) -> Iterator[str]:
    """The kit's unit with the shim, not started; gone at the end."""
    text = render_vllm_unit(
        unit=UNIT,
        vllm=VLLM,
        model_path=MODEL_DIR,
        flags=("--port", "8000", *SERVE_FLAGS),
        environment=ENVIRONMENT,
        notify=("/usr/bin/python3", SHIM, "--stall-s", "60", "--"),
    )
    path = f"/etc/systemd/system/{UNIT}.service"
    limit = b"[Service]\nTimeoutStartSec=10\nRestartSec=1\n"
    real_vllm.debian.put_files(
        {
            SHIM: (shim_text().encode(), 0o755),
            path: (text.encode(), 0o644),
            f"{path}.d/10-case.conf": (limit, 0o644),
        }
    )
    real_vllm.debian.ssh("systemctl", "daemon-reload")
    yield UNIT
    real_vllm.debian.ssh("systemctl", "stop", UNIT, timeout_s=90)


def test_start_tells_phases_and_first_token_and_a_killed_core_leads_to_a_restart(
    real_vllm: RealVllmHost, unit: str
) -> None:
    """Slower than its start timeout it doesn't fail while it moves; Restart=on-failure sees the core's death."""
    debian = real_vllm.debian

    def shown(name: str) -> str:
        return debian.ssh("systemctl", "show", "--property", name, "--value", unit).stdout.strip()

    def watch(until: str, *, restarts: str) -> list[str]:
        seen: list[str] = []
        deadline = time.monotonic() + 220
        while shown("ActiveState") != until or shown("NRestarts") != restarts:
            is_late = time.monotonic() > deadline or int(shown("NRestarts")) > int(restarts)
            assert not is_late, (seen, debian.ssh("journalctl", f"--unit={unit}", "--no-pager").stdout[-4000:])
            seen += [text for text in [shown("StatusText")] if text not in seen]
            time.sleep(0.1)
        return seen

    debian.ssh("systemctl", "start", "--no-block", unit)
    seen = watch("active", restarts="0")
    order = ("resolving configuration", "joining ranks")  # the weights of a tiny model are there at once
    assert [text for text in seen if text in order] == list(order), seen
    assert shown("StatusText") == "serving"
    journal = debian.ssh("journalctl", f"--unit={unit}", "--output=cat", "--no-pager").stdout
    assert journal.index('"POST /v1/completions HTTP/1.1" 200') < journal.index(f"Started {unit}")

    debian.ssh("kill", "-KILL", real_vllm.engine_core_pid(unit))
    watch("active", restarts="1")
    journal = debian.ssh("journalctl", f"--unit={unit}", "--output=cat", "--no-pager").stdout
    assert "and nobody had asked it to stop: a failure" in journal, journal[-2000:]
    assert len(debian.ssh("pgrep", "--full", SHIM).stdout.split()) == 1
