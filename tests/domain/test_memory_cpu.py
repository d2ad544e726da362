"""An engine on the CPU: the KV cache that it is given, and what that holds."""

import pytest

from opslib.domain.memory import plan_memory
from opslib.domain.model_spec import parse_model_config
from opslib.domain.vllm_flags import parse_serve_arguments

# the tiny Llama of the real rig: vLLM 0.32 (CPU) printed 524,288 tokens and 512.0 requests of 1,024 for 1 GiB
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 2000,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("flags", "environment", "state", "tokens", "concurrency"),
    [
        (["--max-model-len", "1024"], {"VLLM_CPU_KVCACHE_SPACE": "1"}, "ok", 524288, 512.0),
        (["--max-model-len", "1024", "--kv-cache-memory-bytes", "2147483648"], {}, "ok", 1048576, 1024.0),
        (["--max-model-len", "2048", "--kv-cache-memory-bytes", "1048576"], {}, "critical", 512, 0.25),
        (["--max-model-len", "1024"], {}, "ok", None, None),
        (["--max-model-len", "1024"], {"VLLM_CPU_KVCACHE_SPACE": "much"}, "ok", None, None),
    ],
)
def test_the_given_cache_decides(flags, environment, state, tokens, concurrency):
    """Tokens and requests follow from the size; without one nothing is guessed; too small a cache is critical."""
    parsed = parse_serve_arguments(flags, engine_version="0.32", environment=environment)
    plan = plan_memory(parse_model_config(TINY), parsed, weights=None, gpu_total_bytes=None, engine_version="0.32")
    assert (plan.state, plan.kv_cache_tokens, plan.max_concurrency) == (state, tokens, concurrency)
    assert plan.terms == ()
    assert (plan.cause == "gpu-memory/kv-cache-below-max-model-len") is (state == "critical")
