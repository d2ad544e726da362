"""Shapes of load: open loop, ramps, sweeps, repeats, several processes; and what is asked."""

import os
import random
import stat
import statistics

import pytest

from opslib.domain.benchmark_judge import find_knee
from opslib.domain.benchmark_samples import LevelRun, summarize
from opslib.onhost.loadgpu import FIELDS, GpuWatch, vector
from opslib.onhost.loadlines import summary_of
from opslib.onhost.loadshape import arrivals, draw, stop_reason
from tests.truth import run, truth_of, truth_server


@pytest.fixture(scope="module")
def port():
    with truth_server() as number:
        yield number


def p99(values):
    return sorted(values)[int(0.99 * len(values))]


def test_a_stall_is_seen_by_every_request_that_was_due():
    """Open loop, a server that stands still for 0.6 s of 3 s: latencies count from the intended start, so p99 has it.

    The same stall is met by one request of a single stream only: a closed loop leaves it out of all but one figure.
    """
    with truth_server(stall_at_s=1.0, stall_s=0.6, ttft_ms=10, itl_ms=1) as port:
        level = {"arrival": "constant", "rate": 40, "n_requests": 120}
        lines = run(port, levels=[level], output_tokens=2, warmup=0)
    requests = lines["request"]
    assert [request["error"] for request in requests] == [None] * 120
    ttft = [request["ttft_ms"] for request in requests]
    assert p99(ttft) > 450
    assert sum(value > 100 for value in ttft) >= 15
    assert statistics.median(ttft) < 400
    assert all(r["intended_at_s"] == pytest.approx(r["index"] / 40, abs=1e-6) for r in requests)
    assert all(request["sent_at_s"] >= request["intended_at_s"] - 1e-3 for request in requests)
    assert (lines["level"][0]["arrival"], lines["level"][0]["request_rate"]) == ("constant", 40)
    assert lines["level"][0]["concurrency"] >= 15


@pytest.mark.slow
def test_two_seconds_of_twenty_are_in_p99_of_an_open_loop_only():
    """A server that stands still for 2 s of 20 s: p99 is about 2 s in an open loop, and hidden in a closed one."""
    stall = {"stall_at_s": 8.0, "stall_s": 2.0, "ttft_ms": 50, "itl_ms": 10}
    found = {}
    for name, shape in {"open": {"arrival": "constant", "rate": 10}, "closed": {"concurrency": 1}}.items():
        with truth_server(**stall) as port:
            lines = run(port, levels=[{**shape, "duration_s": 20}], warmup=0, deadline_s=60)
        found[name] = p99([request["ttft_ms"] for request in lines["request"]])
    assert 1800 < found["open"] < 2300
    assert found["closed"] < 500


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ({"arrival": "poisson", "rate": 50, "n_requests": 4000}, 80),
        ({"arrival": "gamma", "rate": 50, "burstiness": 0.5, "n_requests": 4000}, 80),
        ({"arrival": "burst", "rate": 50, "burst": 8, "n_requests": 4000}, 80),
        ({"arrival": "ramp", "rate": 10, "to_rate": 90, "duration_s": 80}, 80),
        ({"arrival": "trace", "offsets_s": [100.0, 130.0, 180.0]}, 80),
    ],
)
def test_arrivals_keep_their_rate(level, expected):
    """Every arrival is in order, begins at 0 and takes the time that its rate says; a ramp sends the mean of both."""
    due = arrivals(level, random.Random(7))
    assert due == sorted(due)
    assert due[0] == 0.0
    assert due[-1] == pytest.approx(expected, rel=0.06)
    if level["arrival"] == "ramp":
        assert len(due) == pytest.approx(50 * 80, rel=0.05)


@pytest.mark.parametrize(("rate", "duration_s"), [(20, 4), (40, 3), (44, 4), (3, 7), (0.7, 10), (100, 60)])
def test_a_time_holds_as_many_as_its_rate_says(rate, duration_s):
    """A constant rate for a time is their product, whatever the sum of so many gaps is in binary fractions."""
    due = arrivals({"arrival": "constant", "rate": rate, "duration_s": duration_s}, random.Random(0))
    assert len(due) == round(rate * duration_s)


def test_lengths_follow_their_distribution():
    """Fixed, even, normal (clipped) and listed lengths."""
    rng = random.Random(3)
    assert {draw({"low": 2, "high": 4}, rng) for _ in range(200)} == {2, 3, 4}
    normal = [draw({"mean": 100, "std": 20, "min": 60, "max": 130}, rng) for _ in range(500)]
    assert (min(normal), max(normal)) == (60, 130)
    assert statistics.mean(normal) == pytest.approx(99, abs=4)
    assert {draw({"values": [8, 16], "weights": [1, 0]}, rng) for _ in range(20)} == {8}


