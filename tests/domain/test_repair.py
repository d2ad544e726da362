"""Ways out that are computed: exact flags, settings and commands from the unit and the log."""

import pytest

from opslib.domain.diagnosis import Diagnosis, Evidence, Invocation
from opslib.domain.orphan import Holder, judge_owner
from opslib.domain.repair import RepairFacts, compute_repairs
from opslib.domain.unit_change import change_of, is_worse

UNIT = """\
[Unit]
Description=vLLM

[Service]
User=llm
WorkingDirectory=/srv/llm
MemoryMax=64G
ExecStart=/opt/vllm/bin/vllm serve /srv/models/m \\
    --port 8000 \\
    --quantization awq \\
    --num-scheduler-steps 8 \\
    --tensor-parallel-size 6
"""


def facts(**more):
    return RepairFacts(
        unit="vllm", unit_text=UNIT, unit_path="/etc/systemd/system/vllm.service", model_path="/srv/models/m", **more
    )


def verdict(cause, text=""):
    evidence = (Evidence(line=0, text=text),) if text else ()
    return Diagnosis(cause=cause, confidence="high", summary="", evidence=evidence)


# cause, the deciding line, what the way out changes or types
CASES = [
    ("model/max-model-len-above-limit", "max_model_len (9) is greater than the derived max_model_len (max_position_embeddings=4096 or x)", "+    --max-model-len 4096"),
    ("model/parallel-size-not-divisible", "Total number of attention heads (40) must be divisible by tensor parallel size (6).", "+    --tensor-parallel-size 5"),
    ("model/quantization-mismatch", "", "-    --quantization awq"),
    ("configuration/bad-argument", "vllm serve: error: unrecognized arguments: --num-scheduler-steps 8", "-    --num-scheduler-steps 8"),
    ("systemd/start-timeout", "", "+TimeoutStartSec=1800"),
    ("host-memory/oom-killed", "", "+MemoryMax=infinity"),
    ("systemd/chdir-failed", "", "install --directory --owner=llm --mode=0755 /srv/llm"),
    ("systemd/user-failed", "", "useradd --system --create-home --shell /usr/sbin/nologin llm"),
    ("systemd/exec-failed", "", "ls -lL /opt/vllm/bin/vllm"),
    ("systemd/start-limit", "", "systemctl reset-failed vllm"),
    ("checkpoint/missing-file", "FileNotFoundError: '/srv/models/m/model-00003-of-00030.safetensors'", "hf download REPOSITORY model-00003-of-00030.safetensors --local-dir /srv/models/m"),
    ("environment/permission-denied", "PermissionError: [Errno 13] Permission denied: '/srv/cache'", "setfacl --modify u:llm:rwX /srv/cache"),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "line", "wanted"), CASES, ids=[case[0] for case in CASES])
def test_the_exact_change(cause, line, wanted):
    """The computed way out holds the very change, and says how to check it."""
    (remedy,) = compute_repairs(verdict(cause, line), facts())
    assert wanted in f"{remedy.diff}\n{remedy.command}"
    assert remedy.check
    assert remedy.cost


def test_a_port_that_is_free():
    """The port's holder is named and left alone; the service moves."""
    (remedy,) = compute_repairs(
        verdict("configuration/port-in-use"), facts(port=8000, free_port=8001, holder="x (pid 7) keeps 8000.")
    )
    assert "+    --port 8001" in remedy.diff
    assert "x (pid 7)" in remedy.text
    change = change_of((remedy,), "configuration/port-in-use")
    assert change.words == "--port 8001"
    assert change.is_delicate
    assert "--port 8001" in change.unit_with(UNIT)


def test_a_compile_cache_is_put_aside():
    """The cache that the engine named, not a guess."""
    (remedy,) = compute_repairs(verdict("gpu-code/compile-cache"), facts(cache_path="/c/torch_compile_cache"))
    assert remedy.command == "sudo mv --no-target-directory /c/torch_compile_cache /c/torch_compile_cache.old"


def test_nothing_to_compute_from():
    """Without the figure, the path or the flag there is no computed way out, and no error."""
    for cause in (
        "configuration/port-in-use",
        "model/max-model-len-above-limit",
        "gpu-code/compile-cache",
        "process/killed",
    ):
        assert compute_repairs(verdict(cause), facts()) == ()
    odd = RepairFacts(unit="vllm", unit_text="no unit at all")
    assert compute_repairs(verdict("model/quantization-mismatch"), odd) == ()
    assert change_of((), "x/y") is None


def start(phase):
    invocation = Invocation(
        invocation_id="i", ending="failed", cause=None, phase=phase, exit="", first_line=0, last_line=1
    )
    return Diagnosis(cause="x/y", confidence="high", summary="", invocations=(invocation,))


def test_worse_is_less_far():
    """A start that ends in an earlier phase is worse; the same phase or a later one isn't."""
    assert is_worse(start("graphs"), start("weights"))
    assert not is_worse(start("graphs"), start("graphs"))
    assert not is_worse(start("weights"), start("warmup"))


HOLDER = Holder(pid=7, name="VLLM::EngineCor", started_ticks="99", cgroup_unit="vllm.service")


@pytest.mark.parametrize(
    ("more", "is_orphan"),
    [
        ({"unit_state": "failed"}, True),
        ({"unit_state": "not installed"}, True),
        ({"unit_state": "active", "invocation_id": "a" * 32, "unit_invocation_id": "b" * 32}, True),
        ({"unit_state": "active", "invocation_id": "a" * 32, "unit_invocation_id": "a" * 32}, False),
        ({"unit_state": "active"}, False),
        ({"unit_state": ""}, False),
        ({"unit_state": "failed", "cgroup_unit": ""}, False),
        ({"unit_state": "failed", "is_of_main_process": True}, False),
        ({"unit_state": "failed", "started_ticks": ""}, False),
        ({"unit_state": "failed", "name": "python3"}, False),
    ],
)
def test_in_doubt_a_process_is_owned(more, is_orphan):
    """Only an engine whose unit is dead, or runs another start, is left over."""
    owner = judge_owner(HOLDER.model_copy(update=more))
    assert owner.is_orphan is is_orphan
    assert owner.proof
