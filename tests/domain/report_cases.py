"""Crash reports and single sentences rebuilt from public ones, with their right answers."""

import tomllib
from pathlib import Path

from opslib.domain.journal_text import parse_input
from tests.story import tell

FOLDER = Path(__file__).parents[1] / "cases" / "made_reports"
_FRAMES = {
    "weights": ["vllm/model_executor/model_loader/base_loader.py:49:load_model:self.load_weights(model, model_config)"],
    "none": ["vllm/entrypoints/openai/api_server.py:100:build_client:vllm_config = engine_args.create_engine_config("],
    "serving": ["vllm/v1/engine/core.py:700:run_busy_loop:self._process_engine_step()"],
}
_OTHERS = ["vllm/v1/worker/gpu_worker.py:300:init_device:self.x()"]
_RAW = ("docker", "nvidia-c", "vllm", "api_server.py", "error:", "/usr", "start:", "failed to", " ")  # no exceptions


def load_reports():
    """The whole reports of all files, by name."""
    return [case for path in sorted(FOLDER.glob("*.toml")) for case in tomllib.loads(path.read_text("utf-8"))["case"]]


def report_entries(report):
    """The entries of a report's text."""
    return parse_input(report["text"].lstrip("\n"))


def report_accepts(report, cause):
    """Whether the answer is right, or as good as the right one."""
    return cause in {report["cause"], *report.get("also", [])}


def load_sentences():
    """Each sentence as a made case, with the answers that are right."""
    for row in (FOLDER / "sentences.txt").read_text("utf-8").splitlines():
        if row.startswith("#"):
            continue
        cause, phase, sentence, *also = row.split("|")
        case = {"cause": cause, "phase": phase, "also": also[0].split(",") if also else []}
        if sentence.startswith(_RAW):
            case["raw"] = [sentence]
        else:
            case |= {"frames": _FRAMES.get(phase, _OTHERS), "error": [sentence]}
        yield sentence, case


def sentence_entries(case):
    """The entries of a start that fails with the sentence."""
    return tell(case)
