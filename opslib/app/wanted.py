"""What a launch with a runbook's parameters wants: the engine's flags, and what its host must be fit for."""

from typing import Any

from opslib.domain.lock import LockHolder
from opslib.domain.preflight_reading import Wanted

_MOVED = "configuration/port-in-use"  # the cause whose remedy is another port


def flags_for(parameters: Any) -> list[str]:
    """The `vllm serve` flags that parameters ask for, in the order of the unit file."""
    flags = {
        "--port": getattr(parameters, "port", None),
        "--served-model-name": getattr(parameters, "client_model_name", None),
        "--tensor-parallel-size": parameters.tensor_parallel_size,
        "--gpu-memory-utilization": parameters.gpu_memory_utilization if parameters.gpus else None,
        "--max-model-len": parameters.max_model_len,
        "--max-num-seqs": parameters.max_num_seqs,
    }
    words = [word for name, value in flags.items() if value is not None for word in (name, str(value))]
    return [*words, *parameters.extra_args]


def wanted_for(parameters: Any, model_path: str, *, holder: LockHolder | None = None) -> Wanted:
    """What a launch with these parameters wants of a host."""
    return Wanted(
        unit=parameters.unit,
        port=parameters.port,
        gpus=tuple(parameters.gpus),
        gpu_memory_utilization=parameters.gpu_memory_utilization,
        model_path=model_path,
        flags=tuple(flags_for(parameters)),
        own_units=tuple(filter(None, [getattr(parameters, "replaces", None)])),
        guard_wait_s=parameters.gpu_wait_s,
        may_move_port=_MOVED in parameters.apply_remedies and parameters.max_restarts > 0,
        holder=holder,
    )
