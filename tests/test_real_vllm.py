"""The whole on a real vLLM: `90-deploy`, unchanged, in the real Debian host, as an operator without root runs it."""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opslib.app.headless import RunResult, run_headless
from opslib.app.ledger import read_ledger
from opslib.cli.main import call
from opslib.domain.parameters import schema_of
from tests.rig.inventory import write_inventory
from tests.rig.judgement import judged
from tests.rig.real_vllm import MODEL_NAME, VERSION, RealVllmHost

pytestmark = [pytest.mark.realvllm, pytest.mark.timeout(300, func_only=True)]

ALIAS = "debian"
UNIT = "vllm-tiny"
DEPLOY = {
    "host": ALIAS,
    "unit": UNIT,
    "model": MODEL_NAME,
    "gpus": [],
    "tensor_parallel_size": 1,
    "max_model_len": 1024,
    "max_num_seqs": 16,
    "extra_args": ["--dtype", "bfloat16", "--enforce-eager"],
    "engine_version": VERSION.rpartition(".")[0],
    "consent": "given",
    "ready_timeout_s": 240,
    "concurrency_levels": [1, 2, 4, 8],
    "input_tokens": 64,
    "output_tokens": 32,
}

DIED = {"process/died-silently", "process/killed"}

Sections = dict[str, dict[str, Any]]
Runner = Callable[..., tuple[RunResult, Sections]]


