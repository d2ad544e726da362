"""A real vLLM that fails for real, in every way that a CPU can show, and what the kit says of it over SSH."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from opslib.domain.host import Host
from opslib.domain.launch import LaunchState
from opslib.workflow.investigate import Investigation, investigate, wait_until_ended
from opslib.workflow.launch import last_status, start_unit, watch_launch
from tests.conftest import opened
from tests.rig.real_vllm import SERVE_FLAGS, VLLM, RealVllmHost, real_vllm_host, with_flag
from tests.rig.skip import or_skip

pytestmark = [pytest.mark.realvllm, pytest.mark.timeout(240, func_only=True)]

PORT = 8000
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
    """One way to fail: what is done, and what must be said of it (cause, confidence, piece of the first quoted line)."""

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


FAILURES = [
    # systemd never gets as far as the engine
    Failure(
        "exec-missing", "systemd/exec-failed", "status=203", drop_in=("ExecStart=", f"ExecStart={VLLM}-0.33 serve")
    ),
    Failure("user-missing", "systemd/user-failed", "status=217", drop_in=("User=vllm",)),
    Failure("directory-missing", "systemd/chdir-failed", "status=200", drop_in=("WorkingDirectory=/srv/vllm",)),
    Failure("start-timeout", "systemd/start-timeout", "timed out", drop_in=("Type=notify", "TimeoutStartSec=4")),
    # the engine's own configuration
    Failure(
        "broken-import",
        "environment/python-dependency",
        "ImportError",
        environment={"PYTHONPATH": "/srv/overlay"},
        files={"/srv/overlay/safetensors/__init__.py": (b"", 0o644)},
    ),
    Failure("unknown-flag", "configuration/bad-argument", "--max-num-seq5", flags=with_flag("--max-num-seq5", "4")),
    Failure("port-taken", "configuration/port-in-use", "ddress already in use"),
    Failure("hub-offline", "hub/not-found-offline", "", model="acme/tiny-llama"),
    Failure("path-absent", "hub/not-found-offline", "", model="/srv/models/not-there"),
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
    Failure("quantization", "model/quantization-mismatch", "quantization", flags=with_flag("--quantization", "awq")),
    # the engine process, with the weights
    Failure("shard-missing", "checkpoint/missing-file", "", damage=remove_shard),
    Failure("shard-truncated", "checkpoint/corrupt", "SafetensorError", damage=truncate_shard),
    Failure("shard-corrupt", "checkpoint/corrupt", "SafetensorError", damage=corrupt_shard),
    Failure(
        "kv-too-small",
        "gpu-memory/kv-cache-below-max-model-len",
        "KV cache",
        damage=set_config(max_position_embeddings=1048576),
        flags=with_flag("--max-model-len", "1048576"),
    ),
]


@pytest.fixture(scope="module")
def real() -> Iterator[RealVllmHost]:
    with or_skip(real_vllm_host()) as host:
        yield host


@pytest.fixture(scope="module")
def host(real: RealVllmHost) -> Iterator[Host]:
    with opened(real.settings) as connected:
        yield connected


def fail(real: RealVllmHost, host: Host, failure: Failure) -> tuple[LaunchState, Investigation, str]:
    """Cause it, see it end, and ask why."""
    unit = f"vllm-{failure.name}"
    model = failure.model or f"/srv/models/{failure.name}"
    if not failure.model:
        (failure.damage or (lambda _: None))(real.copy_model(failure.name))
    real.debian.put_files(failure.files)
    real.put_unit(
        unit,
        model=model,
        flags=failure.flags,
        environment=failure.environment,
        drop_in=("Restart=no", *failure.drop_in),
    )
    if failure.name == "port-taken":
        real.debian.ssh("systemd-run", "--unit=squatter", "python3", "-m", "http.server", str(PORT))
    try:
        return ended(host, unit)
    finally:
        real.debian.ssh("systemctl", "stop", unit, "squatter")


def ended(host: Host, unit: str) -> tuple[LaunchState, Investigation, str]:
    """Start the unit and watch it to its end; how that was seen, and the verdict."""
    start = start_unit(host, unit)
    status = last_status(watch_launch(host, unit, port=PORT, timeout_s=ENDED_TIMEOUT_S, start=start, has_gpus=False))
    wait_until_ended(host, unit, status.invocation_id, timeout_s=60)
    found = investigate(host, unit, status.invocation_id or None, port=PORT, has_gpus=False)
    return status.state, found, status.reason


@pytest.mark.parametrize("failure", FAILURES, ids=[failure.name for failure in FAILURES])
def test_real_failure_is_named(real: RealVllmHost, host: Host, failure: Failure) -> None:
    """A failure that was caused for real is seen, named by its id of the catalogue, and the deciding line is quoted."""
    state, found, _ = fail(real, host, failure)
    diagnosis = found.diagnosis
    told = found.evidence.journal_text[-4000:]
    assert state in ENDED, told
    assert (diagnosis.cause, diagnosis.confidence) == (failure.cause, failure.confidence), (diagnosis.summary, told)
    assert failure.phrase in diagnosis.evidence[0].text
