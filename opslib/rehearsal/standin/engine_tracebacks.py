"""The tracebacks of vLLM 0.15, layer by layer, as tables of frames (worker, EngineCore, API server)."""

from __future__ import annotations

from typing import List, Sequence, Tuple

Frame = Tuple[str, int, str, str]  # file, line, function, code

SITE = "/opt/vllm/lib/python3.12/site-packages/"
LIB = "/usr/lib/python3.12/"
HEAD = "Traceback (most recent call last):"
CAUSED = ["", "The above exception was the direct cause of the following exception:", ""]

_EXECUTOR = SITE + "vllm/v1/executor/multiproc_executor.py"
_CORE = SITE + "vllm/v1/engine/core.py"
_WORKER = SITE + "vllm/v1/worker/gpu_worker.py"
_RUNNER = SITE + "vllm/v1/worker/gpu_model_runner.py"
_LOADER = SITE + "vllm/model_executor/model_loader/"
_API = SITE + "vllm/entrypoints/openai/api_server.py"
_TORCH = SITE + "torch/utils/_contextlib.py"

WORKER_BUSY: List[Frame] = [
    (_EXECUTOR, 847, "worker_busy_loop", "output = func(*args, **kwargs)"),
]
WORKER_WARMUP: List[Frame] = [
    *WORKER_BUSY,
    (
        _WORKER,
        518,
        "compile_or_warm_up_model",
        "self.model_runner._dummy_sampler_run(hidden_states=last_hidden_states)",
    ),
    (_TORCH, 120, "decorate_context", "return func(*args, **kwargs)"),
    (_RUNNER, 4713, "_dummy_sampler_run", "raise RuntimeError("),
]
SAMPLER: List[Frame] = [
    (_RUNNER, 4707, "_dummy_sampler_run", "sampler_output = self.sampler("),
    (SITE + "torch/nn/modules/module.py", 1775, "_wrapped_call_impl", "return self._call_impl(*args, **kwargs)"),
    (SITE + "vllm/v1/sample/sampler.py", 96, "forward", "sampled, processed_logprobs = self.sample("),
    (SITE + "vllm/v1/sample/sampler.py", 195, "sample", "random_sampled, processed_logprobs = self.topk_topp_sampler("),
    (
        SITE + "vllm/v1/sample/ops/topk_topp_sampler.py",
        114,
        "forward_native",
        "logits = self.apply_top_k_top_p(logits, k, p)",
    ),
    (
        SITE + "vllm/v1/sample/ops/topk_topp_sampler.py",
        257,
        "apply_top_k_top_p",
        "logits_sort, logits_idx = logits.sort(dim=-1, descending=False)",
    ),
]
WORKER_GRAPHS: List[Frame] = [
    *WORKER_BUSY,
    (_WORKER, 487, "compile_or_warm_up_model", "cuda_graph_memory_bytes = self.model_runner.capture_model()"),
    (_RUNNER, 5011, "capture_model", "self._capture_cudagraphs("),
    (_RUNNER, 5120, "_capture_cudagraphs", "self._dummy_run("),
]
WORKER_PROFILE: List[Frame] = [
    *WORKER_BUSY,
    (_WORKER, 315, "determine_available_memory", "self.model_runner.profile_run()"),
    (_RUNNER, 4852, "profile_run", "hidden_states, last_hidden_states = self._dummy_run("),
]
WORKER_INIT: List[Frame] = [
    (_EXECUTOR, 743, "worker_main", "worker = WorkerProc(*args, **kwargs)"),
]
WORKER_DEVICE: List[Frame] = [
    *WORKER_INIT,
    (_EXECUTOR, 569, "__init__", "self.worker.init_device()"),
    (SITE + "vllm/v1/worker/worker_base.py", 326, "init_device", "self.worker.init_device()  # type: ignore"),
    (
        _WORKER,
        247,
        "init_device",
        "self.requested_memory = request_memory(init_snapshot, self.cache_config)",
    ),
    (SITE + "vllm/v1/worker/utils.py", 259, "request_memory", "raise ValueError("),
]
WORKER_LOAD: List[Frame] = [
    *WORKER_INIT,
    (_EXECUTOR, 575, "__init__", "self.worker.load_model()"),
    (_WORKER, 275, "load_model", "self.model_runner.load_model(eep_scale_up=eep_scale_up)"),
    (_RUNNER, 4052, "load_model", "self.model = model_loader.load_model("),
]
WORKER_CREATE: List[Frame] = [
    *WORKER_LOAD,
    (_LOADER + "base_loader.py", 50, "load_model", "model = initialize_model("),
    (_LOADER + "utils.py", 48, "initialize_model", "return model_class(vllm_config=vllm_config, prefix=prefix)"),
    (
        SITE + "vllm/model_executor/layers/quantization/fp8.py",
        711,
        "create_weights",
        "w13_weight = torch.nn.Parameter(",
    ),
]
WORKER_READ: List[Frame] = [
    *WORKER_LOAD,
    (_LOADER + "base_loader.py", 56, "load_model", "self.load_weights(model, model_config)"),
    (
        _LOADER + "default_loader.py",
        288,
        "load_weights",
        "loaded_weights = model.load_weights(self.get_all_weights(model_config, model))",
    ),
    (SITE + "vllm/model_executor/models/minimax_m2.py", 551, "load_weights", "return loader.load_weights(weights)"),
    (
        SITE + "vllm/model_executor/models/utils.py",
        335,
        "load_weights",
        'autoloaded_weights = set(self._load_module("", self.module, weights))',
    ),
    (_LOADER + "default_loader.py", 262, "get_all_weights", "yield from self._get_weights_iterator(primary_weights)"),
]
WORKER_MISSING: List[Frame] = [
    *WORKER_READ,
    (
        _LOADER + "default_loader.py",
        184,
        "_get_weights_iterator",
        "hf_folder, hf_weights_files, use_safetensors = self._prepare_weights(",
    ),
    (
        _LOADER + "default_loader.py",
        163,
        "_prepare_weights",
        "hf_weights_files = filter_duplicate_safetensors_files(",
    ),
    (_LOADER + "weight_utils.py", 601, "filter_duplicate_safetensors_files", "raise FileNotFoundError("),
]
WORKER_TRUNCATED: List[Frame] = [
    *WORKER_READ,
    (
        _LOADER + "weight_utils.py",
        712,
        "safetensors_weights_iterator",
        'with safe_open(st_file, framework="pt") as f:',
    ),
]
CORE_RUN: List[Frame] = [
    (_CORE, 937, "run_engine_core", "engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)"),
    (_CORE, 691, "__init__", "super().__init__("),
]
CORE_EXECUTOR: List[Frame] = [
    *CORE_RUN,
    (_CORE, 105, "__init__", "self.model_executor = executor_class(vllm_config)"),
    (_EXECUTOR, 97, "__init__", "super().__init__(vllm_config)"),
    (SITE + "vllm/v1/executor/abstract.py", 101, "__init__", "self._init_executor()"),
    (_EXECUTOR, 174, "_init_executor", "self.workers = WorkerProc.wait_for_ready(unready_workers)"),
    (_EXECUTOR, 660, "wait_for_ready", "raise e from None"),
]
CORE_KV: List[Frame] = [
    *CORE_RUN,
    (
        _CORE,
        114,
        "__init__",
        "num_gpu_blocks, num_cpu_blocks, kv_cache_config = self._initialize_kv_caches(",
    ),
]
CORE_RPC: List[Frame] = [
    (
        _CORE,
        258,
        "_initialize_kv_caches",
        "self.model_executor.initialize_from_config(kv_cache_configs)",
    ),
    (
        SITE + "vllm/v1/executor/abstract.py",
        116,
        "initialize_from_config",
        'self.collective_rpc("compile_or_warm_up_model")',
    ),
    (_EXECUTOR, 373, "collective_rpc", "return future.result() if non_block else future.result()"),
    (_EXECUTOR, 81, "result", "return super().result()"),
    (_EXECUTOR, 357, "get_response", "raise RuntimeError("),
]
CORE_KV_CHECK: List[Frame] = [
    (_CORE, 246, "_initialize_kv_caches", "kv_cache_configs = get_kv_cache_configs("),
    (
        SITE + "vllm/v1/core/kv_cache_utils.py",
        1516,
        "get_kv_cache_configs",
        "_check_enough_kv_cache_memory(",
    ),
    (
        SITE + "vllm/v1/core/kv_cache_utils.py",
        634,
        "_check_enough_kv_cache_memory",
        "raise ValueError(",
    ),
]
CORE_FATAL: List[Frame] = [
    (_CORE, 946, "run_engine_core", "engine_core.run_busy_loop()"),
    (_CORE, 973, "run_busy_loop", "self._process_engine_step()"),
    (_CORE, 1006, "_process_engine_step", "outputs, model_executed = self.step_fn()"),
    (_EXECUTOR, 366, "collective_rpc", 'raise RuntimeError("Executor failed.")'),
]
CORE_PROCESS: List[Frame] = [
    (LIB + "multiprocessing/process.py", 314, "_bootstrap", "self.run()"),
    (LIB + "multiprocessing/process.py", 108, "run", "self._target(*self._args, **self._kwargs)"),
    (_CORE, 950, "run_engine_core", "raise e"),
]
API_MAIN: List[Frame] = [
    ("/opt/vllm/bin/vllm", 8, "<module>", "sys.exit(main())"),
    (SITE + "vllm/entrypoints/cli/main.py", 73, "main", "args.dispatch_function(args)"),
    (SITE + "vllm/entrypoints/cli/serve.py", 111, "cmd", "uvloop.run(run_server(args))"),
    (SITE + "uvloop/__init__.py", 96, "run", "return __asyncio.run("),
    (LIB + "asyncio/runners.py", 195, "run", "return runner.run(main)"),
    (LIB + "asyncio/runners.py", 118, "run", "return self._loop.run_until_complete(task)"),
    ("uvloop/loop.pyx", 1518, "uvloop.loop.Loop.run_until_complete", ""),
    (SITE + "uvloop/__init__.py", 48, "wrapper", "return await main"),
]
IMPORT: List[Frame] = [
    ("/opt/vllm/bin/vllm", 3, "<module>", "from vllm.entrypoints.cli.main import main"),
    (SITE + "vllm/__init__.py", 14, "<module>", "import vllm.env_override  # noqa: F401"),
    (SITE + "vllm/env_override.py", 4, "<module>", "import torch"),
    (SITE + "torch/__init__.py", 427, "<module>", "from torch._C import *  # noqa: F403"),
]
API_BIND: List[Frame] = [
    *API_MAIN,
    (_API, 918, "run_server", "listen_address, sock = setup_server(args)"),
    (_API, 874, "setup_server", "sock = create_server_socket(sock_addr)"),
    (_API, 832, "create_server_socket", "sock.bind(addr)"),
]
API_CONFIG: List[Frame] = [
    *API_MAIN,
    (_API, 919, "run_server", "await run_server_worker(listen_address, sock, args, **uvicorn_kwargs)"),
    (_API, 938, "run_server_worker", "async with build_async_engine_client("),
    (LIB + "contextlib.py", 210, "__aenter__", "return await anext(self.gen)"),
    (_API, 147, "build_async_engine_client", "async with build_async_engine_client_from_engine_args("),
    (LIB + "contextlib.py", 210, "__aenter__", "return await anext(self.gen)"),
]
API_MODEL: List[Frame] = [
    *API_CONFIG,
    (
        _API,
        173,
        "build_async_engine_client_from_engine_args",
        "vllm_config = engine_args.create_engine_config(usage_context=usage_context)",
    ),
    (SITE + "vllm/engine/arg_utils.py", 1362, "create_engine_config", "model_config = self.create_model_config()"),
    (SITE + "vllm/engine/arg_utils.py", 1216, "create_model_config", "return ModelConfig("),
    (
        SITE + "pydantic/_internal/_dataclasses.py",
        121,
        "__init__",
        "s.__pydantic_validator__.validate_python(ArgsKwargs(args, kwargs), self_instance=s)",
    ),
]
API_ENGINE: List[Frame] = [
    *API_CONFIG,
    (_API, 188, "build_async_engine_client_from_engine_args", "async_llm = AsyncLLM.from_vllm_config("),
    (SITE + "vllm/v1/engine/async_llm.py", 228, "from_vllm_config", "return cls("),
    (
        SITE + "vllm/v1/engine/async_llm.py",
        155,
        "__init__",
        "self.engine_core = EngineCoreClient.make_async_mp_client(",
    ),
    (SITE + "vllm/v1/engine/core_client.py", 122, "make_async_mp_client", "return AsyncMPClient(*client_args)"),
    (SITE + "vllm/v1/engine/core_client.py", 819, "__init__", "super().__init__("),
    (SITE + "vllm/v1/engine/core_client.py", 479, "__init__", "with launch_core_engines("),
    (LIB + "contextlib.py", 144, "__exit__", "next(self.gen)"),
    (SITE + "vllm/v1/engine/utils.py", 921, "launch_core_engines", "wait_for_engine_startup("),
    (SITE + "vllm/v1/engine/utils.py", 980, "wait_for_engine_startup", "raise RuntimeError("),
]
API_OUTPUT: List[Frame] = [
    (SITE + "vllm/v1/engine/async_llm.py", 652, "output_handler", "outputs = await engine_core.get_output_async()"),
    (
        SITE + "vllm/v1/engine/core_client.py",
        861,
        "get_output_async",
        "raise self._format_exception(outputs) from None",
    ),
]


def traceback_lines(frames: Sequence[Frame], exception: str) -> List[str]:
    """What Python prints for these frames and this exception ("Type: message")."""
    lines = [HEAD]
    for file, number, function, code in frames:
        lines.append('  File "%s", line %d, in %s' % (file, number, function))
        if code:
            lines.append("    " + code)
            marked = _marked_from(code)
            if marked:
                lines.append("    " + " " * marked + "^" * (len(code) - marked))
    return lines + exception.split("\n")


def _marked_from(code: str) -> int:
    """The column from which Python 3.12 puts carets; 0 where it would mark the whole line and so marks nothing."""
    for prefix in ("return ", "yield from "):
        if code.startswith(prefix):
            return len(prefix)
    left, equals, _ = code.partition(" = ")
    return len(left) + 3 if equals and "(" not in left else 0
