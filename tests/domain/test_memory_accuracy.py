"""The planner against real launches: the bounds of the benchmark, and what the page of rules says in figures."""

import importlib.util
from pathlib import Path

import pytest

from opslib.domain.engine_defaults import read_engine_version
from opslib.domain.kv_cache import blocks_per_request, bytes_per_token, demand, make_pool
from opslib.domain.memory import WeightBytes, plan_memory
from opslib.domain.memory_remedy import remedies_of
from opslib.domain.model_spec import parse_model_config
from opslib.domain.vllm_flags import parse_serve_arguments
from tests.memory_cases import GIB, measured, read_case

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "plan_accuracy.py"
GDN = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "full_attention_interval": 4,
    "head_dim": 256,
}
QWEN_27B = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "vocab_size": 248320,
    "intermediate_size": 17408,
    "linear_num_value_heads": 48,
    "mtp_num_hidden_layers": 1,
    **GDN,
}
QWEN_35B = {
    **QWEN_27B,
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 32,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
}
GLM5 = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "hidden_size": 6144,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "vocab_size": 154880,
    "intermediate_size": 12288,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "num_nextn_predict_layers": 1,
}
DRAFT = """--speculative-config={"method":"mtp","num_speculative_tokens":3}"""
DRAFT_2 = """--speculative-config={"method":"mtp","num_speculative_tokens":2}"""


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("plan_accuracy", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_benchmarks_bounds_hold(benchmark):
    """Verdicts, tokens, weights, available KV memory and bands over all measured launches."""
    rows = [row for row in map(benchmark.row_of, benchmark.MEASURED) if isinstance(row, benchmark.Row)]
    values = benchmark.figures(rows)
    for name, (bound, kind) in benchmark.BOUNDS.items():
        if name != "median_ms":
            assert values[name] >= bound if kind == "min" else values[name] <= bound, (name, values[name])
    assert values["n_verdicts"] >= 30


@pytest.mark.parametrize(
    ("config", "line", "version", "block"),
    [
        (QWEN_27B, f"-tp 1 --kv-cache-dtype fp8 {DRAFT}", "0.25.1", 1600),
        (QWEN_27B, f"-tp 2 {DRAFT}", "0.25.1", 800),
        (QWEN_27B, "-tp 2 --kv-cache-dtype fp8", "0.25", 1568),
        (QWEN_35B, "--kv-cache-dtype fp8", "0.24.0", 2096),
        (QWEN_35B, DRAFT_2, "0.24.0", 1072),
    ],
)
def test_states_lengthen_the_attention_block(config, line, version, block):
    """`_align_hybrid_block_size`: the attention page is made as large as a state's, in steps of 16 tokens."""
    model, flags, engine = parse_model_config(config), parse_serve_arguments(line.split()), read_engine_version(version)
    layers = (*model.layers, *(model.draft_layers if flags.n_draft_tokens else ()))
    pool = make_pool(model, layers, flags, engine)
    assert pool.block_tokens == block


def test_prefix_caching_of_states_costs_blocks():
    """Align mode: 2 + 3 state blocks in each of three groups; 164 + 15 blocks for 262,144 tokens."""
    model, engine = parse_model_config(QWEN_27B), read_engine_version("0.22")
    line = f"-tp 2 --kv-cache-dtype fp8_e5m2 --enable-prefix-caching {DRAFT}"
    flags = parse_serve_arguments(line.split())
    pool = make_pool(model, (*model.layers, *model.draft_layers), flags, engine)
    assert blocks_per_request(pool, demand(model, flags, engine), 262144) == 179


@pytest.mark.parametrize(
    ("line", "expected"), [("-tp 8", 78 * 1284), ("-tp 8 --kv-cache-dtype fp8", 78 * 788), ("", 78 * 1284)]
)
def test_sparse_latents_carry_an_indexer(line, expected):
    """656 bytes (fp8_ds_mla) or 1152, and 132 of the indexer's key per token and layer, whatever TP is."""
    model = parse_model_config(GLM5)
    flags = parse_serve_arguments(line.split())
    assert bytes_per_token(model, flags, read_engine_version("0.20")) == expected


def test_the_log_line_of_old_versions_counts_one_group():
    """Up to 0.20.0 a hybrid's tokens are those of one group, and the plan says what the pool holds."""
    name = "045-kimi-linear-48b-awq-2x3090.json"
    reported = read_case(name)["reported"]
    inputs, _ = measured(name, kv_cache_memory_bytes=int(reported["available_kv_gib"] * GIB))
    plan = plan_memory(**inputs)
    assert plan.kv_cache_tokens == reported["kv_tokens"]
    assert plan.max_concurrency == pytest.approx(reported["max_concurrency"], rel=0.01)
    assert any("one of 4 groups" in note for note in plan.notes)


def test_chunked_layers_were_charged_in_full():
    """Llama-4 in 0.8.3: 24,576 bytes per token; with groups the need drops to about a third."""
    inputs, reported = measured("058-llama4-tp8-1m-fail.json", kv_cache_memory_bytes=24 * GIB)
    assert plan_memory(**inputs).max_concurrency == pytest.approx(1.0)
    newer = plan_memory(**{**inputs, "engine_version": "0.20"})
    assert newer.max_concurrency > 2.5
    assert reported["needed_kv_gib"] == 24.0


GEMMA4 = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "hidden_size": 5376,
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "intermediate_size": 21504,
    "max_position_embeddings": 262144,
}
QWEN_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "vocab_size": 151936,
    "intermediate_size": 5120,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "max_position_embeddings": 262144,
}
NEMOTRON = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hidden_size": 4096,
    "num_hidden_layers": 16,
    "hybrid_override_pattern": "MMM*MMM*MMM*MMM*",
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 131072,
    "intermediate_size": 14336,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "chunk_size": 256,
    "max_position_embeddings": 131072,
}
QWEN_14B = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "intermediate_size": 13824,
    "max_position_embeddings": 131072,
}


