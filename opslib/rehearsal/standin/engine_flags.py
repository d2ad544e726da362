"""The command line of `vllm serve` 0.15: flags as data, refused as vLLM refuses them."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

TOP_USAGE = "usage: vllm [-h] [-v] {chat,complete,serve,bench,collect-env,run-batch} ...\n"
SERVE_USAGE = "usage: vllm serve [model_tag] [options]\n"


def human_int(value: str) -> int:
    """`1k`, `2M`, `25.6K` as vLLM reads them (vllm/engine/arg_utils.py human_readable_int)."""
    factors = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
    if value and value[-1] in factors:
        return int(float(value[:-1]) * factors[value[-1]])
    return int(value)


TYPES: Dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "human_int": human_int,
    "json": json.loads,
}

# "name type" or "name type=choice,choice"; `bool` has a --no- twin; `list` takes one or more words.
FLAGS = """
model str|tokenizer str|tokenizer-mode str|trust-remote-code bool|dtype str=auto,bfloat16,float,float16,float32,half
seed int|hf-config-path str|revision str|code-revision str|tokenizer-revision str|max-model-len human_int
quantization str|enforce-eager bool|max-logprobs int|disable-sliding-window bool|skip-tokenizer-init bool
served-model-name list|generation-config str|override-generation-config json|enable-sleep-mode bool
model-impl str|hf-overrides json|runner str=auto,draft,generate,pooling|convert str|config-format str|hf-token str
load-format str|download-dir str|safetensors-load-strategy str|model-loader-extra-config json|ignore-patterns list
use-tqdm-on-load bool|reasoning-parser str|distributed-executor-backend str=external_launcher,mp,ray,uni
pipeline-parallel-size int|master-addr str|master-port int|nnodes int|node-rank int|tensor-parallel-size int
decode-context-parallel-size int|data-parallel-size int|data-parallel-rank int|data-parallel-size-local int
data-parallel-address str|data-parallel-rpc-port int|data-parallel-backend str|enable-expert-parallel bool
all2all-backend str|enable-eplb bool|eplb-config json|max-parallel-loading-workers int|disable-custom-all-reduce bool
block-size int=1,8,16,32,64,128,256|gpu-memory-utilization float|swap-space float|kv-cache-memory-bytes human_int
kv-cache-dtype str=auto,bfloat16,fp8,fp8_ds_mla,fp8_e4m3,fp8_e5m2,fp8_inc|num-gpu-blocks-override int
enable-prefix-caching bool|prefix-caching-hash-algo str=sha256,sha256_cbor,xxhash,xxhash_cbor|cpu-offload-gb float
calculate-kv-scales bool|kv-sharing-fast-prefill bool|mamba-cache-dtype str|mamba-ssm-cache-dtype str
limit-mm-per-prompt json|enable-mm-embeds bool|media-io-kwargs json|mm-processor-kwargs json
mm-processor-cache-gb float|mm-encoder-tp-mode str=data,weights|interleave-mm-strings bool|skip-mm-profiling bool
enable-lora bool|max-loras int|max-lora-rank int|lora-modules list|lora-dtype str
show-hidden-metrics-for-version str|otlp-traces-endpoint str|collect-detailed-traces list|kv-cache-metrics bool
max-num-batched-tokens human_int|max-num-seqs human_int|max-num-partial-prefills int|long-prefill-token-threshold int
scheduling-policy str=fcfs,priority|enable-chunked-prefill bool|disable-chunked-mm-input bool|scheduler-cls str
disable-hybrid-kv-cache-manager bool|async-scheduling bool|stream-interval int|cudagraph-capture-sizes list
max-cudagraph-capture-size int|speculative-config json|kv-transfer-config json|kv-events-config json
ec-transfer-config json|compilation-config json|attention-config json|attention-backend str|additional-config json
structured-outputs-config json|profiler-config json|optimization-level int|disable-log-stats bool
aggregate-engine-logging bool|enable-log-requests bool|disable-log-requests bool|headless bool|api-server-count int
config str|host str|port int|uds str|uvicorn-log-level str=critical,debug,error,info,trace,warning
disable-uvicorn-access-log bool|disable-access-log-for-endpoints str|allow-credentials bool|allowed-origins json
allowed-methods json|allowed-headers json|api-key list|chat-template str
chat-template-content-format str=auto,openai,string|trust-request-chat-template bool|response-role str|ssl-keyfile str
ssl-certfile str|ssl-ca-certs str|enable-ssl-refresh bool|ssl-cert-reqs int|root-path str|middleware list
return-tokens-as-token-ids bool|disable-frontend-multiprocessing bool|enable-request-id-headers bool
enable-auto-tool-choice bool|tool-call-parser str|tool-parser-plugin str|tool-server str|log-config-file str
max-log-len int|disable-fastapi-docs bool|enable-prompt-tokens-details bool|enable-server-load-tracking bool
enable-force-include-usage bool|enable-tokenizer-info-endpoint bool|enable-log-outputs bool|h11-max-header-count int
allow-deprecated-quantization bool|allowed-local-media-path str|allowed-media-domains list|cudagraph-metrics bool
data-parallel-external-lb bool|data-parallel-hybrid-lb bool|data-parallel-start-rank int|ubatch-size int
dbo-decode-token-threshold int|dbo-prefill-token-threshold int|enable-dbo bool|dcp-kv-cache-interleave-size int
cp-kv-cache-interleave-size int|default-mm-loras json|disable-cascade-attn bool|enable-layerwise-nvtx-tracing bool
enable-log-deltas bool|enable-mfu-metrics bool|enable-prompt-embeds bool|exclude-tools-when-tool-choice-none bool
expert-placement-strategy str=linear,round_robin|fully-sharded-loras bool|h11-max-incomplete-event-size int
io-processor-plugin str|kv-cache-metrics-sample float|kv-offloading-backend str|kv-offloading-size float
log-error-stack bool|logits-processor-pattern str|logits-processors list|logprobs-mode str|mamba-block-size int
max-cpu-loras int|max-long-partial-prefills int|mm-encoder-attn-backend str|mm-processor-cache-type str=lru,shm
mm-shm-cache-max-object-size-mb int|override-attention-dtype str|pooler-config json|video-pruning-rate float
prefill-context-parallel-size int|pt-load-map-location str|ray-workers-use-nsight bool|reasoning-parser-plugin str
ssl-ciphers str|tokens-only bool|worker-cls str|worker-extension-cls str
"""
SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
    "-O": "--optimization-level",
    "-ep": "--enable-expert-parallel",
    "-cc": "--compilation-config",
}


class Parser(argparse.ArgumentParser):
    """argparse with vLLM's short usage texts."""

    def format_usage(self) -> str:
        """The two usages that vLLM prints."""
        return TOP_USAGE if self.prog == "vllm" else SERVE_USAGE

    def error(self, message: str) -> NoReturn:
        """Exit status 2 with usage and reason on standard error."""
        self.print_usage(sys.stderr)
        self.exit(2, "%s: error: %s\n" % (self.prog, message))


