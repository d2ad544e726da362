"""Waits until the named GPUs have enough free memory; a unit runs it as ExecStartPre.

As a script: gpu_guard.py --gpus 0,1 --required-free-gib 90.2 [--wait-s 300] [--nvidia-smi PATH]. Exit status 0 when the
memory is free, 1 when it isn't after the wait, or when nvidia-smi can't tell; one clear line says which.
"""

import argparse
import subprocess
import sys
import time
from typing import Any, Dict, List, Tuple

POLL_S = 1.0
TELL_S = 10.0
QUERY_TIMEOUT_S = 30
MIB_PER_GIB = 1024.0


class CannotTellError(Exception):
    """nvidia-smi is missing, fails, or says nothing about a GPU."""


def ask(program: str, query: str) -> List[List[str]]:
    """The rows that nvidia-smi answers to one query."""
    argv = [program, query, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=QUERY_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotTellError("%s: %s" % (program, error)) from error
    text = answer.stdout.decode("utf-8", "replace")
    if answer.returncode != 0:
        raise CannotTellError("%s exited with %d: %s" % (program, answer.returncode, text.strip()[:300]))
    return [[field.strip() for field in line.split(",")] for line in text.splitlines() if line.strip()]


def free_memory(program: str, gpus: List[int]) -> Dict[int, Tuple[str, float, float]]:
    """Per GPU: uuid, free and total memory in GiB."""
    found = {}
    for row in ask(program, "--query-gpu=index,uuid,memory.free,memory.total"):
        if len(row) == 4 and row[0].isdigit() and int(row[0]) in gpus:
            try:
                found[int(row[0])] = (row[1], float(row[2]) / MIB_PER_GIB, float(row[3]) / MIB_PER_GIB)
            except ValueError:
                raise CannotTellError("GPU %s does not report its memory" % row[0]) from None
    missing = [gpu for gpu in gpus if gpu not in found]
    if missing:
        raise CannotTellError("nvidia-smi knows no GPU %s" % ", ".join(str(gpu) for gpu in missing))
    return found


def holders(program: str, gpus: Dict[int, str]) -> str:
    """Who holds memory of these GPUs ({index: uuid}): "GPU 0: pid 4711 (vllm) 57.50 GiB"."""
    indices = {uuid: index for index, uuid in gpus.items()}
    try:
        rows = ask(program, "--query-compute-apps=gpu_uuid,pid,used_memory,process_name")
    except CannotTellError as error:
        return str(error)
    found = []
    for row in rows:
        if len(row) >= 4 and row[0] in indices:
            size = "%.2f GiB" % (float(row[2]) / MIB_PER_GIB) if row[2].isdigit() else "an unknown amount"
            found.append(
                (indices[row[0]], "GPU %d: pid %s (%s) %s" % (indices[row[0]], row[1], ",".join(row[3:]), size))
            )
    return "; ".join(line for _, line in sorted(found)) or "no process that nvidia-smi can see"


def short(free: Dict[int, Tuple[str, float, float]], required: float) -> Dict[int, str]:
    """The GPUs that have too little free memory ({index: uuid})."""
    return {index: uuid for index, (uuid, free_gib, _) in sorted(free.items()) if free_gib < required}


def free_words(free: Dict[int, Tuple[str, float, float]], gpus: Dict[int, str]) -> str:
    """How much is free on each: "GPU 0: 36.1 of 95.0 GiB"."""
    return ", ".join("GPU %d: %.1f of %.1f GiB" % (gpu, free[gpu][1], free[gpu][2]) for gpu in gpus)


def say(message: str) -> None:
    """One line for the journal."""
    print("gpu-guard: " + message, flush=True)


def wait(program: str, gpus: List[int], required: float, wait_s: float) -> int:
    """Wait until all of `gpus` have `required` GiB free; say who holds them, then progress."""
    started_at = time.monotonic()
    told_at = None
    while True:
        free = free_memory(program, gpus)
        busy = short(free, required)
        waited = time.monotonic() - started_at
        if not busy:
            names = ", ".join(str(gpu) for gpu in gpus)
            say("GPUs %s have %.1f GiB free each (waited %d s)" % (names, required, waited))
            return 0
        too_large = [gpu for gpu in busy if free[gpu][2] < required]
        if waited >= wait_s or too_large:
            why = "no GPU of that size" if too_large else "gave up after %d s" % waited
            held = holders(program, busy)
            say("%s: %.1f GiB needed; free %s; held by %s" % (why, required, free_words(free, busy), held))
            return 1
        if told_at is None:
            words = (required, wait_s, free_words(free, busy), holders(program, busy))
            say("waiting for %.1f GiB (up to %d s); free %s; held by %s" % words)
            told_at = waited
        elif waited - told_at >= TELL_S:
            say("still waiting after %d s; free %s" % (waited, free_words(free, busy)))
            told_at = waited
        time.sleep(min(POLL_S, max(0.05, wait_s - waited)))


def main(arguments: Dict[str, Any]) -> int:
    """Run with {"gpus": [..], "required_free_gib": x, "wait_s": n, "nvidia_smi": path}."""
    program = str(arguments.get("nvidia_smi") or "nvidia-smi")
    gpus = [int(gpu) for gpu in arguments["gpus"]]
    try:
        return wait(program, gpus, float(arguments["required_free_gib"]), float(arguments.get("wait_s", 300)))
    except CannotTellError as error:
        say("can't tell how much GPU memory is free: %s" % error)
        return 1


def parse_arguments(argv: List[str]) -> Dict[str, Any]:
    """The command line as arguments of `main`."""
    parser = argparse.ArgumentParser(description="Wait until GPUs have enough free memory.")
    parser.add_argument("--gpus", required=True, help="indices as nvidia-smi counts them: 0,1,2,3")
    parser.add_argument("--required-free-gib", required=True, type=float)
    parser.add_argument("--wait-s", type=float, default=300)
    parser.add_argument("--nvidia-smi", default="nvidia-smi")
    parsed = vars(parser.parse_args(argv))
    parsed["gpus"] = [int(gpu) for gpu in parsed["gpus"].split(",")]
    return parsed


if __name__ == "__main__":
    sys.exit(main(parse_arguments(sys.argv[1:])))
