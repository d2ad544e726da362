"""The stand-in engine as a real program: starts, dies and serves as vLLM 0.15 does."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from opslib.rehearsal.checkpoint import write_checkpoint
from opslib.rehearsal.scenarios import load_scenario
from opslib.rehearsal.standin_install import standin_files

STORY = ["--tensor-parallel-size", "4", "--gpu-memory-utilization", "0.95", "--max-model-len", "131072"]


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "minimax-m2-230b-fp8"
    write_checkpoint(directory)
    return directory


class StandIn:
    """An installed stand-in and the engines started from it."""

    def __init__(self, root, scenario, clock_factor=200.0, figures=None):
        chosen = load_scenario(scenario)
        if figures:
            chosen = chosen.model_copy(update={"figures": {**chosen.figures, **figures}})
        for path, (content, mode) in standin_files(
            chosen, str(root), python=sys.executable, clock_factor=clock_factor
        ).items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(content)
            Path(path).chmod(mode)
        self.root = root
        self.processes = []

    def start(self, *argv, env=None):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = (self.root / f"log-{len(self.processes)}").open("w+b")
        process = subprocess.Popen(
            [self.root / "bin/vllm", "serve", *map(str, argv), "--port", str(self.port)],
            stdout=self.log,
            stderr=self.log,
            env={**os.environ, "OPSLIB_LOOPBACK": "127.0.0.1", **(env or {})},
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def text(self):
        return Path(self.log.name).read_text()

    def wait_ready(self, process, timeout_s=30):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError):
                status, _ = self.ask("GET", "/health")
                if status == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(self.text()[-3000:])

    def ask(self, method, path, document=None, raw=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        body = raw if raw is not None else (json.dumps(document) if document is not None else None)
        connection.request(method, path, body)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def smi(self, *argv):
        return subprocess.run([self.root / "bin/nvidia-smi", *argv], capture_output=True, text=True, check=True).stdout

    def used_mib(self):
        text = self.smi("--query-gpu=memory.used", "--format=csv,noheader,nounits")
        return [int(line) for line in text.splitlines()]

    def workers(self):
        text = self.smi("--query-compute-apps=pid", "--format=csv,noheader,nounits")
        return [int(line) for line in text.splitlines()]

    def close(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def standin(tmp_path):
    made = []

    def make(scenario, **options):
        made.append(StandIn(tmp_path / f"standin-{len(made)}", scenario, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def serving(large, tmp_path_factory):
    """One healthy engine for all tests that only ask it something."""
    standin = StandIn(tmp_path_factory.mktemp("serving"), "healthy")
    try:
        process = standin.start(large, *STORY, "--served-model-name", "minimax-m2")
        standin.wait_ready(process)
        yield standin
    finally:
        standin.close()


def test_start_is_told_phase_by_phase(serving):
    """A healthy start says everything that a reader of vLLM's log looks for, in order."""
    milestones = [
        "version 0.15.1",
        "non-default args: {'model_tag': ",
        "Resolved architecture: MiniMaxM2ForCausalLM",
        "Initializing a V1 LLM engine (v0.15.1) with config:",
        "world_size=4 rank=",
        "vLLM is using nccl==",
        "Starting to load model ",
        "\rLoading safetensors checkpoint shards:   0% Completed | 0/125 [00:00<?, ?it/s]\n",
        "\rLoading safetensors checkpoint shards: 100% Completed | 125/125 [",
        "Loading weights took ",
        "Model loading took 57.5 GiB memory and ",
        "torch.compile takes ",
        "Available KV cache memory: 28.22 GiB",
        "GPU KV cache size: 477,296 tokens",
        "Maximum concurrency for 131,072 tokens per request: 3.64x",
        "Capturing CUDA graphs (decode, FULL): 100%|",
        "Graph capturing finished in 5 secs, took 2.00 GiB",
        "init engine (profile, create kv cache, warmup model) took ",
        f"Starting vLLM API server 0 on http://0.0.0.0:{serving.port}",
        "Route: /v1/chat/completions, Methods: POST",
        "INFO:     Application startup complete.",
    ]
    lines = Path(serving.log.name).read_bytes().decode().split("\n")
    text = "\n".join(line for line in lines if not re.match(r"\(Worker_TP[1-3] ", line))
    at = 0
    for milestone in milestones:
        at = text.find(milestone, at)
        assert at >= 0, milestone