def _plan(config, line, version, *, total_gib=1000.0, weights=None):
    flags = parse_serve_arguments(line.split(), engine_version=version, gpu_total_bytes=int(total_gib * GIB))
    inputs = {"weights": weights, "gpu_total_bytes": int(total_gib * GIB), "engine_version": version}
    return plan_memory(parse_model_config(config), flags, **inputs)


@pytest.mark.parametrize(
    ("config", "line", "version", "block_bytes", "n_blocks", "tokens", "concurrency"),
    [  # vllm #40691, #39734, #26646: how many blocks there were follows from the two log lines
        (QWEN_27B, "--max-model-len 32768 --max-num-batched-tokens 16384", "0.19.0", 51380224, 1487, 290864, 33.04),
        (GEMMA4, "--max-model-len 262144 --max-num-batched-tokens 2048", "0.19.1", 2621440, 14025, 37392, 1.53),
        (QWEN_NEXT, "-tp 2 --kv-cache-dtype fp8 --max-model-len 215040", "0.11.0", 6586368, 338, 90048, 1.66),
    ],
)
def test_both_log_lines_follow_from_the_blocks(config, line, version, block_bytes, n_blocks, tokens, concurrency):
    """Tokens of one group, and the concurrency that counts all of them."""
    plan = _plan(config, f"{line} --kv-cache-memory-bytes {n_blocks * block_bytes}", version)
    assert (plan.kv_cache_tokens, round(plan.max_concurrency, 2)) == (tokens, concurrency)


@pytest.mark.parametrize(
    ("line", "version", "cause"),
    [
        ("--max-num-seqs 162", "0.23.1", "gpu-memory/cuda-graphs"),
        ("--max-num-seqs 161", "0.23.1", None),
        ("--max-num-seqs 256 --enforce-eager", "0.23.1", None),
        ('--max-num-seqs 256 --compilation-config={"cudagraph_mode":"PIECEWISE"}', "0.23.1", None),
        ("--max-num-seqs 256", "0.19.0", None),
        ("--max-num-seqs 256 --num-gpu-blocks-override 300", "0.23.1", None),
    ],
)
def test_each_sequence_needs_a_block_for_its_states(line, version, cause):
    """More sequences than blocks are refused from 0.20 on, where whole decoding steps are captured (vllm #38270)."""
    words = f"-tp 2 --max-model-len 122633 --kv-cache-memory-bytes {int(3.86 * GIB)} {line}"
    assert _plan(QWEN_27B, words, version).cause == cause


def test_as_many_sequences_as_blocks_are_the_remedy():
    """The largest --max-num-seqs is solved for, not halved."""
    words = f"-tp 2 --max-model-len 122633 --kv-cache-memory-bytes {int(3.86 * GIB)} --max-num-seqs 256"
    model, total = parse_model_config(QWEN_27B), 1000 * GIB
    flags = parse_serve_arguments(words.split(), engine_version="0.23.1", gpu_total_bytes=total)
    found = remedies_of(
        "gpu-memory/cuda-graphs", model, flags, weights=None, gpu_total_bytes=total, engine_version="0.23.1"
    )
    assert (found[0].flag, found[0].value) == ("--max-num-seqs", "161")


