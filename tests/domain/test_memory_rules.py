"""Rules of the engine that few launches show: each in one figure."""

import pytest

from opslib.domain.engine_defaults import read_engine_version
from opslib.domain.kv_pages import token_bytes
from opslib.domain.memory import WeightBytes, plan_memory
from opslib.domain.memory_weights import serves_media
from opslib.domain.model_spec import parse_model_config
from opslib.domain.vllm_flags import parse_serve_arguments
from tests.memory_cases import GIB, read_case

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
E2B = read_case("308-gemma4-e2b-l4-021.json")["config"]
V2 = {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_key_value_heads": 128}


def plan(config, version, line="", total_gib=80.0, **more):
    """A plan of a config and flags as typed."""
    flags = parse_serve_arguments(line.split(), engine_version=version, gpu_total_bytes=int(total_gib * GIB), **more)
    model = parse_model_config(config)
    return plan_memory(model, flags, weights=None, gpu_total_bytes=int(total_gib * GIB), engine_version=version)


def test_layers_that_read_an_earlier_cache_keep_none_and_have_no_keys_of_their_own():
    """num_kv_shared_layers (Gemma 3n, Gemma 4 E2B): 15 of 35 layers are cached."""
    model = parse_model_config(E2B)
    assert sum(not layer.is_cache_shared for layer in model.layers) == 15
    assert plan(E2B, "0.21.0", total_gib=22.0).term("weights").expected_bytes / GIB == pytest.approx(8.88, rel=0.02)


def test_encoders_that_no_request_may_use_are_not_loaded():
    """--language-model-only, and every limit at 0, leave the vision tower out from 0.10.1 on."""
    config = {**LLAMA, "vision_config": {"hidden_size": 1152, "depth": 27, "intermediate_size": 4304}}
    flags = parse_serve_arguments(["--limit-mm-per-prompt", '{"image": 0, "video": 0}'])
    assert not serves_media(parse_model_config(config), flags)
    sizes = [
        plan(config, version, "--language-model-only").term("weights").expected_bytes for version in ("0.10.0", "0.19")
    ]
    assert sizes[0] - sizes[1] > 0.5 * GIB


def test_a_batch_is_raised_for_media_only_where_attention_to_them_is_bidirectional():
    """Gemma 4's small models and Gemma 3 keep the default of 2,048 tokens."""
    whole = {**E2B, "text_config": {**E2B["text_config"], "use_bidirectional_attention": "vision"}}
    tokens = [plan(each, "0.24", total_gib=22.0).flags["--max-num-batched-tokens"].value for each in (E2B, whole)]
    assert tokens == [2048, 2496]


@pytest.mark.parametrize(("version", "environment"), [("0.6.4", {}), ("0.7.3", {}), ("0.7.1", {"VLLM_USE_V1": "1"})])
def test_old_engines_run_the_sampler_once(version, environment):
    """V0 and the first V1 don't warm the sampler up a second time: a full budget fails for other reasons."""
    found = plan(
        LLAMA, version, "--gpu-memory-utilization 0.98 --enforce-eager --max-model-len 4096", environment=environment
    )
    assert found.cause != "gpu-memory/sampler-warmup"


def test_v1_can_be_asked_for_before_it_was_the_default():
    """VLLM_USE_V1=1 counts from 0.6.4 on, VLLM_USE_V1=0 up to 0.10."""
    assert not read_engine_version("0.7.1", "1").is_v0
    assert read_engine_version("0.7.1").is_v0
    assert read_engine_version("0.10.2", "0").is_v0


@pytest.mark.parametrize(
    ("preset", "packed"),
    [("turboquant_k8v4", 196), ("turboquant_4bit_nc", 134), ("turboquant_k3v4_nc", 118), ("turboquant_3bit_nc", 102)],
)
def test_packed_caches_leave_the_outer_layers_as_they_are(preset, packed):
    """Two layers at each end keep the model's dtype (vLLM `TurboQuantConfig`)."""
    model, version = parse_model_config(LLAMA), read_engine_version("0.32")
    flags = parse_serve_arguments(["--kv-cache-dtype", preset])
    sizes = [token_bytes(layer, model, flags, version) for layer in model.layers]
    assert sizes[2:-2] == [8 * packed] * 28
    assert sizes[:2] == sizes[-2:] == [4096, 4096]


def test_latents_are_kept_only_since_the_engine_knows_them():
    """Before 0.7.1, and with VLLM_MLA_DISABLE=1, DeepSeek's heads are cached, padded to 256 values."""
    model, flags = parse_model_config(V2), parse_serve_arguments(["-tp", "8"])
    switched_off = parse_serve_arguments(["-tp", "8"], environment={"VLLM_MLA_DISABLE": "1"})
    layer = model.layers[0]
    assert token_bytes(layer, model, flags, read_engine_version("0.6.3")) == 2 * 16 * 256 * 2
    assert token_bytes(layer, model, flags, read_engine_version("0.8.5")) == 576 * 2
    assert token_bytes(layer, model, switched_off, read_engine_version("0.8.5")) == 2 * 16 * 256 * 2


def test_a_file_is_taken_to_hold_a_tied_copy_only_where_that_fits_clearly_better():
    """Qwen3-0.6B's file has the copy; a file that is 1.5 % larger than counted has not."""
    tied = {
        **LLAMA,
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "intermediate_size": 8192,
        "tie_word_embeddings": True,
    }
    counted = plan(tied, "0.19").weights_by_stage_bytes[0]
    model, flags = parse_model_config(tied), parse_serve_arguments([], engine_version="0.19", gpu_total_bytes=80 * GIB)
    copy = 128256 * 2048 * 2
    loaded = [
        plan_memory(
            model, flags, weights=WeightBytes(total_bytes=size), gpu_total_bytes=80 * GIB, engine_version="0.19"
        ).weights_by_stage_bytes[0]
        for size in (counted + copy, int(counted + 0.45 * copy))
    ]
    assert loaded[0] == pytest.approx(counted, rel=0.02)
    assert loaded[1] == pytest.approx(counted + 0.45 * copy, rel=0.02)


@pytest.mark.parametrize("version", ["0.9.2", "0.11.0", "0.15.1", "0.19.0", "0.28.0", "0.32.0"])
@pytest.mark.parametrize(("gpu", "total_gib"), [("NVIDIA L4", 22.03), ("NVIDIA GeForce RTX 4090", 23.52)])
def test_an_everyday_launch_is_not_called_tight(version, gpu, total_gib):
    """A 14B on two cards of 24 GB at the default share starts with every version."""
    config = read_case("301-qwen3-14b-l40s-028.json")["config"]
    total = int(total_gib * GIB)
    line = "--tensor-parallel-size 2 --max-model-len 16384"
    flags = parse_serve_arguments(line.split(), engine_version=version, gpu_total_bytes=total, gpu_name=gpu)
    model = parse_model_config(config)
    found = plan_memory(model, flags, weights=None, gpu_total_bytes=total, engine_version=version, gpu_name=gpu)
    assert found.verdict == "fits"


def test_blocks_that_are_fixed_bind_requests_in_newer_engines():
    """--num-gpu-blocks-override 100 holds 1,600 tokens; one block is never given out."""
    line = "--num-gpu-blocks-override 100 --max-model-len {}"
    verdicts = [
        plan(LLAMA, version, line.format(length)).verdict for version, length in (("0.32.0", 1584), ("0.32.0", 1600))
    ]
    assert verdicts == ["fits", "gpu-memory/kv-cache-below-max-model-len"]
    assert plan(LLAMA, "0.15.1", line.format(8192)).verdict == "fits"
