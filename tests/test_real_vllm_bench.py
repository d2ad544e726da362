"""Canary, comparison and second opinion on a real vLLM: restarts, a damaged shard, another dtype, vLLM's own client."""

import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opslib.app.headless import RunResult, run_headless
from opslib.domain.facts.journal import journal_command
from opslib.domain.host import Host
from opslib.hosts import open_host
from opslib.workflow.bench_client import run_client
from opslib.workflow.benchmark import one_token, run_benchmark
from opslib.workflow.facts import gather_unit_status
from tests.rig.inventory import write_inventory
from tests.rig.judgement import judged
from tests.rig.real_vllm import MODEL_DIR, MODEL_NAME, SERVE_FLAGS, RealVllmHost, with_flag

pytestmark = [pytest.mark.realvllm, pytest.mark.timeout(900, func_only=True)]

ALIAS, UNIT = "debian", "vllm-canary"
LOAD: dict[str, Any] = {"concurrency_levels": [1, 4], "requests_per_stream": 3, "input_tokens": 64, "output_tokens": 32}

NAMED = ("--served-model-name", MODEL_NAME)

Measure = Callable[..., tuple[RunResult, dict[str, Any]]]


@pytest.fixture(scope="module")
def host(real_vllm: RealVllmHost) -> Iterator[Host]:
    """The real host, opened."""
    opened = open_host(real_vllm.settings)
    yield opened
    real_vllm.debian.ssh("systemctl", "stop", UNIT, timeout_s=90)
    opened.close()


@pytest.fixture(scope="module")
def measure(real_vllm: RealVllmHost, host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measure]:
    """Starts the unit with a model and flags, and runs 50-benchmark on it; what came out, and its values by section."""
    place = tmp_path_factory.mktemp("bench")
    inventory = write_inventory(place / "hosts.toml", ALIAS, real_vllm.settings)

    def run(*, model: str = MODEL_DIR, **given: Any) -> tuple[RunResult, dict[str, Any]]:
        real_vllm.put_unit(UNIT, model=model, flags=(*given.pop("flags", SERVE_FLAGS), *NAMED))
        real_vllm.debian.ssh("systemctl", "restart", UNIT, timeout_s=90)
        wait_until_it_answers(host)
        parameters = {"host": ALIAS, "unit": UNIT, "model": MODEL_NAME, **LOAD, **given}
        result = run_headless("50-benchmark", parameters, runs_dir=place / "runs")
        return result, {section.name: section.value for section in result.record.sections}

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPSLIB_HOSTS", str(inventory))
        yield run


def wait_until_it_answers(host: Host) -> None:
    """The kit's own smoke check says when; a unit that has ended says why."""
    deadline = time.monotonic() + 480  # 40-90 s on two idle cores
    while one_token(host, 8000, MODEL_NAME, deadline_s=5).state != "ok":
        status = gather_unit_status(host, UNIT)
        assert status.active_state in ("active", "activating"), host.run(
            journal_command(UNIT, lines=30), sudo=True
        ).text
        assert time.monotonic() < deadline, "the engine did not answer in time"
        time.sleep(2)


def zero_a_shard(folder: Path) -> str:
    """Fill the tensors of one shard in the middle with zeros; its header stays."""
    path = sorted(folder.glob("*.safetensors"))[2]
    content = path.read_bytes()
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    path.write_bytes(content[:begin] + bytes(len(content) - begin))
    return path.name


@pytest.fixture(scope="module")
def first(measure: Measure) -> tuple[RunResult, dict[str, Any]]:
    """The first run: a fingerprint is kept."""
    return measure()


def test_the_first_run_keeps_a_fingerprint(first: tuple[RunResult, dict[str, Any]]) -> None:
    """A real engine gives log-probabilities of prompt and answer, tokens, and the model's files are read."""
    result, values = first
    canary = values["canary"]
    kept = canary["fingerprint"]
    assert (canary["verdict"], result.exit_code) == ("first", 0), (canary["summary"], result.outcome)
    assert (kept["dtype"], kept["vocab_size"]) == ("bfloat16", 2000)
    assert len(kept["plain_logprobs"]) > 50
    assert all(each["tokens"] and not each["error"] for each in kept["continuations"]), kept["continuations"]
    assert kept["chat_tokens_digest"]
    assert [level["concurrency"] for level in values["benchmark"]["levels"]] == [1, 4]
    assert all(len(level["repeats"]) == 3 for level in values["benchmark"]["levels"])


def test_vllms_own_client_agrees(first: tuple[RunResult, dict[str, Any]], host: Host) -> None:
    """`vllm bench serve`, run from the unit's environment on the host, finds the same figures within the noise.

    One stream, since a Python client takes a part of a core from an engine that has two; ours is measured before and
    after, and theirs must lie between both, with as much again as they differ and 35 % more to either side.
    """
    assert judged(first[0].folder) == ("ok", 0), first[0].outcome
    load: dict[str, Any] = {"levels": [1], "requests_per_stream": 12, "input_tokens": 64, "output_tokens": 64}
    before = run_benchmark(host, port=8000, model=MODEL_NAME, **load).levels[0]
    theirs = run_client(host, "vllm", port=8000, model=MODEL_NAME, root=MODEL_DIR, deadline_s=300, **load).levels[0]
    after = run_benchmark(host, port=8000, model=MODEL_NAME, **load).levels[0]
    assert (theirs.n_errors, theirs.total_output_tokens) == (0, 12 * 64)
    for figure in ("tpot_ms", "e2e_latency_ms"):
        low, high = sorted(getattr(level, figure).p50 for level in (before, after))
        slack = 0.35 * high + (high - low)
        assert low - slack <= getattr(theirs, figure).p50 <= high + slack, (figure, low, high, theirs)


def test_a_restart_is_the_same(first: tuple[RunResult, dict[str, Any]], measure: Measure) -> None:
    """After a restart the canary says *same*, and the figures are held against the first run's."""
    result, values = measure()
    assert values["canary"]["verdict"] == "same", values["canary"]["summary"]
    assert result.outcome.state in ("ok", "warning")  # a warning where a busy machine made it slower
    assert values["compare"]["baseline"] == first[0].folder.name
    assert values["compare"]["differences"] == []


def test_another_dtype_is_explained(first: tuple[RunResult, dict[str, Any]], measure: Measure) -> None:
    """`--dtype float32` instead of bfloat16 is an explained difference, named."""
    result, values = measure(flags=with_flag("--dtype", "float32"))
    assert judged(first[0].folder) == ("ok", 0), first[0].outcome
    assert values["canary"]["verdict"] == "explained difference", values["canary"]["summary"]
    assert "dtype bfloat16 -> float32" in values["canary"]["summary"]
    assert result.outcome.state in ("ok", "warning")


def test_a_shard_of_zeros_is_corrupt(
    first: tuple[RunResult, dict[str, Any]], measure: Measure, real_vllm: RealVllmHost
) -> None:
    """With one shard of zeros the engine starts and answers; the canary says *corrupt* before any load."""
    zero_a_shard(real_vllm.copy_model("tiny-zero"))
    result, values = measure(model="/srv/models/tiny-zero")
    assert judged(first[0].folder) == ("ok", 0), first[0].outcome
    assert values["canary"]["verdict"] == "corrupt", values["canary"]["summary"]
    assert (result.outcome.state, result.exit_code) == ("critical", 2)
    assert "benchmark" not in values
