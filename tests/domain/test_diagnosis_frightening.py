"""Words that frighten and mean nothing: a start that is well names no cause, wherever its journal is cut off."""

import pytest

from opslib.domain.diagnosis import diagnose
from opslib.domain.facts.journal import JournalEntry
from opslib.domain.journal_text import parse_input
from tests.domain.journal_cases import load_cases
from tests.story import tell

CASES = load_cases()
UNEXPLAINED = [case for case in CASES if case.truth["cause"] in {"none", "unknown"}]
FAILED = [case for case in CASES if case.truth["decisive_lines"] and case.truth.get("source")]
EXIT = "vllm.service: Main process exited, code=exited, status=1/FAILURE"
ENGINE = "(EngineCore pid=12) INFO 07-02 22:00:59 [core.py:114] "

# Each was seen in a start that went on.
HARMLESS = [
    "'[Errno 104] Connection reset by peer' thrown while requesting HEAD https://huggingface.co/x/resolve/main/config.json",
    "Error while downloading from https://cdn-lfs.hf.co/x: HTTPSConnectionPool(host='cdn-lfs.hf.co', port=443): Read timed out.",
    "Could not cache non-existence of file. Will ignore error and continue. Error: [Errno 13] Permission denied: '/srv/hub/x'",
    "Ignored error while writing commit hash to /srv/hub/refs/main: [Errno 13] Permission denied: '/srv/hub/refs/main'.",
    "OutOfMemoryError: out of resource: triton_mm Required: 262144 Hardware limit:232448 Reducing block sizes may help.",
    "No valid triton configs. OutOfMemoryError: out of resource: triton_mm Required: 262144 Hardware limit:232448",
    "WARNING 07-31 19:35:15 [_custom_ops.py:20] Failed to import from vllm._C with ModuleNotFoundError(\"No module named 'vllm._C'\")",
    "/opt/vllm/lib/x.py:7: UserWarning: CUDA out of memory. Falling back to the processor",
    "node7:1:1 [0] misc/cudawrap.cc:36 NCCL WARN Cuda failure 3 'initialization error'",
    "[W1130 socket.cpp:464] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family not supported by protocol).",
    ENGINE + "Starting to load model /models/CUDA-out-of-memory-OutOfMemoryError-7B...",
    ENGINE + "non-default args: {'served_model_name': ['PermissionError: [Errno 13] Permission denied']}",
]  # fmt: skip

# What the same words are where they do decide, beside the look-alikes above.
TELLING = [
    ("hub/not-found-offline", "requests.exceptions.ReadTimeout: (ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.\"))"),
    ("environment/permission-denied", "PermissionError: [Errno 13] Permission denied: '/srv/hub/x'"),
    ("gpu-memory/weights", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB."),
    ("environment/python-dependency", "AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'"),
    ("configuration/conflicting-flags", "ValueError: num_redundant_experts should be used with EPLB.16."),
    ("configuration/conflicting-flags", "ValueError: data_parallel_external_lb can only be set when data_parallel_size > 1"),
    ("unknown", "ValueError: This option should be used with caution"),
    ("process/segfault", "terminate called after throwing an instance of 'std::runtime_error'"),
]  # fmt: skip


@pytest.mark.parametrize("case", UNEXPLAINED, ids=lambda case: case.name)
def test_what_explains_nothing_names_no_cause_wherever_it_is_cut_off(case):
    """A start that is well, and one whose cause nobody told, wherever the reading ends."""
    lines = case.text.rstrip(b"\n").split(b"\n")
    step = max(1, len(lines) // 12)
    found = [diagnose(parse_input(b"\n".join(lines[:end]))).cause for end in range(1, len(lines), step)]
    assert set(found) <= {"none", "unknown"} | set(case.truth["also_accept"])


@pytest.mark.parametrize("case", FAILED, ids=lambda case: case.name)
def test_before_the_deciding_line_nothing_else_is_named(case):
    """The lines before the first deciding one speak for no other cause."""
    lines = case.text.split(b"\n")[: min(case.truth["decisive_lines"])]
    found = diagnose(parse_input(b"\n".join(lines))).cause
    assert found in {"none", "unknown"} or case.accepts(found)


@pytest.mark.parametrize("end", ["", EXIT], ids=["under-way", "crashed"])
@pytest.mark.parametrize("line", HARMLESS)
def test_a_harmless_line_explains_nothing(line, end):
    """Neither while the start goes on nor where it crashed for a reason that nobody told."""
    assert diagnose(tell({"cause": "", "phase": "weights", "raw": [line], "end": end})).cause == "unknown"


@pytest.mark.parametrize(("cause", "line"), TELLING)
def test_the_same_words_decide_where_an_exception_says_them(cause, line):
    """The look-alikes are passed over, the real ones are not."""
    assert diagnose(tell({"cause": cause, "phase": "weights", "raw": [line]})).cause == cause


@pytest.mark.parametrize(
    "heading", ["Failed to load plugin lora_resolver", "NVLink detection failed. This is normal if"]
)
def test_a_traceback_that_was_got_over_is_not_the_cause(heading):
    """The engine logs it and goes on; what ends the start later is judged by itself, and so is the same traceback alone."""
    head = "(EngineCore pid=12) ERROR 07-02 22:00:59 [__init__.py:63] "
    trace = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in load',
        "ModuleNotFoundError: No module named 'x'",
    ]
    raw = [head + text for text in (heading, *trace)]
    made = {"cause": "", "phase": "configuration"}
    assert diagnose(tell({**made, "raw": raw, "end": ""})).summary.startswith("These lines show neither a failure")
    assert diagnose(tell({**made, "raw": raw})).cause == "unknown"
    later = [*raw, head + "Traceback (most recent call last):", head + "torch.OutOfMemoryError: CUDA out of memory."]
    assert diagnose(tell({**made, "phase": "weights", "raw": later})).cause == "gpu-memory/weights"
    assert diagnose(tell({**made, "raw": raw[1:]})).cause == "environment/python-dependency"


def test_what_journald_broke_off_a_line_belongs_to_it():
    """The rest of an option of more than 48 KiB is no exception, whatever it looks like."""
    head = (ENGINE + "non-default args: {'chat_template': '").ljust(48 * 1024, "x")
    parts = [head, "ValueError: No available memory for the cache blocks in a template'}"]
    entries = [JournalEntry(message=part, pid=12, transport="stdout", identifier="vllm") for part in parts]
    assert diagnose(entries).cause == "unknown"
    assert diagnose(entries[1:]).cause == "gpu-memory/no-kv-cache-memory"


def test_an_engine_s_starting_is_not_systemd_s():
    """In a pasted log "Starting to load model" behind the engine's head says how far the start is."""
    lines = (
        ENGINE + "Starting to load model x...",
        ENGINE.replace("INFO", "ERROR") + "RuntimeError: CUDA error: out of memory",
    )
    found = diagnose(parse_input("\n".join(lines)))
    assert (found.cause, found.confidence) == ("gpu-memory/weights", "medium")
