"""Other clients beside the load generator: how each is started for the same load, and where it says what it found."""

import argparse
import json
import os
import resource
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_S = 300
INPUT_TOKENS = 32


@dataclass(frozen=True)
class Asked:
    """A load in the words that all clients have."""

    port: int
    model: str
    streams: int
    n_requests: int
    n_tokens: int
    tokenizer: str
    folder: str

    @property
    def url(self) -> str:
        """Where the server is."""
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class Peer:
    """Another client: its command for a load, and its mean ttft in ms out of what it leaves behind."""

    name: str
    tokenizer: str
    command: Callable[[Asked], list[str]]
    mean_ttft_ms: Callable[[Path], float]
    environment: dict[str, str]

    def run(
        self, before: Sequence[str], port: int, model: str, *, streams: int, n_requests: int, n_tokens: int
    ) -> tuple[dict[str, Any], float]:
        """What it says of a load (its end, and ttft_ms where it tells), and the CPU seconds that it took in all."""
        with tempfile.TemporaryDirectory(prefix="bench-client-") as folder:
            asked = Asked(port, model, streams, n_requests, n_tokens, self.tokenizer, folder)
            began = resource.getrusage(resource.RUSAGE_CHILDREN)
            try:
                done = subprocess.run(
                    [*before, *self.command(asked)],
                    env={**os.environ, **self.environment},
                    cwd=folder,
                    capture_output=True,
                    text=True,
                    timeout=TIMEOUT_S,
                    check=False,
                )
                said = (done.stdout + done.stderr)[-500:]
            except subprocess.TimeoutExpired:
                said = f"no end in {TIMEOUT_S} s"
            ended = resource.getrusage(resource.RUSAGE_CHILDREN)
            found: dict[str, Any] = {"said": said}
            try:
                found["ttft_ms"] = self.mean_ttft_ms(Path(folder))
            except (OSError, ValueError, LookupError):
                found["said"] = said
        return found, ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime


def peers_of(given: argparse.Namespace) -> tuple[list[Peer], list[str]]:
    """The clients whose environments are there, and a sentence for each that is not."""
    found, absent = [], []
    for name, (program, make) in _PEERS.items():
        place = Path(getattr(given, name) or "/nowhere")
        if not (place / program).exists():
            absent.append(f"{name}: no --{name} with {program}")
        elif not given.tokenizer:
            absent.append(f"{name}: no --tokenizer")
        else:
            found.append(make(place, given.tokenizer))
    return found, absent


def _guidellm(place: Path, tokenizer: str) -> Peer:
    def command(asked: Asked) -> list[str]:
        return [
            str(place / "bin/guidellm"),
            "run",
            f"--backend=kind=openai_http,target={asked.url},model={asked.model}",
            f"--profile=kind=concurrent,streams={asked.streams}",
            f"--constraint=kind=max_requests,count={asked.n_requests}",
            f"--tokenizer=kind=hf_auto,model={asked.tokenizer}",
            f"--data=kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={asked.n_tokens}",
            f"--output=kind=json,path={asked.folder}/result.json",
            "--disable-console",
        ]

    def ttft(folder: Path) -> float:
        metrics = json.loads((folder / "result.json").read_text())["benchmarks"][0]["metrics"]
        return float(metrics["time_to_first_token_ms"]["successful"]["mean"])

    return Peer("guidellm", tokenizer, command, ttft, {"HF_HUB_OFFLINE": "1"})


def _aiperf(place: Path, tokenizer: str) -> Peer:
    def command(asked: Asked) -> list[str]:
        return [
            str(place / "bin/aiperf"),
            "profile",
            *("--model", asked.model, "--url", asked.url, "--endpoint-type", "completions", "--streaming"),
            *("--tokenizer", asked.tokenizer, "--use-server-token-count", "--extra-inputs", "ignore_eos:true"),
            *("--concurrency", str(asked.streams), "--request-count", str(asked.n_requests)),
            *("--isl", str(INPUT_TOKENS), "--osl", str(asked.n_tokens)),
            *("--artifact-dir", asked.folder, "--ui", "none"),
        ]

    def ttft(folder: Path) -> float:
        summary = json.loads((folder / "profile_export_aiperf.json").read_text())
        return float(summary["time_to_first_token"]["avg"])

    return Peer("aiperf", tokenizer, command, ttft, {})


def _vllm(place: Path, tokenizer: str) -> Peer:
    packages = next((str(path) for path in place.glob("lib/python*/site-packages")), "")

    def command(asked: Asked) -> list[str]:
        return [
            *(str(place / "bin/python3"), "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai"),
            *("--base-url", asked.url, "--endpoint", "/v1/completions", "--model", asked.model),
            *("--tokenizer", asked.tokenizer, "--dataset-name", "random", "--ignore-eos", "--disable-tqdm"),
            *("--random-input-len", str(INPUT_TOKENS), "--random-output-len", str(asked.n_tokens)),
            *("--num-prompts", str(asked.n_requests), "--max-concurrency", str(asked.streams)),
            *("--save-result", "--result-filename", f"{asked.folder}/result.json"),
        ]

    def ttft(folder: Path) -> float:
        return float(json.loads((folder / "result.json").read_text())["mean_ttft_ms"])

    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": packages}
    return Peer("vllm", tokenizer, command, ttft, environment)


_PEERS: dict[str, tuple[str, Callable[[Path, str], Peer]]] = {
    "guidellm": ("bin/guidellm", _guidellm),
    "aiperf": ("bin/aiperf", _aiperf),
    "vllm": ("bin/python3", _vllm),
}