@pytest.fixture(scope="module")
def run(real_vllm: RealVllmHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Runs a runbook headless on the real host; what came out, and its sections by name.

    $OPSLIB_EXAMPLES names a folder that the records go to, for one that is to be kept (runs/examples/README.md).
    """
    place = tmp_path_factory.mktemp("real")
    inventory = write_inventory(place / "hosts.toml", ALIAS, real_vllm.settings)

    def run_one(runbook: str, *, is_example: bool = False, **given: Any) -> tuple[RunResult, Sections]:
        on_event = given.pop("on_event", lambda _event: None)
        kept = os.environ.get("OPSLIB_EXAMPLES") if is_example else None
        result = run_headless(runbook, given, runs_dir=Path(kept or place / "runs"), on_event=on_event)
        sections = json.loads((result.folder / "record.json").read_text())["sections"]
        return result, {entry["name"]: entry for entry in sections}

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPSLIB_HOSTS", str(inventory))
        yield run_one


@pytest.fixture(scope="module")
def deployed(run: Runner, real_vllm: RealVllmHost) -> Iterator[tuple[RunResult, Sections]]:
    """The deploy that goes well; its service runs until the module ends."""
    yield run("90-deploy", is_example=True, **DEPLOY)
    real_vllm.debian.ssh("systemctl", "stop", UNIT, timeout_s=90)


def test_deploy_ends_ready_and_measured(deployed: tuple[RunResult, Sections]) -> None:
    """A real deploy ends ok with exit code 0: ready without a restart, and every concurrency level measured."""
    result, sections = deployed
    assert judged(result.folder) == ("ok", 0), result.outcome
    launch, levels = sections["launch"]["value"], sections["benchmark"]["value"]["levels"]
    assert (launch["state"], launch["n_restarts"]) == ("ready", 0)
    assert [level["concurrency"] for level in levels] == DEPLOY["concurrency_levels"]
    assert all(level["n_errors"] == 0 and level["output_throughput"] > 0 for level in levels)
    assert f"{UNIT} is ready" in result.outcome.reason


def test_record_holds_what_the_engine_printed(deployed: tuple[RunResult, Sections]) -> None:
    """Version, arguments and KV cache are read from the real journal, and the phases of the start are in order."""
    launch = deployed[1]["launch"]["value"]
    engine = launch["engine"]
    assert engine["version"].startswith(VERSION)
    assert engine["arguments"]["max_model_len"] == DEPLOY["max_model_len"]
    assert engine["kv_cache_tokens"] > DEPLOY["max_model_len"]
    assert engine["available_kv_cache_bytes"] == 2**30
    seen = [step["seen"] for step in launch["timeline"]]
    phases = ["importing", "resolving configuration", "loading weights", "allocating KV cache"]
    assert [step for step in seen if step in phases] == phases
    assert seen[-1].startswith("ready")


def test_ledger_holds_the_plan_against_the_launch(deployed: tuple[RunResult, Sections]) -> None:
    """The KV cache that was planned is the one that the real engine then printed, token for token."""
    entry = read_ledger(deployed[0].folder.parent, ALIAS)[-1]
    assert entry.max_num_seqs == DEPLOY["max_num_seqs"]
    told = {name: (predicted, actual) for name, predicted, actual, _ in entry.rows()}
    assert told["kv_cache_tokens"] == (524288.0, 524288.0)
    assert told["max_concurrency"] == (512.0, 512.0)
    assert entry.actual["kv_cache"] == 1.0
    assert entry.actual["ready_s"] > 0


def test_page_is_self_contained(deployed: tuple[RunResult, Sections]) -> None:
    """The record's page names nothing that would have to be fetched, runs no script, and holds the picture."""
    page = (deployed[0].folder / "record.html").read_text()
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|@import|url\(\s*["']?https?:""", page)
    assert "<script" not in page
    assert "data:image/png;base64," in page
    assert f"vLLM {VERSION}" in page


# 12 long answers; how many came whole, in a file
BUSY = """
import concurrent.futures, json, urllib.request
def ask(n):
    body = {"prompt": "word %d" % n, "max_tokens": 900, "ignore_eos": True, "temperature": 0}
    request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    return json.load(urllib.request.urlopen(request))["usage"]["completion_tokens"] == 900
with concurrent.futures.ThreadPoolExecutor(12) as pool:
    open("/root/whole", "w").write(str(sum(pool.map(ask, range(12)))))
"""


def test_a_real_engine_lives_by_the_command_line(
    deployed: tuple[RunResult, Sections], real_vllm: RealVllmHost, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Restarted with another flag it is the new invocation with it; drained no answer is cut and its GPU memory is
    waited for; a start that fails is taken back by one command.
    """
    debian = real_vllm.debian

    def states(words: str) -> tuple[int, dict[str, str]]:
        code = call([*words.split(), "--yes", "--json"])
        return code, {check["name"]: check["state"] for check in json.loads(capsys.readouterr().out)["checks"]}

    def in_argv(words: str) -> bool:
        return words in debian.ssh("pgrep", "--full", "--list-full", "bin/vllm serve").stdout

    proven = dict.fromkeys(("ready", "new-invocation", "answering-process", "running-flags"), "ok")
    assert call(["status", ALIAS, UNIT]) == 0
    assert call(["adopt", ALIAS, UNIT, "--set", "--max-num-seqs=12", "--yes"]) == 0
    assert not in_argv("--max-num-seqs 12")
    capsys.readouterr()
    assert states(f"restart {ALIAS} {UNIT}") == (0, proven)
    assert in_argv("--max-num-seqs 12")
    with real_vllm.gpu_of(UNIT):
        debian.put_files({"/root/busy.py": (BUSY.encode(), 0o644)})
        debian.ssh("systemd-run", "--unit=busy", "python3", "/root/busy.py")
        wait_for_requests(debian)
        assert call(["drain", ALIAS, UNIT, "--deadline", "120", "--yes"]) == 0
        told = "".join(capsys.readouterr())
        assert re.search(r"[1-9]\d* requests running", told), told
        assert "released, asked again (GPU 0: 57.5 GiB)" in told
    assert debian.ssh("cat", "/root/whole").stdout == "12"
    assert call(["adopt", ALIAS, UNIT, "--set", "--no-such-flag=1", "--yes"]) == 4
    assert "the installed engine has no flag --no-such-flag" in capsys.readouterr().err
    assert call(["adopt", ALIAS, UNIT, "--set", "--no-such-flag=1", "--force", "--yes"]) == 0
    capsys.readouterr()
    assert states(f"start {ALIAS} {UNIT}") == (2, {"ready": "critical"})
    code, back = states(f"rollback {ALIAS} {UNIT} --runs-dir {tmp_path}")
    assert (code, {**back, **proven}) == (0, back)
    assert in_argv("--max-num-seqs 12")
    assert list(tmp_path.glob("*-40-investigate-crash/evidence/*"))


def wait_for_requests(debian: Any) -> None:
    """Return when the engine works on a request."""
    deadline = time.monotonic() + 30
    while "num_requests_running{" not in (text := metrics(debian)) or re.search(r"_running\{[^}]*\} 0\.0", text):
        assert time.monotonic() < deadline, text
        time.sleep(0.1)


def metrics(debian: Any) -> str:
    """What the engine tells of itself."""
    asked = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000/metrics').read().decode())"
    return str(debian.ssh("python3", "-c", asked).stdout)


def test_engine_killed_while_measured_is_noticed(run: Runner, deployed: Any, real_vllm: RealVllmHost) -> None:
    """An engine core that dies by SIGKILL under load ends the benchmark as critical, and its cause is named at once."""
    debian = real_vllm.debian
    killed: list[str] = []

    def kill_once(event: dict[str, Any]) -> None:
        if event["kind"] == "progress" and not killed:
            killed.append(real_vllm.engine_core_pid(UNIT))
            debian.ssh("kill", "-KILL", killed[0])

    levels = {"concurrency_levels": [1, 16, 16, 16], "requests_per_stream": 4, "output_tokens": 256}
    result, sections = run("50-benchmark", **{**shared("50-benchmark"), **levels}, on_event=kill_once)
    value = sections["benchmark"]["value"]
    assert killed
    assert (result.outcome.state, result.exit_code) == ("critical", 2), result.outcome
    assert value["steadiness"]["state"] == "critical"
    assert value["diagnosis"]["cause"] in DIED, value["diagnosis"]
    result, sections = run("40-investigate-crash", host=ALIAS, unit=UNIT)
    assert sections["investigate"]["value"]["diagnosis"]["cause"] in DIED
    assert result.exit_code == 2
    debian.ssh("systemctl", "stop", UNIT, timeout_s=90)  # started again by systemd, it would take the next ones' port


# ---------------------------------------------------------------- deploys that must not go well


def test_missing_shard_stops_before_anything_changes(run: Runner, real_vllm: RealVllmHost) -> None:
    """With a shard missing the runbook stops at verify-download, and no unit is written."""
    cut = sorted(real_vllm.copy_model("tiny-cut").glob("*.safetensors"))[2]
    cut.unlink()
    result, sections = run("90-deploy", **{**DEPLOY, "unit": "vllm-cut", "model": "tiny-cut"})
    assert (result.outcome.state, result.exit_code) == ("critical", 2)
    assert cut.name in json.dumps(sections["verify-download"]["value"]["missing_shards"])
    assert list(sections) == ["identify", "verify-download"]
    assert not real_vllm.debian.local_path("/etc/systemd/system/vllm-cut.service").exists()


# name, parameters that differ, cause, a piece of the sentence that an operator reads
FAILING = [
    ("port", {}, "configuration/port-in-use", r"Port 8000 is held by python3 \(pid \d+, on 0\.0\.0\.0\)"),
    (
        "flag",
        {"extra_args": [*DEPLOY["extra_args"], "--max-num-seq5", "4"]},
        "configuration/bad-argument",
        "--max-num-seq5",
    ),
    ("context", {"max_model_len": 4096}, "model/max-model-len-above-limit", "4096.*2048"),
]


@pytest.mark.parametrize(("name", "given", "cause", "sentence"), FAILING, ids=[case[0] for case in FAILING])
def test_failing_deploy_names_the_cause(
    run: Runner, real_vllm: RealVllmHost, name: str, given: dict[str, Any], cause: str, sentence: str
) -> None:
    """A deploy that cannot work ends critical, with the right id and a sentence that names what is in the way."""
    unit = f"vllm-{name}"
    if name == "port":
        real_vllm.take_port()
    try:
        result, _ = run("90-deploy", **{**DEPLOY, "unit": unit, **given})
    finally:
        real_vllm.debian.ssh("systemctl", "stop", unit, "squatter", timeout_s=90)
    assert (result.outcome.state, result.exit_code) == ("critical", 2), result.outcome
    assert result.record.cause == cause, result.outcome
    assert re.search(sentence, result.outcome.reason), result.outcome.reason


# ---------------------------------------------------------------- what the tests lean on


def shared(runbook: str) -> dict[str, Any]:
    """The deploy's parameters that another runbook has too."""
    return {name: value for name, value in DEPLOY.items() if name in schema_of(runbook).model_fields}