def test_every_line_names_its_process(serving):
    """Lines carry (Process pid=N), where each process has its own pid, and vLLM's level, time and source."""
    lines = Path(serving.log.name).read_bytes().decode().split("\n")
    pids = {}
    for line in filter(None, lines):
        match = re.match(r"\((APIServer|EngineCore_DP0|Worker_TP[0-3]) pid=(\d+)\) (.*)", line, re.DOTALL)
        assert match, line
        pids.setdefault(match[1], set()).add(match[2])
        assert re.match(r"(INFO|WARNING) \d\d-\d\d \d\d:\d\d:\d\d \[\w+\.py:\d+\] |INFO:     |\r", match[3]), line
    assert sorted(map(len, pids.values())) == [1] * 6
    assert len(set.union(*pids.values())) == 6
    assert sum(" WARNING " in line for line in lines) > 5  # a healthy start has warnings


def test_memory_is_on_the_asked_gpus(serving):
    """Four workers hold context, weights, KV cache, graphs and fragmentation; the other GPUs stay empty."""
    used = serving.used_mib()
    assert used[4:] == [0] * 4
    assert all(abs(one - (94.97 - 3.55) * 1024) < 10 for one in used[:4])
    names = serving.smi("--query-compute-apps=process_name", "--format=csv,noheader,nounits").split()
    assert names == [f"VLLM::Worker_TP{rank}" for rank in range(4)]


def test_plain_completion_is_deterministic(serving):
    """The same prompt gives the same text, with usage."""
    asked = {"model": "minimax-m2", "prompt": "What is a shard?", "max_tokens": 7}
    answers = [json.loads(serving.ask("POST", "/v1/completions", asked)[1]) for _ in range(2)]
    assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"]
    assert answers[0]["choices"][0]["finish_reason"] == "length"
    assert answers[0]["usage"] == {"prompt_tokens": 4, "total_tokens": 11, "completion_tokens": 7}


