"""Runs another benchmark client that is installed on the host, level by level, and hands on what it wrote.

Arguments: client ("vllm" or "guidellm"), vllm (the engine's program: its environment has the client), levels,
n_requests (one for each level), port, model, root (the model's directory: these clients need its tokenizer),
input_tokens, output_tokens, deadline_s. Prints JSON lines: `client` (which program it is), `result` or `failed` for
each level, `end`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional

_PERCENTILES = "50,90,95,99"
_QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
_TAIL = 600  # characters of a failed client's output


def main(arguments: Dict[str, Any]) -> int:
    """Runs the levels one after the other; a client that fails is a result, so the exit status is 0."""
    program = find_client(arguments["client"], arguments["vllm"])
    if program is None:
        _print({"type": "failed", "concurrency": 0, "why": "no %s client on this host" % arguments["client"]})
        _print({"type": "end"})
        return 0
    _print({"type": "client", "program": program})
    ends_at = time.monotonic() + float(arguments["deadline_s"])
    for concurrency, n_requests in zip(arguments["levels"], arguments["n_requests"]):
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            break
        _print(_run(arguments, program, concurrency, n_requests, left_s))
    _print({"type": "end"})
    return 0


def find_client(client: str, vllm: str) -> Optional[List[str]]:
    """The words that start the client: vLLM's native one where its wheel has it, else its Python one; or guidellm."""
    folder = os.path.dirname(os.path.realpath(vllm)) if os.path.exists(vllm) else os.path.dirname(vllm)
    near = os.pathsep.join([folder, os.path.dirname(vllm), os.environ.get("PATH", os.defpath)])
    if client == "guidellm":
        found = shutil.which("guidellm", path=near)
        return [found] if found else None
    native = shutil.which("vllm-rs", path=near) or _packaged(folder)
    if native:
        return [native]
    return [vllm] if os.access(vllm, os.X_OK) else None


def _packaged(folder: str) -> Optional[str]:
    """The native client inside the vLLM package of the environment that `folder` is the bin/ of."""
    library = os.path.join(os.path.dirname(folder), "lib")
    for name in sorted(os.listdir(library)) if os.path.isdir(library) else ():
        path = os.path.join(library, name, "site-packages", "vllm", "vllm-rs")
        if os.access(path, os.X_OK):
            return path
    return None


def _run(
    arguments: Dict[str, Any], program: List[str], concurrency: int, n_requests: int, left_s: float
) -> Dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="opslib-bench-") as folder:
        path = os.path.join(folder, "result.json")
        words = vllm_words if arguments["client"] == "vllm" else guidellm_words
        argv = [*program, *words(arguments, concurrency, n_requests, path)]
        environment = {**os.environ, **_QUIET, "HOME": os.environ.get("HOME", folder)}
        failed = {"type": "failed", "concurrency": concurrency}
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                timeout=left_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {**failed, "why": "not done in %.0f s" % left_s}
        except OSError as error:
            return {**failed, "why": "it could not be started: %s" % error.strerror}
        try:
            with open(path, encoding="utf-8") as file:
                return {"type": "result", "concurrency": concurrency, "result": _without_samples(json.load(file))}
        except (OSError, ValueError, RecursionError):
            said = done.stdout.decode("utf-8", "replace").strip()[-_TAIL:]
            return {**failed, "why": "exit status %d: %s" % (done.returncode, said)}


def vllm_words(arguments: Dict[str, Any], concurrency: int, n_requests: int, path: str) -> List[str]:
    """The arguments of `vllm bench serve` (0.15 to 0.33) and of `vllm-rs bench serve`."""
    return [
        "bench", "serve", "--backend", "openai",
        "--base-url", "http://%s:%d" % (_address(), arguments["port"]),
        "--model", arguments["root"] or arguments["model"],
        "--served-model-name", arguments["model"],
        "--dataset-name", "random",
        "--random-input-len", str(arguments["input_tokens"]),
        "--random-output-len", str(arguments["output_tokens"]),
        "--num-prompts", str(n_requests),
        "--max-concurrency", str(concurrency),
        "--seed", str(int(time.time())),
        "--ignore-eos", "--disable-tqdm",
        "--percentile-metrics", "ttft,tpot,itl,e2el",
        "--metric-percentiles", _PERCENTILES,
        "--save-result",
        "--result-dir", os.path.dirname(path),
        "--result-filename", os.path.basename(path),
    ]  # fmt: skip


def guidellm_words(arguments: Dict[str, Any], concurrency: int, n_requests: int, path: str) -> List[str]:
    """The arguments of `guidellm run` (0.8)."""
    target = "http://%s:%d" % (_address(), arguments["port"])
    lengths = (arguments["input_tokens"], arguments["output_tokens"])
    return [
        "run",
        "--backend", "kind=openai_http,target=%s,model=%s" % (target, arguments["model"]),
        "--profile", "kind=concurrent,streams=%d" % concurrency,
        "--constraint", "kind=max_requests,count=%d" % n_requests,
        "--tokenizer", "kind=huggingface_auto,model=%s" % (arguments["root"] or arguments["model"]),
        "--data", "kind=synthetic_text,prompt_tokens=%d,output_tokens=%d" % lengths,
        "--output", "kind=json,path=%s" % path,
        "--disable-console",
    ]  # fmt: skip


def _address() -> str:
    return os.environ.get("OPSLIB_LOOPBACK") or "127.0.0.1"


def _without_samples(result: Dict[str, Any]) -> Dict[str, Any]:
    """The result without the requests themselves, which may be megabytes."""
    if isinstance(result.get("benchmarks"), list):
        kept = ("metrics", "config", "duration", "start_time", "end_time")
        return {"benchmarks": [{name: each[name] for name in kept if name in each} for each in result["benchmarks"]]}
    return {name: value for name, value in result.items() if not isinstance(value, (list, dict))}


def _print(line: Dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
    sys.stdout.flush()
