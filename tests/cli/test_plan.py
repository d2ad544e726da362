"""`opslib plan`: one JSON document, exit codes, and nonsense that is answered by name."""

import json

import pytest

from opslib.cli.main import call
from tests.memory_cases import MINIMAX

STORY = ["--tensor-parallel-size", "4", "--gpu-memory-utilization", "0.95", "--max-model-len", "131072"]
GPUS = ["--gpu-memory-gib", "94.97", "--gpus", "8", "--engine-version", "0.15"]
KEYS = {
    "verdict",
    "engine_version",
    "binding_rank",
    "per_gpu_gib",
    "bands_gib",
    "kv_cache_tokens",
    "max_concurrency",
    "max_model_len",
    "max_num_seqs",
    "estimated_max_model_len",
    "flags",
    "remedies",
    "notes",
}
PARTS = {"total", "budget", "weights", "activation_peak", "non_torch", "cuda_graphs", "kv_cache", "headroom"}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MINIMAX))
    return str(path)


def planned(capsys, *words):
    status = call(["plan", "--json", *words])
    return status, json.loads(capsys.readouterr().out)


def changed(tmp_path, **changes):
    path = tmp_path / "changed.json"
    path.write_text(json.dumps({**MINIMAX, **changes}))
    return str(path)


def test_the_story_is_named_and_its_remedy_solved_for(capsys, config):
    """Verdict with the catalogue's id, exit code 2, --max-num-seqs 256 first."""
    words = ["--config", config, "--weights-bytes", "230134614000", *GPUS, "--", *STORY]
    status, found = planned(capsys, *words)
    assert (status, found["verdict"]) == (2, "gpu-memory/sampler-warmup")
    assert (found["remedies"][0]["flag"], found["remedies"][0]["value"]) == ("--max-num-seqs", 256)
    assert found["remedies"][0].keys() == {"flag", "value", "costs", "reason"}
    assert found.keys() >= KEYS
    assert found["per_gpu_gib"].keys() == found["bands_gib"].keys() == PARTS
    assert all(low <= high for low, high in found["bands_gib"].values())
    assert found["flags"]["--max-num-seqs"]["origin"] == "default of vLLM 0.15 for GPUs >= 70 GiB"


@pytest.mark.parametrize("more", [["--max-num-seqs", "256"], ["--gpu-memory-utilization", "0.90"]])
def test_with_its_remedy_or_a_smaller_share_the_story_fits(capsys, config, more):
    """Exit code 0, no cause, no remedy."""
    status, found = planned(capsys, "--config", config, "--weights-bytes", "230134614000", *GPUS, "--", *STORY, *more)
    assert (status, found["verdict"], found["remedies"]) == (0, "fits", [])


def test_without_weights_they_are_counted_with_a_wider_band(capsys, config):
    """229 billion parameters in FP8, and the source says so."""
    _, counted = planned(capsys, "--config", config, *GPUS, "--", *STORY)
    _, given = planned(capsys, "--config", config, "--weights-bytes", "230134614000", *GPUS, "--", *STORY)
    assert counted["per_gpu_gib"]["weights"] == pytest.approx(given["per_gpu_gib"]["weights"], rel=0.02)
    assert counted["sources"]["weights"].startswith("counted from config.json")
    widths = [found["bands_gib"]["weights"][1] - found["bands_gib"]["weights"][0] for found in (counted, given)]
    assert widths[0] > widths[1]


def test_a_reported_cache_gives_its_tokens_without_any_gpu(capsys, config):
    """--kv-cache-memory-bytes is honoured: 23.62 GiB / 63,488 bytes in blocks of 16."""
    line = ["-tp", "4", "--max-model-len", "196608", "--kv-cache-memory-bytes", str(int(23.62 * 2**30))]
    status, found = planned(capsys, "--config", config, "--engine-version", "0.15", "--", *line)
    assert (status, found["kv_cache_tokens"]) == (0, 399472)
    assert found["per_gpu_gib"]["total"] is None


def test_too_small_a_cache_says_what_would_fit(capsys, config):
    """The estimate is the longest request, as the engine's own message says it; fp8 halves a request."""
    line = ["-tp", "2", "--max-model-len", "196608", "--kv-cache-memory-bytes", str(int(22.5 * 2**30))]
    status, found = planned(capsys, "--config", config, "--engine-version", "0.29.1", "--", *line)
    assert (status, found["verdict"]) == (2, "gpu-memory/kv-cache-below-max-model-len")
    assert found["estimated_max_model_len"] == pytest.approx(190272, rel=0.001)
    assert [remedy["flag"] for remedy in found["remedies"]][:2] == ["--max-model-len", "--kv-cache-dtype"]