def test_chat_streams_with_usage(serving):
    """A role chunk, one chunk per token, a usage chunk where it is asked for, [DONE]."""
    asked = {
        "model": "minimax-m2",
        "messages": [{"role": "user", "content": "hello"}],
        "max_completion_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    status, text = serving.ask("POST", "/v1/chat/completions", asked)
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert status == 200
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [bool(chunk["choices"][0]["delta"]["content"]) for chunk in chunks[1:-1]] == [True] * 5
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(
    ("path", "asked", "status", "word"),
    [
        ("/v1/completions", {"model": "other", "prompt": "x"}, 404, "The model `other` does not exist."),
        ("/v1/completions", {"prompt": "x", "max_tokens": 140000}, 400, "is too large: 140000"),
        ("/v1/completions", {"prompt": "x" * 600000}, 400, "maximum context length is 131072 tokens"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/completions", "{no json", 400, "JSON decode error"),
    ],
)
def test_bad_requests_are_refused_in_vllm_s_words(serving, path, asked, status, word):
    """The error document has message, type and code."""
    raw = asked if isinstance(asked, str) else json.dumps(asked)
    found, text = serving.ask("POST", path, raw=raw)
    error = json.loads(text)["error"]
    assert (found, error["code"]) == (status, status)
    assert word in error["message"]


def test_operators_questions_are_answered(serving):
    """Version, models, metrics; 404 for what is not there."""
    assert json.loads(serving.ask("GET", "/version")[1]) == {"version": "0.15.1"}
    model = json.loads(serving.ask("GET", "/v1/models")[1])["data"][0]
    assert (model["id"], model["max_model_len"]) == ("minimax-m2", 131072)
    metrics = serving.ask("GET", "/metrics")[1]
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_hits_total"):
        assert f'vllm:{name}{{engine="0",model_name="minimax-m2"}}' in metrics
    assert 'vllm:time_to_first_token_seconds_bucket{le="+Inf"' in metrics
    assert serving.ask("GET", "/nowhere")[0] == 404


def test_latency_grows_with_load(serving):
    """Sixty-four streams at once are slower each and faster together than one."""

    def timed(count):
        began, threads = time.monotonic(), []
        for number in range(count):
            asked = {"prompt": f"{number} of {count}", "max_tokens": 40, "ignore_eos": True}
            threads.append(threading.Thread(target=serving.ask, args=("POST", "/v1/completions", asked)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        return time.monotonic() - began

    one, many = timed(1), timed(64)
    assert 1.2 * one < many < 20 * one


def test_the_same_prompt_hits_the_prefix_cache(serving):
    """A second request with a long common beginning finds its blocks; another prompt finds none."""

    def hits():
        return float(re.search(r"prefix_cache_hits_total\{.*\} (.*)", serving.ask("GET", "/metrics")[1])[1])

    before = hits()
    serving.ask("POST", "/v1/completions", {"prompt": "first " * 100, "max_tokens": 1})
    assert hits() == before
    serving.ask("POST", "/v1/completions", {"prompt": "first " * 100, "max_tokens": 1})
    assert hits() == before + 144  # 9 whole blocks of the 150 tokens


def test_processes_have_vllm_s_names(serving):
    """What ss and the kernel show: cut to 15 characters."""
    worker = serving.workers()[0]
    status = Path(f"/proc/{worker}/status").read_text()
    assert Path(f"/proc/{worker}/comm").read_text() == "VLLM::Worker_TP\n"
    parent = re.search(r"PPid:\s+(\d+)", status)[1]
    assert Path(f"/proc/{parent}/comm").read_text() == "VLLM::EngineCor\n"


def test_requests_queue_over_the_limit_and_end_with_their_client(standin, large):
    """At --max-num-seqs 2 a third stream waits; a client that hangs up frees its place."""
    here = standin("healthy")
    process = here.start(large, *STORY, "--max-num-seqs", "2")
    here.wait_ready(process)
    body = json.dumps({"prompt": "x", "max_tokens": 5000, "ignore_eos": True, "stream": True}).encode()
    clients = []
    for _ in range(3):
        clients.append(socket.create_connection(("127.0.0.1", here.port)))
        clients[-1].sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    time.sleep(0.3)

    def counts():
        text = here.ask("GET", "/metrics")[1]
        return [float(re.search(rf"num_requests_{one}\{{.*\}} (.*)", text)[1]) for one in ("running", "waiting")]

    assert counts() == [2, 1]
    clients[0].close()
    time.sleep(0.3)
    assert counts() == [2, 0]
    clients[1].close()
    clients[2].close()
    time.sleep(0.3)
    assert counts() == [0, 0]


def test_sampler_warmup_runs_out_of_memory(standin, large):
    """At 0.95 and 1024 sequences every rank dies in three layers of tracebacks, and the status is 1."""
    here = standin("sampler-oom")
    assert here.start(large, *STORY).wait(30) == 1
    text = here.text()
    assert (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.29 GiB. GPU 0 has a total capacity of 94.97 "
        "GiB of which 6.45 GiB is free. Including non-PyTorch memory, this process has 88.52 GiB memory in use." in text
    )
    reason = "CUDA out of memory occurred when warming up sampler with 1024 dummy requests."
    assert len(re.findall(r"\(Worker_TP\d pid=\d+\) ERROR .* RuntimeError: " + re.escape(reason), text)) == 4
    assert text.count("WorkerProc hit an exception.") == 4
    assert text.count(f"RuntimeError: Worker failed with error '{reason}") == 2  # logged, and raw
    assert re.search(r"\(EngineCore_DP0 pid=\d+\) Process EngineCore_DP0:\n", text)
    last = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    assert text.endswith(last)
    assert "Application startup complete" not in text


@pytest.mark.parametrize("flags", [["--max-num-seqs", "256"], ["--gpu-memory-utilization", "0.90"]])
def test_either_remedy_makes_it_start(standin, large, flags):
    """Fewer sequences, or a smaller share of the GPU."""
    here = standin("sampler-oom")
    process = here.start(large, *STORY, *flags)
    here.wait_ready(process)


def test_port_is_closed_until_ready(standin, large):
    """While it loads, connections are refused."""
    here = standin("healthy", clock_factor=30)
    process = here.start(large, *STORY)
    time.sleep(0.7)
    with pytest.raises(ConnectionRefusedError):
        here.ask("GET", "/health")
    assert process.poll() is None


def test_a_taken_port_ends_it_before_loading(standin, large):
    """The port is taken before anything is loaded; a foreign listener means a traceback and status 1."""
    here = standin("healthy")
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 0))
        foreign.listen()
        process = subprocess.run(
            [here.root / "bin/vllm", "serve", large, *STORY, "--port", str(foreign.getsockname()[1])],
            capture_output=True,
            text=True,
            env={**os.environ, "OPSLIB_LOOPBACK": "127.0.0.1"},
            check=False,
        )
    assert process.returncode == 1
    assert process.stdout.endswith("OSError: [Errno 98] Address already in use\n")
    assert "sock.bind(addr)" in process.stdout
    assert "EngineCore" not in process.stdout


def broken_copy(large, tmp_path, change):
    directory = tmp_path / "broken"
    directory.mkdir()
    for path in large.iterdir():
        if path.is_file():
            os.link(path, directory / path.name)
    change(directory)
    return directory


def test_a_missing_shard(standin, large, tmp_path):
    """The loader names the file; the engine core and the API server only wrap it."""
    model = broken_copy(large, tmp_path, lambda d: (d / "model-00042-of-00125.safetensors").unlink())
    here = standin("missing-shard")
    assert here.start(model, *STORY).wait(30) == 1
    text = here.text()
    missing = f"FileNotFoundError: Weight files referenced in index but missing: {{'{model}/model-00042-of-00125"
    assert text.count(missing) == 4
    assert text.count("WorkerProc failed to start.") == 4
    assert text.count("Exception: WorkerProc initialization failed due to an exception in a background process.") == 2


def test_a_truncated_shard(standin, large, tmp_path):
    """The bar stops at the damaged shard and safetensors says that the file is not fully covered."""

    def truncate(directory):
        path = directory / "model-00077-of-00125.safetensors"
        with path.open("rb") as file:
            head = file.read(200_000)
        path.unlink()
        path.write_bytes(head)
        os.truncate(path, 1_000_000_000)

    here = standin("truncated-shard")
    assert here.start(broken_copy(large, tmp_path, truncate), *STORY).wait(30) == 1
    text = here.text()
    assert (
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered"
        in text
    )
    assert "76/125 [" in text
    assert "100% Completed" not in text


def test_unknown_flag_is_refused_as_argparse_does(standin, large):
    """Usage of the main program, the unrecognized words, status 2."""
    here = standin("healthy")
    run = subprocess.run(
        [here.root / "bin/vllm", "serve", large, "--max-num-sequences", "16"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr == (
        "usage: vllm [-h] [-v] {chat,complete,serve,bench,collect-env,run-batch} ...\n"
        "vllm: error: unrecognized arguments: --max-num-sequences 16\n"
    )


def test_version_is_printed(standin):
    """`vllm --version` says the version and nothing else."""
    here = standin("healthy")
    run = subprocess.run([here.root / "bin/vllm", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == "0.15.1\n"


def test_a_model_longer_than_its_limit_is_refused(standin, large):
    """A configuration error of the main process: no engine core is started."""
    here = standin("healthy")
    assert here.start(large, "--max-model-len", "262144").wait(20) == 1
    assert "User-specified max_model_len (262144) is greater than the derived max_model_len" in here.text()
    assert "EngineCore" not in here.text().replace("EngineCoreClient", "")


def test_an_occupied_gpu_is_noticed_at_the_start(standin, large):
    """Less free memory than the asked share: vLLM's sentence, with the figures."""
    here = standin("gpu-memory-held")
    holder = subprocess.Popen([here.root / "bin/hold-gpu-memory", "40", "2"])
    try:
        deadline = time.monotonic() + 5
        while here.used_mib()[2] == 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert here.start(large, *STORY).wait(30) == 1
    finally:
        holder.kill()
        holder.wait()
    assert (
        "ValueError: Free memory on device cuda:2 (52.77/94.97 GiB) on startup is less than desired GPU memory "
        "utilization (0.95, 90.22 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    ) in here.text()


def test_kv_cache_too_small_for_one_request(standin, large):
    """The engine core itself refuses, with needed, available and the length that would fit."""
    here = standin("kv-too-small")
    assert here.start(large, *STORY).wait(30) == 1
    assert (
        "ValueError: To serve at least one request with the models's max seq len (131072), (7.75 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (7.22 GiB). Based on the available memory, the "
        "estimated maximum model length is 122128."
    ) in here.text()


def test_sigterm_stops_cleanly(standin, large):
    """Told to stop it ends with status 0, its workers with it, and the memory is free at once."""
    here = standin("healthy")
    process = here.start(large, *STORY)
    here.wait_ready(process)
    workers = here.workers()
    process.terminate()
    assert process.wait(5) == 0
    assert here.used_mib() == [0] * 8
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert here.text().endswith("INFO:     Application shutdown complete.\n")


@pytest.mark.parametrize("when", ["loading", "serving"])
def test_sigterm_to_all_processes_is_a_clean_stop(standin, large, when):
    """A unit's stop tells every process; whoever is first, the status is 0 and nobody speaks of a death."""
    here = standin("healthy", clock_factor=200 if when == "serving" else 15)
    process = here.start(large, *STORY)
    here.wait_ready(process) if when == "serving" else time.sleep(2)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(5) == 0
    assert "died unexpectedly" not in here.text()
    assert "Traceback" not in here.text()


def test_a_killed_worker_takes_the_engine_down(standin, large):
    """The engine core names the worker, the API server says EngineDeadError, nobody is left, memory comes free later."""
    here = standin("healthy")
    process = here.start(large, *STORY)
    here.wait_ready(process)
    workers = here.workers()
    asked = {"prompt": "x", "max_tokens": 5000, "ignore_eos": True}
    answers = []
    client = threading.Thread(target=lambda: answers.append(here.ask("POST", "/v1/completions", asked)))
    client.start()
    time.sleep(0.2)
    os.kill(workers[1], signal.SIGKILL)
    assert process.wait(5) == 1
    client.join()
    assert answers[0][0] == 500
    text = here.text()
    assert "Worker proc VllmWorker-1 died unexpectedly, shutting down executor." in text
    assert "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue." in text
    assert text.endswith(f"INFO:     Finished server process [{process.pid}]\n")
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert here.used_mib()[1] > 90000  # released with a lag
    time.sleep(1.6)
    assert here.used_mib() == [0] * 8


def test_nothing_outlives_a_killed_main_process(standin, large):
    """When the API server is killed the others end by themselves."""
    here = standin("healthy")
    process = here.start(large, *STORY)
    here.wait_ready(process)
    workers = here.workers()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_a_hang_is_alive_and_silent(standin, large):
    """After the NCCL line nothing comes but the engine core's notice, and a stop still works."""
    here = standin("nccl-hang", clock_factor=100)
    process = here.start(large, *STORY)
    time.sleep(2.5)
    assert process.poll() is None
    text = here.text()
    assert "vLLM is using nccl==" in text
    assert "Starting to load model" not in text
    assert "No available shared memory broadcast block found in 60 seconds." in text
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(5) == 0


def test_a_vanishing_worker_can_end_in_success(standin, large):
    """Where the scenario says so, the API server's status after a worker's death is 0."""
    here = standin("engine-dies-exit-0", figures={"worker_dies_after_s": 0.3})
    process = here.start(large, *STORY)
    assert process.wait(20) == 0
    assert "Worker proc VllmWorker-0 died unexpectedly" in here.text()


def test_visible_devices_are_obeyed(standin, large):
    """CUDA_VISIBLE_DEVICES moves the ranks to other GPUs."""
    here = standin("healthy")
    process = here.start(large, *STORY, env={"CUDA_VISIBLE_DEVICES": "4,5,6,7"})
    here.wait_ready(process)
    assert [bool(used) for used in here.used_mib()] == [False] * 4 + [True] * 4
