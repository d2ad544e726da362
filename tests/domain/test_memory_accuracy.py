"""The planner against real launches: the bounds of the benchmark, and what the page of rules says in figures."""

import importlib.util
from pathlib import Path

import pytest

from opslib.domain.engine_defaults import read_engine_version
from opslib.domain.kv_cache import blocks_per_request, bytes_per_token, demand, make_pool
from opslib.domain.memory import plan_memory
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
