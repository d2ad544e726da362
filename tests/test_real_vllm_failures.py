"""A real vLLM that fails for real, in every way that a CPU can show, and what the kit says of it over SSH."""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from opslib.domain.host import Host
from opslib.domain.launch import LaunchState, LaunchStatus
from opslib.onhost import gpu_guard
from opslib.workflow.investigate import Investigation, investigate, wait_until_ended
from opslib.workflow.launch import last_status, show_unit, start_unit, watch_launch
from tests.conftest import opened
from tests.rig.real_vllm import SERVE_FLAGS, VLLM, RealVllmHost, with_flag

pytestmark = [pytest.mark.realvllm, pytest.mark.timeout(240, func_only=True)]

PORT = 8000
GUARD = "/usr/bin/python3 /var/lib/opslib/gpu_guard.py"
NVIDIA_SMI = "/opt/standin/bin/nvidia-smi"
ENDED_TIMEOUT_S = 180.0
ENDED = {LaunchState.CRASHED, LaunchState.FAILED}


# ---------------------------------------------------------------- what is done to a copy of the model


def shards(model: Path) -> list[Path]:
    """The shards in order."""
    return sorted(model.glob("*.safetensors"))


def remove_shard(model: Path) -> None:
    """The third shard is not there; the index still names it."""
    shards(model)[2].unlink()


