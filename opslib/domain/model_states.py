"""What a recurrent layer keeps of a sequence: gated delta net, KDA, Mamba 1 and 2, short convolution, lightning.

Source: vllm/model_executor/layers/mamba/mamba_utils.py.
"""

from collections.abc import Mapping
from typing import Any

from opslib.domain.states import Value
from opslib.errors import UnexpectedAnswer


class StateShape(Value):
    """What a recurrent layer keeps of each sequence, before tensor parallelism divides it."""

    conv_width: int = 0  # channels of the convolution
    conv_groups: int = 0  # of them, channels that belong to Mamba-2 groups (2 x state size each)
    n_groups: int = 1
    conv_rows: int = 0  # kernel - 1
    recurrent_elements: int = 0
    recurrent_bytes: int = 4  # per element, where no flag says otherwise
    n_parameters: int = 0  # of the layer's own projections


def state_shape(config: Mapping[str, Any]) -> StateShape:
    """The state of a recurrent layer: gated delta net, KDA, Mamba 1 and 2, short convolution, lightning attention."""
    hidden = int(config["hidden_size"])
    in_bytes = {"float32": 4, "float16": 2, "bfloat16": 2}
    width = in_bytes.get(str(config.get("mamba_ssm_dtype") or config.get("mamba_ssm_cache_dtype")), 0)
    width = width or int(config.get("recurrent_bytes") or 4)
    if config.get("linear_key_head_dim"):
        k_dim, v_dim = int(config["linear_key_head_dim"]), int(config["linear_value_head_dim"])
        keys, values = int(config["linear_num_key_heads"]) * k_dim, int(config["linear_num_value_heads"]) * v_dim
        conv = 2 * keys + values
        own = hidden * (conv + values + 2 * int(config["linear_num_value_heads"])) + values * hidden
        rows = int(config.get("linear_conv_kernel_dim") or 4) - 1
        return StateShape(
            conv_width=conv,
            conv_rows=rows,
            recurrent_elements=values * k_dim,
            recurrent_bytes=width,
            n_parameters=own + conv * (rows + 1),
        )
    linear = config.get("linear_attn_config")
    if isinstance(linear, Mapping):
        heads, dim, kernel = (linear.get(key) for key in ("num_heads", "head_dim", "short_conv_kernel_size"))
        if not isinstance(heads, int) or not isinstance(dim, int) or heads <= 0 or dim <= 0:
            raise UnexpectedAnswer(f"config.json: linear_attn_config has {heads!r} heads of {dim!r} values")
        inner = heads * dim
        rows = (kernel if isinstance(kernel, int) else 4) - 1
        own = 4 * hidden * inner + 2 * (hidden * dim + dim * inner)
        return StateShape(
            conv_width=3 * inner, conv_rows=rows, recurrent_elements=inner * dim, recurrent_bytes=4, n_parameters=own
        )
    return _mamba_shape(config, hidden, width)


def _mamba_shape(config: Mapping[str, Any], hidden: int, width: int) -> StateShape:
    state = config.get("mamba_d_state") or config.get("ssm_state_size") or config.get("mamba_state_dim")
    rows = int(config.get("mamba_d_conv") or config.get("conv_kernel") or config.get("conv_L_cache") or 4) - 1
    if not state:
        if config.get("conv_L_cache"):  # a short convolution and nothing else
            return StateShape(conv_width=hidden, conv_rows=rows, n_parameters=4 * hidden * hidden)
        inner = int(config["num_attention_heads"]) * int(config["head_dim"])  # lightning attention
        dim = int(config["head_dim"])
        return StateShape(recurrent_elements=inner * dim, recurrent_bytes=width, n_parameters=5 * hidden * inner)
    heads = config.get("mamba_n_heads") or config.get("mamba_num_heads") or config.get("n_mamba_heads")
    size = config.get("mamba_d_head") or config.get("mamba_head_dim") or config.get("mamba_headdim")
    inner = int(heads) * int(size) if isinstance(heads, int) and isinstance(size, int) else 0
    inner = inner or int(config.get("mamba_d_ssm") or float(config.get("mamba_expand") or 2) * hidden)
    groups = config.get("mamba_n_groups") or config.get("n_groups") or config.get("mamba_ngroups")
    in_groups = 2 * int(groups) * int(state) if groups else 0
    n_heads = int(heads) if isinstance(heads, int) else 0
    own = hidden * (2 * inner + in_groups + n_heads) + inner * hidden + (0 if groups else 2 * inner * int(state))
    return StateShape(
        conv_width=inner + in_groups,
        conv_groups=in_groups,
        n_groups=int(groups or 1),
        conv_rows=rows,
        recurrent_elements=inner * int(state),
        recurrent_bytes=width,
        n_parameters=own,
    )