@pytest.mark.parametrize("tokens_per_word", [1, 2])
def test_prompts_are_exact_where_the_server_tokenizes(tokens_per_word):
    """With /tokenize each prompt has exactly its length where words are single tokens; else as near as words allow."""
    with truth_server(tokens_per_word=tokens_per_word) as port:
        lines = run(port, input_tokens={"values": [100, 203]}, n_requests=8)
    wanted = {100, 203} if tokens_per_word == 1 else {99, 100, 101, 202, 203, 204}
    assert {request["prompt_tokens"] for request in lines["request"]} <= wanted
    assert lines["end"][0]["lengths_by"] == ("tokenize" if tokens_per_word == 1 else "usage")


def test_prefixes_are_shared_by_their_set_only():
    """Two sets have two beginnings; not shared, every request has its own, at the same length."""
    begun = {}
    for shares in (True, False):
        with truth_server(keep_bodies=True, tokens_per_word=1) as port:
            run(port, prefix_tokens=32, n_prefixes=2, shares_prefix=shares, warmup=0, n_requests=6)
            prompts = [body["prompt"].split() for body in truth_of(port)["bodies"]]
        assert {len(words) for words in prompts} == {37}  # and three tokens that the server adds
        begun[shares] = {tuple(words[:20]) for words in prompts}
    assert (len(begun[True]), len(begun[False])) == (2, 6)


def test_a_files_prompts_are_sent_with_a_salt():
    """Prompts of a list are asked in turn with their own lengths, behind words that no cache knows."""
    prompts = [{"prompt": "one", "output_tokens": 3}, {"prompt": "two", "output_tokens": 5}]
    with truth_server(keep_bodies=True) as port:
        lines = run(port, prompts=prompts, warmup=0, levels=[1])
        bodies = truth_of(port)["bodies"]
    assert [(body["prompt"].split()[-1], body["max_tokens"]) for body in bodies] == [("one", 3), ("two", 5)] * 2
    assert len({body["prompt"] for body in bodies}) == 4
    assert sorted(request["completion_tokens"] for request in lines["request"]) == [3, 3, 5, 5]


def test_a_level_may_last_a_time(port):
    """With a duration instead of a count, requests are sent until it is over and all are waited for."""
    lines = run(port, levels=[{"concurrency": 2, "duration_s": 0.6, "ramp_s": 0.1}])
    level = lines["level"][0]
    assert level["n_requests"] == len(lines["request"]) >= 4
    assert level["duration_s"] >= 0.6
    assert max(request["sent_at_s"] for request in lines["request"]) < level["duration_s"]


def test_repeats_go_in_another_order(port):
    """Every repeat begins with another level, and each line says which level and which repeat it is."""
    lines = run(port, levels=[1, 2, 3], n_requests=3, repeats=3, output_tokens=2, warmup=0, deadline_s=30)
    assert [(line["repeat"], line["number"]) for line in lines["level"]] == [
        *((0, 0), (0, 1), (0, 2)),
        *((1, 1), (1, 2), (1, 0)),
        *((2, 2), (2, 0), (2, 1)),
    ]


def test_a_sweep_ends_at_its_bound(port):
    """Levels double until a bound is passed; the level before is the saturation point, and the reason is told."""
    bounds = {"max_concurrency": 64, "ttft_ms": 1.0, "min_gain": -1.0}
    lines = run(port, levels=[], sweep=bounds, n_requests=2)
    assert len(lines["level"]) == 1
    assert "ttft_ms p99" in lines["end"][0]["stop_reason"]
    good = run(port, levels=[], sweep={"max_concurrency": 3, "min_gain": -1.0}, n_requests=4)
    assert [level["concurrency"] for level in good["level"]] == [1, 2, 3]
    assert good["end"][0]["stop_reason"] == ""


def test_a_sweep_ends_where_throughput_stops_growing():
    """Under 5 % more tokens while ttft grows is saturation; errors beyond 1 % end it too; growth goes on."""

    def level(concurrency, throughput, ttft, errors=0.0, cpu=0.1):
        spread = {"p50": ttft, "p99": ttft}
        return {
            "concurrency": concurrency,
            "client_cpu_share": cpu,
            "error_share": errors,
            "output_throughput": throughput,
            "ttft_ms": spread,
            "tpot_ms": spread,
            "e2e_latency_ms": spread,
        }

    assert stop_reason([level(1, 100, 10), level(2, 190, 11)], {}) is None
    assert "grew by 2%" in stop_reason([level(4, 100, 10), level(8, 102, 20)], {})
    assert stop_reason([level(4, 100, 10), level(8, 102, 9)], {}) is None
    assert "the client itself" in stop_reason([level(8, 102, 20, cpu=0.7)], {})
    assert "12% of the requests failed" in stop_reason([level(4, 100, 10, errors=0.12)], {})