def truncate_shard(model: Path) -> None:
    """The third shard ends in the middle, as after a broken download."""
    content = shards(model)[2].read_bytes()
    shards(model)[2].write_bytes(content[: len(content) // 2])


def corrupt_shard(model: Path) -> None:
    """The third shard begins with what is no header (a page of a proxy, a bad disk)."""
    content = shards(model)[2].read_bytes()
    shards(model)[2].write_bytes(b"\xff" * 64 + content[64:])


def set_config(**changes: object) -> Callable[[Path], None]:
    """Other values in config.json."""

    def change(model: Path) -> None:
        path = model / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


# ---------------------------------------------------------------- the table


@dataclass(frozen=True)
class Failure:
    """One way to fail: what is done, and what must be said of it (cause, confidence, a pattern of the first quoted line)."""

    name: str
    cause: str
    phrase: str
    confidence: str = "high"
    damage: Callable[[Path], None] | None = None
    model: str = ""  # another path than that of the (damaged) model
    flags: Sequence[str] = SERVE_FLAGS
    environment: dict[str, str] = field(default_factory=dict)
    drop_in: Sequence[str] = ()
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    before: Callable[[RealVllmHost], None] | None = None


FAILURES = [
    # systemd never gets as far as the engine
    Failure(
        "exec-missing",
        "systemd/exec-failed",
        "/opt/vllm/bin/vllm-0.33: No such file|status=203/EXEC",
        drop_in=("ExecStart=", f"ExecStart={VLLM}-0.33 serve"),
    ),
    Failure("user-missing", "systemd/user-failed", "user credentials|status=217/USER", drop_in=("User=vllm",)),
    Failure(
        "directory-missing",
        "systemd/chdir-failed",
        "working directory failed|status=200/CHDIR",
        drop_in=("WorkingDirectory=/srv/vllm",),
    ),
    Failure("start-timeout", "systemd/start-timeout", "timed out", drop_in=("Type=notify", "TimeoutStartSec=4")),
    Failure("guard-failed", "systemd/pre-start-failed", "ontrol process exited", drop_in=("ExecStartPre=/bin/false",)),
    Failure(
        "guard-gave-up",
        "gpu-memory/held-by-another",
        "gave up after 2 s",
        drop_in=(f"ExecStartPre={GUARD} --gpus 0 --required-free-gib 90 --wait-s 2 --nvidia-smi {NVIDIA_SMI}",),
        files={"/var/lib/opslib/gpu_guard.py": (Path(gpu_guard.__file__).read_bytes(), 0o755)},
        before=RealVllmHost.hold_gpu,
    ),
    # the engine's own configuration
    Failure(
        "broken-import",
        "environment/python-dependency",
        "No module named 'safetensors.torch'",
        environment={"PYTHONPATH": "/srv/overlay"},
        files={"/srv/overlay/safetensors/__init__.py": (b"", 0o644)},
    ),
    Failure("unknown-flag", "configuration/bad-argument", "--max-num-seq5", flags=with_flag("--max-num-seq5", "4")),
    Failure("port-taken", "configuration/port-in-use", "ddress already in use", before=RealVllmHost.take_port),
    Failure("hub-offline", "hub/not-found-offline", "outgoing traffic has been disabled", model="acme/tiny-llama"),
    Failure("path-absent", "checkpoint/missing-file", "/srv/models/not-there", model="/srv/models/not-there"),
    Failure(
        "context-above-limit",
        "model/max-model-len-above-limit",
        "max_model_len",
        flags=with_flag("--max-model-len", "4096"),
    ),
    Failure(
        "architecture",
        "model/unsupported-architecture",
        "AcmeForCausalLM",
        damage=set_config(architectures=["AcmeForCausalLM"], model_type="llama"),
    ),
    Failure(
        "tp-not-dividing",
        "model/parallel-size-not-divisible",
        "divisible",
        flags=with_flag("--tensor-parallel-size", "3"),
    ),
    Failure(
        "quantization", "model/quantization-mismatch", "config file for awq", flags=with_flag("--quantization", "awq")
    ),
    # the engine process, with the weights
    Failure("shard-missing", "checkpoint/missing-file", "model-00003-of-00005.safetensors", damage=remove_shard),
    Failure("shard-truncated", "checkpoint/corrupt", "SafetensorError", damage=truncate_shard),
    Failure("shard-corrupt", "checkpoint/corrupt", "SafetensorError", damage=corrupt_shard),
    Failure(
        "kv-too-small",
        "gpu-memory/kv-cache-below-max-model-len",
        r"max seq len \(1048576\)",
        damage=set_config(max_position_embeddings=1048576),
        flags=with_flag("--max-model-len", "1048576"),
    ),
]


@pytest.fixture(scope="module")
def host(real_vllm: RealVllmHost) -> Iterator[Host]:
    with opened(real_vllm.settings) as connected:
        yield connected


def fail(real: RealVllmHost, host: Host, failure: Failure) -> tuple[LaunchState, Investigation]:
    """Cause it, see it end, and ask why."""
    unit = f"vllm-{failure.name}"
    model = failure.model or f"/srv/models/{failure.name}"
    if not failure.model:
        (failure.damage or (lambda _: None))(real.copy_model(failure.name))
    real.debian.put_files(failure.files)
    drop_in = ("Restart=no", *failure.drop_in)
    real.put_unit(unit, model=model, flags=failure.flags, environment=failure.environment, drop_in=drop_in)
    (failure.before or (lambda _: None))(real)
    try:
        status = watched(host, unit)
        return status.state, why(host, unit, status)
    finally:
        real.debian.ssh("systemctl", "stop", unit, "squatter", timeout_s=90)


def watched(host: Host, unit: str) -> LaunchStatus:
    """Start the unit and watch it until it serves or has ended."""
    start = start_unit(host, unit)
    return last_status(watch_launch(host, unit, port=PORT, timeout_s=ENDED_TIMEOUT_S, start=start, has_gpus=False))


def why(host: Host, unit: str, status: LaunchStatus) -> Investigation:
    """The evidence and verdict on the start that was watched, once it is over."""
    wait_until_ended(host, unit, status.invocation_id, timeout_s=60)
    return investigate(host, unit, status.invocation_id or None, port=PORT, has_gpus=False)


def wait_for_restart(host: Host, unit: str) -> None:
    """Return when systemd has started the unit once more, or the patience is over."""
    deadline = time.monotonic() + 30
    while show_unit(host, unit).n_restarts == 0 and time.monotonic() < deadline:
        time.sleep(0.2)


@pytest.mark.parametrize("failure", FAILURES, ids=[failure.name for failure in FAILURES])
def test_real_failure_is_named(real_vllm: RealVllmHost, host: Host, failure: Failure) -> None:
    """A failure that was caused for real is seen, named by its id of the catalogue, and the deciding line is quoted."""
    state, found = fail(real_vllm, host, failure)
    diagnosis = found.diagnosis
    told = found.evidence.journal_text[-4000:]
    assert state in ENDED, told
    assert (diagnosis.cause, diagnosis.confidence) == (failure.cause, failure.confidence), (diagnosis.summary, told)
    assert re.search(failure.phrase, diagnosis.evidence[0].text)
    assert diagnosis.remedies


def test_engine_killed_while_serving_and_a_clean_stop(real_vllm: RealVllmHost, host: Host) -> None:
    """An engine core that is killed makes vLLM end with status 0, and that is a crash; a stop on request is none."""
    unit, debian = "vllm-killed", real_vllm.debian
    real_vllm.put_unit(unit, drop_in=("Restart=always", "RestartSec=1"))
    try:
        status = watched(host, unit)
        assert status.state is LaunchState.READY, status.reason
        debian.ssh("kill", "-KILL", real_vllm.engine_core_pid(unit))
        found = why(host, unit, status).diagnosis
        wait_for_restart(host, unit)
        again = last_status(watch_launch(host, unit, port=PORT, timeout_s=ENDED_TIMEOUT_S, has_gpus=False))
    finally:
        debian.ssh("systemctl", "stop", unit, timeout_s=90)
    assert (found.cause, found.confidence) == ("process/died-silently", "medium"), found
    assert "exited unexpectedly" in found.evidence[0].text
    assert found.invocations[-1].exit == "Deactivated successfully."
    assert (again.state, again.n_restarts) == (LaunchState.READY, 1), again.reason
    stopped = why(host, unit, again).diagnosis
    assert (stopped.cause, stopped.confidence) == ("none", "high"), stopped
    assert "stopped on request" in stopped.summary
