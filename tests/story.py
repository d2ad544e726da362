"""Journals made from a few words: the lines that an engine, systemd and the kernel would print for one failed start."""

from opslib.domain.facts.journal import JournalEntry

_START = {
    "starting": [],
    "configuration": [
        "(APIServer pid=10) INFO 11-29 12:00:01 [utils.py:325] non-default args: {'model': '/srv/models/qwen', 'max_model_len': 8192}",
        "(APIServer pid=10) INFO 11-29 12:00:02 [model.py:547] Resolved architecture: Qwen3ForCausalLM",
    ],
    "engine": [
        "(EngineCore_DP0 pid=11) INFO 11-29 12:00:09 [core.py:77] Initializing a V1 LLM engine (v0.15.0) with config: x"
    ],
    "device": [
        "(Worker_TP0 pid=12) INFO 11-29 12:00:12 [parallel_state.py:1208] world_size=2 rank=0 local_rank=0 backend=nccl",
        "(Worker_TP0 pid=12) INFO 11-29 12:00:12 [pynccl.py:103] vLLM is using nccl==2.27.5",
    ],
    "weights": [
        "(Worker_TP0 pid=12) INFO 11-29 12:00:13 [gpu_model_runner.py:2602] Starting to load model /srv/models/qwen...",
        "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:04<00:04,  2.00s/it]",
    ],
    "compile": [
        "(Worker_TP0 pid=12) INFO 11-29 12:00:40 [gpu_model_runner.py:2653] Model loading took 15.27 GiB and 8.1 seconds",
        "(Worker_TP0 pid=12) INFO 11-29 12:01:02 [monitor.py:34] torch.compile takes 20.1 s in total",
    ],
    "kv": ["(EngineCore_DP0 pid=11) INFO 11-29 12:01:05 [kv_cache_utils.py:1229] GPU KV cache size: 151,200 tokens"],
    "graphs": [
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  48%|####      | 17/35 [00:02<00:03,  7.80it/s]"
    ],
    "graphs_done": [
        "(Worker_TP0 pid=12) INFO 11-29 12:01:12 [gpu_model_runner.py:3480] Graph capturing finished in 6 secs, took 0.61 GiB"
    ],
    "serving": [
        "(APIServer pid=10) INFO:     Application startup complete.",
        '(APIServer pid=10) INFO:     10.0.0.5:4242 - "POST /v1/completions HTTP/1.1" 200 OK',
    ],
}


def _program(message, pid=12):
    return JournalEntry(
        message=message, identifier="vllm", pid=pid, invocation_id="i1", transport="stdout", unit="vllm.service"
    )


def _systemd(message):
    return JournalEntry(
        message=message, identifier="systemd", pid=1, invocation_id="i1", transport="journal", unit="vllm.service"
    )


def _traceback(frames, error):
    head = "(Worker_TP0 pid=12) ERROR 11-29 12:01:20 [multiproc_executor.py:671] "
    yield head + "WorkerProc hit an exception."
    yield head + "Traceback (most recent call last):"
    for frame in frames:
        path, number, function, code = frame.split(":", 3)
        yield f'{head}  File "/opt/vllm/lib/python3.12/site-packages/{path}", line {number}, in {function}'
        yield f"{head}    {code}"
    for line in error:
        yield head + line


_WRAPPERS = (
    "(EngineCore_DP0 pid=11) ERROR 11-29 12:01:21 [core.py:708] EngineCore failed to start.",
    "(APIServer pid=10) Traceback (most recent call last):",
    "(APIServer pid=10) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
)


def tell(case):
    """The entries of a made case (made_kinds.toml), and the place of the first line that decides it."""
    entries = [] if case["phase"] == "empty" else [_systemd("Started vllm.service - vLLM.")]
    for name, lines in _START.items():
        if case["phase"] in {"none", "empty"}:
            break
        entries += [_program(line) for line in lines]
        if name == case["phase"]:
            break
    entries += [_program(line) for line in case.get("raw_info_none", [])]
    head = "(Worker_TP0 pid=12) {} 11-29 12:01:19 [x.py:1] "
    entries += [_program(head.format("INFO") + line) for line in case.get("raw_info", [])]
    entries += [_program(head.format("WARNING") + line) for line in case.get("raw_warning", [])]
    entries += [JournalEntry(message=line, transport="kernel", identifier="kernel") for line in case.get("kernel", [])]
    entries += [_program(line) for line in case.get("raw", [])]
    entries += [_program(head.format("ERROR") + line) for line in case.get("raw_error", [])]
    if "error" in case:
        entries += [_program(line) for line in _traceback(case["frames"], case["error"])]
    if "error" in case or case.get("wrappers_only"):
        entries += [_program(line) for line in _WRAPPERS]
    entries += [_systemd(line) for line in case.get("systemd", [])]
    if case.get("recovers"):
        entries += [_program(line) for line in _START["serving"]]
    if end := case.get("end", "vllm.service: Main process exited, code=exited, status=1/FAILURE"):
        entries += [_systemd(end), _systemd(f"vllm.service: Failed with result '{case.get('result', 'exit-code')}'.")]
    return [entry.model_copy(update={"line": line}) for line, entry in enumerate(entries)]
