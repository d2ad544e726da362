"""Reading engine logs: prefixes of all versions, frames, phases, figures."""

import pytest

from opslib.domain.engine_log import list_phases, parse_log_line, phase_of, read_figures
from opslib.domain.journal_text import parse_input
from tests.domain.journal_cases import load_cases


@pytest.mark.parametrize(
    ("message", "process", "pid", "level", "source", "text"),
    [
        ("INFO 10-16 07:29:48 engine.py:400] x", "", None, "INFO", "engine.py:400", "x"),
        (
            "(VllmWorkerProcess pid=5) INFO 10-16 07:29:48 worker.py:1] x",
            "VllmWorkerProcess",
            5,
            "INFO",
            "worker.py:1",
            "x",
        ),
        ("(RayWorkerWrapper pid=5, ip=10.0.0.1) x", "RayWorkerWrapper", 5, "", "", "x"),
        (
            "(VllmWorker rank=1 pid=5) ERROR 04-06 21:15:51 [core.py:61] x",
            "VllmWorker rank=1",
            5,
            "ERROR",
            "core.py:61",
            "x",
        ),
        ("(EngineCore_DP0 pid=5) x", "EngineCore_DP0", 5, "", "", "x"),
        (
            "(Worker_TP0_EP0 pid=5) WARNING 04-06 21:15:51 [v1/core.py:6] x",
            "Worker_TP0_EP0",
            5,
            "WARNING",
            "v1/core.py:6",
            "x",
        ),
        ("(VllmWorker-0 pid=5) x", "VllmWorker-0", 5, "", "", "x"),
        ("\x1b[1;36m(APIServer pid=5)\x1b[0;0m INFO:     x", "APIServer", 5, "INFO", "", "x"),
        ("May  6 09:15:05 host llm[3]: #033[1;36m(EngineCore pid=5)#033[0;0m x", "EngineCore", 5, "", "", "x"),
        ("vllm-1  | (APIServer pid=1) x", "APIServer", 1, "", "", "x"),
        ("2026-04-14T21:53:03.272682323Z (APIServer pid=1) x", "APIServer", 1, "", "", "x"),
        ("2026-06-30T14:00:32+0200 host vllm[9]: x", "", 9, "", "", "x"),
        ("2025-11-02 10:00:00,123 - vllm.engine - ERROR - x", "", None, "ERROR", "vllm.engine", "x"),
        ("[2025-02-20 11:00:17 TP0] x", "", None, "", "TP0", "x"),
        ("(a remark) x", "", None, "", "", "(a remark) x"),
    ],
)
def test_prefixes_and_frames(message, process, pid, level, source, text):
    """Each version's way to say who speaks, inside each way to paste a log."""
    line = parse_log_line(message)
    assert (line.process, line.pid, line.level, line.source, line.text) == (process, pid, level, source, text)


@pytest.mark.parametrize(
    ("message", "process", "pid", "level", "text"),
    [
        ("(Worker pid=13) (Worker_TP1 pid=14) ERROR 03-05 09:56:09 [x.py:880] x", "Worker_TP1", 14, "ERROR", "x"),
        ("(EngineCore_DP0 pid=1) (RayWorkerWrapper pid=2, ip=10.0.0.5) INFO 06-14 20:17:56 [x.py:1] x", "RayWorkerWrapper", 2, "INFO", "x"),
        ("(EngineCore_DP0 pid=1) (pid=3) x", "EngineCore_DP0", 3, "", "x"),
        ("(vllm-test, pid=21) (EngineCore_0 pid=39) ERROR 08-21 07:45:43 [core.py:700] x", "EngineCore_0", 39, "ERROR", "x"),
        ("(pid=776, ip=10.0.0.68) WARNING 07-31 19:35:17 [_custom_ops.py:20] x", "", 776, "WARNING", "x"),
        ("vLLM STDOUT: INFO 05-05 15:15:37 [cuda.py:288] x", "", None, "INFO", "x"),
        ("2024-10-07T22:54:54,595 [INFO ] W-9000-model_1.0-stdout MODEL_LOG - WARNING 10-07 22:54:54 llm_engine.py:226] x", "", None, "WARNING", "x"),
        ("[2025-12-13T19:54:35Z] (Worker_TP0 pid=9) ERROR 12-13 11:54:35 [x.py:826] x", "Worker_TP0", 9, "ERROR", "x"),
        ("2026-05-01 18:57:24.911 | (APIServer pid=1) OSError: x", "APIServer", 1, "", "OSError: x"),
        ("[vllm]                 | ERROR 05-29 04:44:26 [core.py:387] x", "", None, "ERROR", "x"),
        ("(a note in brackets) INFO: not a head", "", None, "", "(a note in brackets) INFO: not a head"),
    ],
)  # fmt: skip
def test_prefixes_of_others_before_the_engine_s_own(message, process, pid, level, text):
    """Ray, supervisors, containers and collectors write before the engine does; the innermost process speaks."""
    line = parse_log_line(message)
    assert (line.process, line.pid, line.level, line.text) == (process, pid, level, text)


def test_a_bar_that_nobody_ended_is_told_apart_from_the_line_behind_it():
    """The line is what was logged; the bar is kept for who asks how far it is."""
    bar = "Capturing CUDA graphs (decode, FULL):  97%|##| 65/67 [00:15<00:00,  4.58it/s]"
    line = parse_log_line(bar + "(Worker_TP2_EP2 pid=27) INFO 09-29 09:52:20 [custom_all_reduce.py:203] Registering")
    assert (line.text, line.process, line.before) == ("Registering", "Worker_TP2_EP2", bar)


def test_a_redrawn_bar_shows_its_last_state():
    """A carriage return starts the line anew."""
    assert parse_log_line("\rLoading: 10%\rLoading: 20%\r").text == "Loading: 20%"


def test_phases_have_an_order():
    """From starting to stopping, weights with percent."""
    ids = [phase.id for phase in list_phases()]
    assert ids[0] == "starting"
    assert ids[-2:] == ["serving", "stopping"]
    assert ids.index("weights") < ids.index("kv_cache") < ids.index("graphs")
    phase = phase_of("Capturing CUDA graphs (decode, FULL):  49%|####      | 33/67 [00:05<00:05,  5.80it/s]")
    assert phase is not None
    assert (phase.id, phase.percent) == ("graphs", 49)


def _figures(name):
    case = next(case for case in load_cases() if case.name == name)
    return read_figures(entry.message for entry in parse_input(case.text))


def test_figures_of_a_sampler_crash():
    """Weights, graphs, dummy requests and the failed allocation."""
    figures = _figures("sampler-warm-up-on-four-ranks")
    assert figures.version == "0.8.5.post1"
    assert figures.dummy_requests == 512
    assert figures.out_of_memory is not None
    assert figures.out_of_memory.tried_bytes == 298 * 2**20
    assert figures.cuda_graphs_bytes == round(0.61 * 2**30)


def test_figures_of_a_small_kv_cache():
    """What is needed, what is there, and the engine's own estimate."""
    figures = _figures("kv-cache-too-small-after-silent-download").kv_cache_too_small
    assert figures is not None
    assert figures.estimated_max_model_len == 116576
    assert figures.needed_bytes > figures.available_bytes


def test_figures_of_a_busy_gpu():
    """Free, total, wanted, and the share."""
    figures = _figures("left-over-engine-holds-the-gpu")
    assert figures.free_below_budget is not None
    assert figures.free_below_budget.gpu_memory_utilization == 0.85
    assert figures.arguments["model"] == "/srv/models/Qwen3.5-35B-A3B-NVFP4"
