"""The stand-in engine's sums against results worked out by hand."""

import json
from importlib import resources

import pytest

from opslib.rehearsal.scenarios import load_scenario
from opslib.rehearsal.standin.engine_flags import human_int, table
from opslib.rehearsal.standin.engine_memory import kv_bytes_per_token, kv_tokens, memory_sums, with_defaults

KNOWN = resources.files("opslib.domain.data") / "vllm_flags.json"  # of all versions
FULL, HALF = 200064, 100032
MINIMAX = {
    "num_hidden_layers": 62,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 196608,
}


@pytest.mark.parametrize(
    ("vocab", "total", "utilization", "sequences", "kv_cache", "free", "outcome"),
    [
        # u = 1024 x 200064 x 4 B = 0.7632 GiB; sampler = 9.7 u = 7.4029; requested = 94.97 x 0.95 = 90.2215
        (FULL, 94.97, 0.95, 1024, 25.32, 6.45, "sampler-warmup"),  # needs 7.40
        (FULL, 94.97, 0.95, 512, 28.22, 3.55, "sampler-warmup"),  # needs 3.70; the forward peak 4.5 rules
        (FULL, 94.97, 0.95, 256, 28.22, 3.55, "fits"),  # needs 1.85
        (FULL, 94.97, 0.92, 1024, 22.47, 9.30, "fits"),
        (FULL, 94.97, 0.92, 512, 25.37, 6.40, "fits"),
        (FULL, 94.97, 0.90, 1024, 20.57, 11.20, "fits"),
        (FULL, 94.97, 0.98, 1024, 28.17, 3.60, "free-below-budget"),  # 93.07 wanted, 92.77 free after the context
        (HALF, 94.97, 0.95, 1024, 28.22, 3.55, "sampler-warmup"),  # needs 3.70
        (HALF, 94.97, 0.95, 512, 28.22, 3.55, "fits"),
        (HALF, 94.97, 0.92, 1024, 25.37, 6.40, "fits"),
        (FULL, 79.18, 0.95, 1024, 10.32, 5.66, "sampler-warmup"),
        (FULL, 79.18, 0.95, 512, 13.22, 2.76, "sampler-warmup"),
        (FULL, 79.18, 0.95, 256, 13.22, 2.76, "fits"),
        (FULL, 79.18, 0.92, 1024, 7.94, 8.04, "fits"),  # one request needs 7.75
        (FULL, 79.18, 0.90, 1024, 6.36, 9.62, "kv-cache-below-max-model-len"),
        (FULL, 79.18, 0.90, 512, 9.26, 6.72, "fits"),
        (HALF, 79.18, 0.95, 1024, 13.22, 2.76, "sampler-warmup"),
        (HALF, 79.18, 0.90, 1024, 9.26, 6.72, "fits"),
    ],
)
def test_sums(vocab, total, utilization, sequences, kv_cache, free, outcome):
    """KV cache, what is left at the warm-up, and the first check that fails, for variants of the story."""
    flags = {
        "gpu_memory_utilization": utilization,
        "max_num_seqs": sequences,
        "tensor_parallel_size": 4,
        "max_model_len": 131072,
    }
    sums = memory_sums(load_scenario("sampler-oom").figures, flags, vocab, total, kv_bytes_per_token(MINIMAX, 4))
    assert sums.kv_cache == pytest.approx(kv_cache, abs=0.006)
    assert sums.free_at_warmup == pytest.approx(free, abs=0.006)
    assert sums.outcome == outcome


def test_healthy_scenario_fits_with_the_same_flags():
    """The lean sampler's 4 u = 3.05 GiB fits into the 3.55 GiB that are left."""
    flags = with_defaults({"gpu_memory_utilization": 0.95, "tensor_parallel_size": 4}, MINIMAX, 94.97)
    sums = memory_sums(load_scenario("healthy").figures, flags, FULL, 94.97)
    assert sums.sampler == pytest.approx(3.053, abs=0.001)
    assert sums.outcome == "fits"


def test_eager_mode_takes_no_graphs():
    """Without graphs 2 GiB more are left."""
    flags = {"gpu_memory_utilization": 0.95, "max_num_seqs": 1024, "tensor_parallel_size": 4, "enforce_eager": True}
    sums = memory_sums(load_scenario("sampler-oom").figures, flags, FULL, 94.97)
    assert sums.graphs == 0
    assert sums.free_at_warmup == pytest.approx(8.45, abs=0.006)


def test_kv_cache_of_one_request():
    """62 layers x 2 x 2 heads per rank x 128 x 2 B = 63,488 B per token: 7.75 GiB for 131,072 tokens."""
    assert kv_bytes_per_token(MINIMAX, 4) == 63488
    assert kv_bytes_per_token(MINIMAX, 16) == 31744  # heads are replicated, never halved
    assert kv_tokens(7.75, 63488) == 131072


@pytest.mark.parametrize(("total", "sequences"), [(94.97, 1024), (79.18, 1024), (47.4, 256)])
def test_default_sequences_follow_the_gpu(total, sequences):
    """1024 from 70 GiB on, else 256; utilization 0.90; the model's own length."""
    flags = with_defaults({}, MINIMAX, total)
    assert (flags["max_num_seqs"], flags["gpu_memory_utilization"], flags["max_model_len"]) == (sequences, 0.9, 196608)


def test_flag_table_is_sound():
    """No flag twice, none that no vLLM has, and sizes with a suffix are read as vLLM reads them."""
    names = [name for name, _, _ in table()]
    assert set(names) <= {flag.removeprefix("--") for flag in json.loads(KNOWN.read_text())}
    assert len(names) == len(set(names))
    assert {"max-num-seqs", "tensor-parallel-size", "enforce-eager", "served-model-name"} <= set(names)
    assert (human_int("8k"), human_int("8K"), human_int("131072")) == (8000, 8192, 131072)