def table() -> List[Tuple[str, str, Optional[List[str]]]]:
    """(name, type, choices) of every flag."""
    rows = []
    for cell in FLAGS.replace("\n", "|").split("|"):
        if cell.strip():
            name, kind = cell.split()
            kind, _, choices = kind.partition("=")
            rows.append((name, kind, choices.split(",") if choices else None))
    return rows


def serve_parser() -> Parser:
    """The parser of `vllm serve`; flags that are not given stay None."""
    parser = Parser(prog="vllm serve", allow_abbrev=False, add_help=True)
    parser.add_argument("model_tag", nargs="?")
    for name, kind, choices in table():
        flag, dest = "--" + name, name.replace("-", "_")
        names = [flag] + [short for short, long in SHORT.items() if long == flag]
        if kind == "bool":
            parser.add_argument(*names, dest=dest, action="store_const", const=True)
            parser.add_argument("--no-" + name, dest=dest, action="store_const", const=False)
        elif kind == "list":
            parser.add_argument(*names, dest=dest, nargs="+")
        else:
            typed = TYPES[kind] if choices is None or kind == "int" else str
            allowed = [typed(choice) for choice in choices] if choices else None
            parser.add_argument(*names, dest=dest, type=typed, choices=allowed)
    return parser


def normalised(argv: List[str]) -> List[str]:
    """`--max_num_seqs` becomes `--max-num-seqs`, as vLLM's FlexibleArgumentParser does; values stay."""
    out = []
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            out.append(name.replace("_", "-") + equals + value)
        else:
            out.append(word)
    return out


def parse_serve(argv: List[str]) -> Dict[str, Any]:
    """The given flags by their Python name; exits with status 2 as vLLM does for anything wrong."""
    parsed, unknown = serve_parser().parse_known_args(normalised(argv))
    if unknown:
        Parser(prog="vllm").error("unrecognized arguments: " + " ".join(unknown))
    return {name: value for name, value in vars(parsed).items() if value is not None}
