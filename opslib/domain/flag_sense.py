"""Values of `vllm serve` that make no sense, or none together: what vLLM's own configuration classes refuse.

Sources: vllm/config/{parallel,cache,scheduler,model}.py validators.
"""

from collections.abc import Iterator, Mapping

from opslib.domain.model_spec import ModelSpec
from opslib.domain.quantization import method_name
from opslib.domain.serve_flags import ServeFlags

_POSITIVE = (
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--decode-context-parallel-size",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--block-size",
    "--kv-cache-memory-bytes",
    "--num-gpu-blocks-override",
)
_LOADERS = {"auto-round", "auto_round", "inc", "marlin", "moe_wna16", "w4a16", "w8a8", "w8a16", "nvfp4", "mxfp4"}
_CACHE_WORDS = ("auto", "bf", "fl", "half", "fp8", "int8", "nvfp4", "turboquant", "fp4", "int4")


def senseless(model: ModelSpec, flags: ServeFlags, *, n_gpus: int | None = None) -> Iterator[str]:
    """Every contradiction in one sentence; `n_gpus` None: as many GPUs as the ranks need."""
    for name in _POSITIVE:
        value = flags.value(name)
        if isinstance(value, int) and not isinstance(value, bool) and value <= 0:
            yield f"{name} {value}: a positive number is needed"
    length = flags.value("--max-model-len")
    if isinstance(length, int) and length <= 0 and length != -1:
        yield f"--max-model-len {length}: a positive number is needed"
    share = flags.value("--gpu-memory-utilization")
    if isinstance(share, int | float) and not 0 < share <= 1:
        yield f"--gpu-memory-utilization {share:g}: a share between 0 and 1 is needed"
    yield from _speculation(flags)
    overrides = flags.value("--hf-overrides")
    if overrides is not None and not isinstance(overrides, Mapping):
        yield f"--hf-overrides {overrides} is no JSON object"
    offload = flags.value("--cpu-offload-gb")
    if isinstance(offload, int | float) and not 0 <= offload < float("inf"):
        yield f"--cpu-offload-gb {offload:g}: GiB of host memory, 0 or more, are needed"
    yield from _conflicts(model, flags)
    yield from _quantization(model, flags)
    if n_gpus is not None and flags.n_gpus > n_gpus:
        yield f"{flags.n_gpus} ranks need as many GPUs, {n_gpus} are given"


def _speculation(flags: ServeFlags) -> Iterator[str]:
    """The engine wants a JSON object with at least one token guessed; a sentence about it is read as well."""
    given = flags.value("--speculative-config")
    tokens = given.get("num_speculative_tokens", 1) if isinstance(given, Mapping) else 1
    is_text = isinstance(given, str) and not given.lstrip().startswith(("{", "["))
    if given is not None and not isinstance(given, Mapping) and not is_text:
        yield f"--speculative-config {given} is no JSON object"
    elif not isinstance(tokens, int) or isinstance(tokens, bool) or tokens <= 0:
        yield f"--speculative-config: num_speculative_tokens is {tokens!r}, a positive number is needed"


def _conflicts(model: ModelSpec, flags: ServeFlags) -> Iterator[str]:
    sequences, tokens = flags.max_num_seqs, flags.value("--max-num-batched-tokens")
    is_given = _is_given(flags, "--max-num-batched-tokens")
    if is_given and _is_given(flags, "--max-num-seqs") and isinstance(tokens, int) and 0 < tokens < sequences:
        yield f"--max-num-batched-tokens {tokens} is less than --max-num-seqs {sequences}"
    yield from _unchunked(model, flags)
    size, context = flags.tensor_parallel_size, flags.decode_context_parallel_size
    if size > 0 and context > 0 and size % context:
        yield f"--tensor-parallel-size {size} can't be divided by --decode-context-parallel-size {context}"
    dtype = str(flags.value("--kv-cache-dtype") or "auto").lower()
    if not dtype.startswith(_CACHE_WORDS):
        yield f"--kv-cache-dtype {dtype} is not known to vLLM"


def _unchunked(model: ModelSpec, flags: ServeFlags) -> Iterator[str]:
    """Without chunked prefill a whole prompt must fit into one step (vllm/config/scheduler.py)."""
    length, whose = flags.max_model_len, "--max-model-len"
    if length is None and flags.value("--max-model-len") is None and _is_given(flags, "--enable-chunked-prefill"):
        length, whose = model.max_position_embeddings, "the model's own length,"
    tokens, is_whole = flags.value("--max-num-batched-tokens"), flags.value("--enable-chunked-prefill") is False
    if is_whole and _is_given(flags, "--max-num-batched-tokens") and isinstance(tokens, int) and tokens < (length or 0):
        yield f"without chunked prefill --max-num-batched-tokens {tokens} must be at least {whose} {length}"


def _is_given(flags: ServeFlags, name: str) -> bool:
    flag = flags.flags.get(name)
    return flag is not None and not flag.origin.startswith("default")


def _quantization(model: ModelSpec, flags: ServeFlags) -> Iterator[str]:
    asked = flags.value("--quantization")
    if not asked:
        return
    method, own = method_name(str(asked)), model.quantization.method
    if method is None:
        yield f"--quantization {asked} is not known to vLLM"
    elif own and _kin(method) != _kin(own) and not {method, own} & _LOADERS:
        yield f"--quantization {asked} doesn't match the checkpoint's own method, {own}"


def _kin(method: str) -> str:
    """Methods that load each other's checkpoints share a stem: gptq and gptq_marlin, modelopt and modelopt_fp4."""
    return method.replace("-", "_").partition("_")[0]
