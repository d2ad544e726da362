"""What must hold for every model and every set of flags."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opslib.domain.bands import Band
from opslib.domain.engine_defaults import read_engine_version
from opslib.domain.memory import plan_memory
from opslib.domain.memory_weights import BUFFERS_BYTES, WeightBytes, load_weights, stage_layers
from opslib.domain.model_spec import parse_model_config
from opslib.domain.vllm_flags import parse_serve_arguments
from opslib.errors import UnexpectedAnswer
from tests.memory_cases import read_case

GIB = 2**30
VERSIONS = ("0.7", "0.8.5", "0.10.2", "0.11", "0.15.1", "0.17", "0.19", "0.20", "0.25.1", "0.33", "0.1x", "")
KINDS = {
    "dense": {"architectures": ["LlamaForCausalLM"]},
    "sliding": {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 1024},
    "latent": {"architectures": ["DeepseekV3ForCausalLM"]},
    "hybrid": {"architectures": ["Qwen3NextForCausalLM"], "num_experts": 64, "num_experts_per_tok": 4},
    "experts": {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 32, "moe_intermediate_size": 768},
    "unknown": {"architectures": ["NovelForCausalLM"]},
}
CONFIG = read_case("031-qwen38-27b-nvfp4-gb10-mtp3.json")["config"]
ORDER = {"fits": 2, "tight": 1}


@st.composite
def models(draw):
    heads = draw(st.sampled_from([16, 32, 64]))
    config = {
        **KINDS[draw(st.sampled_from(sorted(KINDS)))],
        "num_hidden_layers": draw(st.sampled_from([16, 28, 32, 62])),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([2, 4, 8])),
        "head_dim": 128,
        "hidden_size": heads * 128,
        "intermediate_size": draw(st.sampled_from([8192, 14336])),
        "vocab_size": draw(st.sampled_from([32000, 128256, 200064])),
        "max_position_embeddings": 131072,
    }
    return parse_model_config(config)


def plan(model, line, version, gib=80.0, weights=None):
    total = int(gib * GIB)
    flags = parse_serve_arguments(line.split(), engine_version=version, gpu_total_bytes=total)
    return plan_memory(model, flags, weights=weights, gpu_total_bytes=total, engine_version=version)


@settings(max_examples=60, deadline=None)
@given(models(), st.sampled_from(VERSIONS), st.integers(0, 9), st.sampled_from([0.6, 0.9, 0.95]))
def test_more_sequences_never_leave_more_cache(model, version, power, share):
    """Neither at the expected figures nor at either end of the band; nor do they ever turn a no into a yes."""
    line = f"--gpu-memory-utilization {share} --max-model-len 8192 --max-num-seqs"
    fewer, more = plan(model, f"{line} {2**power}", version), plan(model, f"{line} {2 ** (power + 1)}", version)
    for name in ("low_bytes", "expected_bytes", "high_bytes"):
        assert getattr(fewer.term("kv_cache"), name) >= getattr(more.term("kv_cache"), name) - 2
    assert ORDER.get(fewer.verdict, 0) >= ORDER.get(more.verdict, 0)


@settings(max_examples=60, deadline=None)
@given(models(), st.sampled_from(VERSIONS), st.sampled_from([1, 2, 4]), st.sampled_from([24.0, 48.0, 80.0]))
def test_more_gpus_never_fit_less(model, version, size, gib):
    """Twice the tensor-parallel ranks hold at least as many requests, where the weights are worth dividing."""
    line = "--gpu-memory-utilization 0.85 --max-model-len 8192 --max-num-seqs 64 --tensor-parallel-size"
    one, two = plan(model, f"{line} {size}", version, gib), plan(model, f"{line} {2 * size}", version, gib)
    if one.term("weights").expected_bytes > 3 * GIB:
        assert two.term("kv_cache").expected_bytes >= one.term("kv_cache").expected_bytes - GIB // 2
        assert ORDER.get(two.verdict, 0) >= min(1, ORDER.get(one.verdict, 0))


@settings(max_examples=60, deadline=None)
@given(models(), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]), st.integers(10, 500))
def test_bytes_are_conserved_over_ranks(model, size, stages, gib):
    """What the ranks hold is the checkpoint, its copied parts once more per further rank, and a few buffers."""
    flags = parse_serve_arguments(["-tp", str(size), "-pp", str(stages)])
    weights = WeightBytes(total_bytes=gib * GIB)
    if model.is_tied or model.is_mla or model.n_kv_heads < size:
        return
    loaded = load_weights(model, flags, weights, read_engine_version("0.20"), "")
    held = sum(size * (rank.n_bytes - BUFFERS_BYTES) - (size - 1) * rank.replicated_bytes for rank in loaded.ranks)
    assert held == pytest.approx(weights.total_bytes, rel=0.001)


@settings(max_examples=40, deadline=None)
@given(models(), st.sampled_from(VERSIONS), st.sampled_from([0.5, 0.8, 0.9, 0.97]))
def test_every_plan_adds_up(model, version, share):
    """Bands are ordered, and the budget is what its parts come to."""
    found = plan(model, f"--gpu-memory-utilization {share} --max-model-len 4096 --enforce-eager", version)
    for term in found.terms:
        assert term.low_bytes <= term.expected_bytes <= term.high_bytes, term
    parts = sum(found.term(name).expected_bytes for name in ("weights", "activation_peak", "non_torch", "kv_cache"))
    assert parts == pytest.approx(found.term("budget").expected_bytes, abs=10)


@given(st.integers(1, 200), st.integers(1, 16))
def test_stages_share_out_all_layers(n_layers, n_stages):
    """Every layer once, in order; no stage more than one layer longer than another."""
    if n_stages > n_layers:
        return
    stages = stage_layers(n_layers, n_stages)
    assert [index for layers in stages for index in layers] == list(range(n_layers))
    assert max(map(len, stages)) - min(map(len, stages)) <= 1


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(CONFIG)),
    st.sampled_from([0, -1, None, "x", [], {}, True, 1e9, 10**12, [1, 2], {"a": 1}]),
    st.sampled_from(VERSIONS),
)
def test_nonsense_in_a_config_is_refused_by_name_or_planned(key, value, version):
    """Never a traceback: one wrong value is either harmless or named."""
    try:
        model = parse_model_config({**CONFIG, key: value})
    except UnexpectedAnswer as error:
        assert error.message.startswith("config.json")
        return
    for line in ("-tp 2", "-tp 0", "-pp 0", "-tp 3 -pp 99", "--max-model-len 99999999"):
        assert plan(model, line, version).summary


def test_independent_bands_combine_as_root_of_squares():
    """3 and 4 make 5."""
    assert Band(7, 10, 13) + Band(16, 20, 24) == Band(25, 30, 35)
    assert Band(7, 10, 13).minus(Band(1, 5, 9)) == Band(0, 5, 10)