@pytest.mark.parametrize(
    ("family", "line", "version", "blocks"),
    [  # one group of full layers and three of states
        ("qwen3_5", "", "0.24.0", 42 + 3),
        ("qwen3_5", "", "0.26.0", 42 + 3 * 2),
        ("qwen3_5", "--no-enable-prefix-caching", "0.26.0", 42 + 3),
        ("qwen3_5", "--enable-prefix-caching", "0.24.0", 42 + 3 * 2),
        ("nemotron_h", "", "0.24.0", 16 + 3),  # a state of 2,158,592 bytes is 2,108 tokens of 1,024: blocks of 2,112
        ("nemotron_h", "", "0.27.0", 15 + 3 * 15),  # in chunks of 256: blocks of 2,304
        ("nemotron_h", "", "0.28.0", 16 + 3 * 2),
    ],
)
def test_prefix_caching_of_hybrids_is_the_default(family, line, version, blocks):
    """Since 0.26; until 0.27 Mamba-2 models then kept a state at each block, which chunks of the kernel align."""
    config = QWEN_27B if family == "qwen3_5" else NEMOTRON
    model, engine = parse_model_config(config), read_engine_version(version)
    flags = parse_serve_arguments(line.split(), engine_version=version)
    pool = make_pool(model, model.layers, flags, engine)
    assert blocks_per_request(pool, demand(model, flags, engine), 32768) == blocks


@pytest.mark.parametrize(
    ("line", "version", "in_flight"),
    [
        ("", "0.25.1", 1),
        ("", "0.26.0", 2),
        ("--no-async-scheduling", "0.26.0", 1),
        ('--speculative-config={"method":"ngram","num_speculative_tokens":3}', "0.26.0", 1),
        ("-pp 4", "0.26.0", 4),
        ("-pp 4", "0.32.0", 5),
    ],
)
def test_windows_keep_what_is_in_flight(line, version, in_flight):
    """From 0.26 on each batch that may run at once keeps its blocks beside the window (vllm #49878)."""
    model, engine = parse_model_config(GEMMA4), read_engine_version(version)
    flags = parse_serve_arguments(f"--max-num-batched-tokens 32768 {line}".split(), engine_version=version)
    pool, window = make_pool(model, model.layers, flags, engine), 1023 + 32768 * in_flight
    blocks = 262144 // 32 + 5 * (-(-window // 16) + 1)  # ten full layers of 32-token blocks, five groups of windows
    assert blocks_per_request(pool, demand(model, flags, engine), 262144) == blocks


@pytest.mark.parametrize(
    ("version", "fits"), [("0.13.0", True), ("0.14.0", False), ("0.16.0", False), ("0.17.0", True)]
)
def test_a_pipeline_was_asked_for_all_layers(version, fits):
    """71.16 GiB for 202,752 tokens on each of 8 stages, of which each needs an eighth (vllm #32105)."""
    inputs, _ = measured("203-glm47-fp8-pp8-a100.json", kv_cache_memory_bytes=int(28.57 * GIB))
    plan = plan_memory(**{**inputs, "engine_version": version, "gpu_total_bytes": 1000 * GIB})
    assert (plan.cause is None) == fits


def test_the_old_engine_does_not_look_at_free_memory():
    """V0 (and V1 up to 0.9.0) starts with a budget of 0.98; what fails is the length of a request (vllm #13061)."""
    weights = WeightBytes(total_bytes=29_540_000_000)
    line = "-tp 2 --gpu-memory-utilization 0.98"
    plans = [_plan(QWEN_14B, line, version, total_gib=23.55, weights=weights) for version in ("0.7.2", "0.10.2")]
    assert [p.cause for p in plans] == ["gpu-memory/kv-cache-below-max-model-len", "gpu-memory/free-below-budget"]
    assert plans[0].estimated_max_model_len == pytest.approx(81536, rel=0.02)


@pytest.mark.parametrize(
    ("text", "low", "expected", "is_v0"),
    [
        ("0.10", (0, 10, 0), (0, 10, 0), False),
        ("0.11.x", (0, 11, 0), (0, 11, 0), False),
        ("0.1x", (0, 10, 0), (0, 15, 0), False),
        ("0.8 (V0)", (0, 8, 0), (0, 8, 0), True),
        ("0.6.5-dev (V0)", (0, 6, 5), (0, 6, 5), True),
        ("0.29.1rc1.dev17", (0, 29, 1), (0, 29, 1), False),
        ("", (0, 33, 0), (0, 33, 0), False),
    ],
)
def test_a_version_may_be_given_loosely(text, low, expected, is_v0):
    """A family is taken as such; nothing is the newest known."""
    version = read_engine_version(text)
    assert (version.low, version.expected, version.is_v0) == (low, expected, is_v0)