def test_weights_that_do_not_fit_are_answered_with_more_gpus(capsys, config):
    """The smallest tensor-parallel size, among the GPUs that there are."""
    line = ["--max-model-len", "32768", "--max-num-seqs", "64"]
    status, found = planned(capsys, "--config", config, "--weights-bytes", "230134614000", *GPUS, "--", *line)
    assert (status, found["verdict"]) == (2, "gpu-memory/weights")
    assert (found["remedies"][0]["flag"], found["remedies"][0]["value"]) == ("--tensor-parallel-size", 4)


def test_a_size_that_does_not_divide_is_a_verdict_with_the_nearest_one_that_does(capsys, config):
    """Refused by vLLM before it looks at memory."""
    status, found = planned(capsys, "--config", config, *GPUS, "--", "-tp", "5")
    assert (status, found["verdict"]) == (2, "model/parallel-size-not-divisible")
    assert found["remedies"][0]["value"] in {4, 6}


def test_a_length_above_the_models_limit_is_a_verdict_with_the_limit(capsys, config):
    """Unless the environment allows it."""
    words = ["--config", config, "--weights-bytes", "230134614000", *GPUS]
    line = ["-tp", "4", "--max-model-len", "200000", "--max-num-seqs", "64"]
    status, found = planned(capsys, *words, "--", *line)
    assert (status, found["verdict"]) == (2, "model/max-model-len-above-limit")
    assert found["remedies"][0]["value"] == 196608
    status, found = planned(capsys, *words, "--env", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", "--", *line)
    assert (status, found["verdict"]) == (0, "fits")


def test_what_is_free_counts(capsys, config):
    """Half of the GPU is held: the largest share that the rest leaves is the remedy."""
    words = ["--config", config, "--weights-bytes", "20000000000", *GPUS, "--free-gib", "40"]
    status, found = planned(capsys, *words, "--", "-tp", "4", "--max-model-len", "8192", "--max-num-seqs", "64")
    assert (status, found["verdict"]) == (2, "gpu-memory/free-below-budget")
    remedy = found["remedies"][0]
    assert remedy["flag"] == "--gpu-memory-utilization"
    assert remedy["value"] * 94.97 < 40


@pytest.mark.parametrize(
    ("changes", "options", "line", "said"),
    [
        ({"num_attention_heads": 0}, [], "", "num_attention_heads is 0"),
        ({"hidden_size": -4}, [], "", "hidden_size is -4"),
        ({"num_hidden_layers": None}, [], "", "num_hidden_layers is None"),
        ({"rope_scaling": {"type": "linear", "factor": 1e308}}, [], "", "the factor of its rope scaling is 1e+308"),
        ({"hidden_size_per_layer_input": "x"}, [], "", "hidden_size_per_layer_input is 'x'"),
        ({"num_kv_shared_layers": 100}, [], "", "num_kv_shared_layers is 100 of 62 layers"),
        ({"layer_types": ["sliding_attention"] * 62}, [], "", "its layer types need sliding_window, which is None"),
        ({"compress_ratios": [-4] * 62}, [], "", "compress_ratios has -4"),
        ({}, [], "--hf-overrides {bad", "--hf-overrides {bad is no JSON object"),
        ({"quantization_config": {"quant_method": "zip"}}, [], "", "'zip' is not known"),
        ({}, ["--gpu-memory-gib", "-3"], "", "--gpu-memory-gib"),
        ({}, ["--gpu-memory-gib", "nan"], "", "--gpu-memory-gib"),
        ({}, ["--weights-bytes", "0"], "", "--weights-bytes"),
        ({}, ["--free-gib", "100"], "", "--free-gib 100"),
        ({}, ["--env", "novalue"], "", "--env novalue"),
        ({}, [], "--max-num-seqs 0", "--max-num-seqs 0"),
        ({}, [], "--gpu-memory-utilization 1.5", "--gpu-memory-utilization 1.5"),
        ({}, [], "--gpu-memory-utilization nan", "--gpu-memory-utilization"),
        ({}, [], "--speculative-config {method", "no JSON object"),
        ({}, [], '--speculative-config {"num_speculative_tokens":-3}', "num_speculative_tokens is -3"),
        ({"quantization_config": "fp8"}, [], "", "quantization_config is 'fp8'"),
        ({}, [], "-tp 16", "16 ranks need as many GPUs, 8 are given"),
        ({}, [], "--max-num-seqs 512 --max-num-batched-tokens 256", "less than --max-num-seqs"),
        ({}, [], "--no-enable-chunked-prefill --max-model-len 8192 --max-num-batched-tokens 2048", "chunked prefill"),
        ({}, [], "--no-enable-chunked-prefill --max-num-batched-tokens 2048", "at least the model's own length"),
        ({}, [], "--kv-cache-dtype zip", "--kv-cache-dtype zip"),
        ({}, [], "--quantization zip", "--quantization zip"),
        ({}, [], "--quantization awq", "doesn't match"),
        ({}, [], "-tp 4 -dcp 3", "can't be divided"),
        ({}, [], "--max-numseqs 4", "did you mean --max-num-seqs?"),
        ({}, [], "--max-num-seqs many", "--max-num-seqs"),
    ],
)
def test_nonsense_is_answered_by_name(capsys, tmp_path, changes, options, line, said):
    """Exit code 4, one line that names what makes no sense."""
    gpus = [] if "--gpu-memory-gib" in options else ["--gpu-memory-gib", "94.97"]
    words = ["--config", changed(tmp_path, **changes), *gpus, "--gpus", "8", *options, "--", *line.split()]
    status, found = planned(capsys, *words)
    assert status == 4
    assert said in " ".join(found["error"]["problems"])


def test_a_config_that_is_no_json_is_refused(capsys, tmp_path):
    """So is one that isn't there, none at all, and one without the size of a GPU."""
    path = tmp_path / "config.json"
    path.write_text("{broken")
    assert planned(capsys, "--config", str(path), "--gpu-memory-gib", "80")[0] == 4
    path.write_text("[]")
    assert planned(capsys, "--config", str(path), "--gpu-memory-gib", "80")[0] == 4
    assert planned(capsys, "--config", str(tmp_path / "none.json"), "--gpu-memory-gib", "80")[0] == 4
    assert planned(capsys, "--gpu-memory-gib", "80")[0] == 4
    path.write_text(json.dumps(MINIMAX))
    assert planned(capsys, "--config", str(path))[0] == 4


def test_without_json_it_reads_as_lines(capsys, config):
    """Verdict first, terms with their sources, remedies with what they cost."""
    assert call(["plan", "--config", config, "--weights-bytes", "230134614000", *GPUS, "--", *STORY]) == 2
    out = capsys.readouterr().out
    assert out.startswith("gpu-memory/sampler-warmup: does not fit")
    assert "remedy: --max-num-seqs 256" in out
    assert "costs: at most 256 requests run at once instead of 1024" in out


def test_hf_overrides_are_planned_with(capsys, config):
    """As the engine joins them to the config: half the layers are half the weights."""
    _, whole = planned(capsys, "--config", config, *GPUS, "--", *STORY)
    _, half = planned(capsys, "--config", config, *GPUS, "--", *STORY, "--hf-overrides", '{"num_hidden_layers": 31}')
    weights = [found["per_gpu_gib"]["weights"] for found in (half, whole)]
    assert weights[0] == pytest.approx(weights[1] / 2, rel=0.03)


def test_groups_of_a_mixed_quantization_count_each_for_itself(capsys, config, tmp_path):
    """Attention in 8 bits beside experts in 4 takes more than all in 4 bits."""
    groups = {
        "group_0": {"targets": ["re:.*experts.*"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}},
        "group_1": {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type": "float"}},
    }
    sizes = []
    for chosen in (groups, {"group_0": groups["group_0"]}):
        path = tmp_path / f"{len(chosen)}.json"
        method = {"quant_method": "compressed-tensors", "config_groups": chosen}
        path.write_text(json.dumps({**MINIMAX, "quantization_config": method}))
        sizes.append(planned(capsys, "--config", str(path), *GPUS, "--", *STORY)[1]["per_gpu_gib"]["weights"])
    assert 0 < sizes[0] - sizes[1] < 1


@pytest.mark.parametrize("text", ["foo", "latest", "15"])
def test_a_version_that_is_none_is_refused(text, capsys, config):
    """It isn't planned for the newest instead, without a word."""
    assert call(["plan", "--config", config, "--gpu-memory-gib", "80", "--engine-version", text, "--", *STORY]) == 4
    assert f"--engine-version {text}: expected a version such as 0.15" in capsys.readouterr().err


def test_a_version_after_the_newest_known_is_planned_as_the_newest(capsys, config):
    """The eras are of whole versions: 1.0 is not older than 0.10."""
    line = ["--config", config, "--gpu-memory-gib", "94.97", "--gpus", "8"]
    peaks = [
        planned(capsys, *line, "--engine-version", version, "--", *STORY)[1]["per_gpu_gib"]["activation_peak"]
        for version in ("0.33", "1.0", "0.10")
    ]
    assert peaks[0] == peaks[1] != peaks[2]