def test_a_load_is_split_over_processes():
    """Two processes that share a level send all of its requests once, none alike, and their lines are one level's."""
    levels = [6, {"arrival": "constant", "rate": 30, "n_requests": 9}]
    with truth_server(keep_bodies=True) as port:
        lines = run(port, levels=levels, n_requests=[12, 9], min_processes=2, max_processes=2, deadline_s=20)
        prompts = [body["prompt"] for body in truth_of(port)["bodies"]]
    assert len(set(prompts)) == len(prompts)
    closed, due = lines["level"]
    assert (closed["concurrency"], closed["n_requests"], closed["n_processes"]) == (6, 12, 2)
    assert (due["n_requests"], due["n_processes"]) == (9, 2)
    assert [request["error"] for request in lines["request"]] == [None] * 21
    assert [request["index"] for request in lines["request"]] == [*range(12), *range(9)]
    intended = sorted(request["intended_at_s"] for request in lines["request"] if "intended_at_s" in request)
    assert intended == pytest.approx([n / 30 for n in range(9)], abs=1e-4)
    assert all(request["ttft_ms"] > 39 for request in lines["request"])


def test_the_server_is_asked_before_during_and_after(port):
    """Counters move by what the level did (no warm-up), gauges come as samples with their time."""
    level = run(port, levels=[4], n_requests=8, output_tokens=60)["level"][0]
    assert level["server"]["ttft_count"] == 8
    assert level["server"]["queue_sum_s"] == pytest.approx(0.4)
    assert max(sample["running"] for sample in level["server_samples"]) > 0


def test_gpus_are_watched_by_one_loop(tmp_path, monkeypatch, port):
    """One nvidia-smi in a loop gives a row per GPU; a driver that doesn't know a field is asked without it."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\ncase \"$*\" in *clocks_throttle*) echo 'Field is not a valid field to query.'; exit 2;; esac\n"
        "while :; do echo '0, 81000, 97, 610.5, 1830'; echo '1, 512, [N/A], 80.1, 210'; sleep 0.05; done\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    level = run(port, watches_gpus=True, gpus=[0, 1], output_tokens=60)["level"][0]
    samples = level["gpu_samples"]
    assert {sample["index"] for sample in samples} == {0, 1}
    assert samples[0]["memory_used_bytes"] == 81000 << 20
    assert {sample["utilization_percent"] for sample in samples} == {97.0, None}
    assert all(0 <= sample["at_s"] <= level["duration_s"] for sample in samples)
    assert vector(FIELDS, ["0"])[-1] == "--id=0"


def test_a_host_without_gpus_has_no_samples(monkeypatch):
    """No nvidia-smi is no error."""
    monkeypatch.setenv("PATH", "/nowhere")
    watch = GpuWatch()
    watch.start()
    watch.stop()
    assert watch.samples(0.0, 1e12) == []


def slotted(n_slots, concurrency, per_stream=2, ttft_s=0.06, itl_s=0.004, n_tokens=16):
    """The lines of a level against a server that works on so many requests at once and lets the others wait."""
    free, streams = [0.0] * n_slots, [0.06 * n / concurrency for n in range(concurrency)]
    requests = []
    for index in range(max(4, per_stream * concurrency)):
        sent_at, begins_at = min(streams), max(min(streams), min(free))
        ends_at = begins_at + ttft_s + itl_s * (n_tokens - 1)
        streams[streams.index(sent_at)] = free[free.index(min(free))] = ends_at
        times = {"ttft_ms": 1000 * (begins_at + ttft_s - sent_at), "e2e_latency_ms": 1000 * (ends_at - sent_at)}
        line = {"index": index, "sent_at_s": sent_at, "itl_ms": [1000 * itl_s] * (n_tokens - 1), "error": None}
        requests.append({**line, **times, "prompt_tokens": 4, "completion_tokens": n_tokens})
    level = {"concurrency": concurrency, "n_requests": len(requests), "duration_s": max(streams), "error_messages": {}}
    return LevelRun({**level, "client_cpu_share": 0.1, "loop_lag_p99_ms": 0.1, "server": {}}, requests)


@pytest.mark.parametrize(("n_slots", "expected"), [(1, 1), (2, 2), (3, 4), (8, 8), (12, 16), (24, 32), (32, 32)])
def test_saturation_is_the_first_level_that_fills_the_server(n_slots, expected):
    """At two requests a stream, the sweep ends behind it and the knee is there, whatever the server's capacity."""
    runs = [slotted(n_slots, 2**power) for power in range(8)]
    summaries, reason = [], None
    while reason is None:
        run_ = runs[len(summaries)]
        summaries.append(summary_of(run_.requests, run_.level))
        reason = stop_reason(summaries, {})
    assert summaries[-2]["concurrency"] == expected
    assert find_knee([summarize([run_]) for run_ in runs]) == expected
