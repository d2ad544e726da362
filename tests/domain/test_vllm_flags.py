"""`vllm serve` flags, read as vLLM reads them."""

import pytest

from opslib.domain.vllm_flags import parse_serve_arguments

GIB = 2**30


def parse(line, **known):
    return parse_serve_arguments(line.split(), **{"engine_version": "0.15", "gpu_total_bytes": 95 * GIB, **known})


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--max-num-seqs 256", "--max-num-seqs", 256),
        ("--max_num_seqs=256", "--max-num-seqs", 256),
        ("-tp 4", "--tensor-parallel-size", 4),
        ("--tensor-parallel 4", "--tensor-parallel-size", 4),  # a unique prefix, as argparse allows
        ("--max-model-len 128K", "--max-model-len", 131072),
        ("--max-model-len 128k", "--max-model-len", 128000),
        ("--max-model-len auto", "--max-model-len", "auto"),
        ("--enforce-eager", "--enforce-eager", True),
        ("--no-enable-prefix-caching", "--enable-prefix-caching", False),
        ('--kv-transfer-config {"a":1}', "--kv-transfer-config", {"a": 1}),
        ("--served-model-name a b", "--served-model-name", ["a", "b"]),
        ("--gpu-memory-utilization 0.95", "--gpu-memory-utilization", 0.95),
        ("--kv-cache-memory 10G", "--kv-cache-memory-bytes", 10 * GIB),
        ("--swap-space 4", "--swap-space", 4.0),  # gone from newer versions
    ],
)
def test_a_given_flag_has_its_typed_value_and_comes_from_the_unit(line, name, value):
    """Names, aliases, underscores, `=`, suffixes and negations are vLLM's."""
    flags = parse(f"/srv/models/x {line}")
    assert flags.flags[name].value == value
    assert flags.flags[name].origin == "unit"
    assert (flags.model, flags.findings) == ("/srv/models/x", ())


@pytest.mark.parametrize(
    ("line", "summary"),
    [
        ("--max-numseqs 256", "vllm serve has no flag --max-numseqs; did you mean --max-num-seqs?"),
        ("--zzz-xyz", "vllm serve has no flag --zzz-xyz"),
        ("--port eighty", "--port: invalid literal for int() with base 10: 'eighty'"),
        ("--port", "--port: expected one argument"),
        ("--dtype bf16", "--dtype: invalid choice: 'bf16' (choose from auto, bfloat16, float, float16, float32, half)"),
    ],
)
def test_what_vllm_would_refuse_is_a_critical_finding(line, summary):
    """An unknown flag names the nearest one; a value that can't be read names the flag."""
    (finding,) = parse(line).findings
    assert (finding.state.value, finding.summary) == ("critical", summary)


@pytest.mark.parametrize(
    ("version", "gib", "name", "seqs", "tokens"),
    [
        ("0.15.1", 94.97, "NVIDIA RTX PRO 6000", 1024, 8192),
        ("0.15.1", 79.25, "NVIDIA A100-SXM4-80GB", 256, 2048),
        ("0.15.1", 23.6, "NVIDIA GeForce RTX 3090", 256, 2048),
        ("0.8.0", 23.6, "NVIDIA GeForce RTX 3090", 1024, 2048),
        ("0.33.0", 178.0, "NVIDIA B200", 1024, 16384),
        ("0.27.0", 178.0, "NVIDIA B200", 1024, 8192),
        ("0.33.0", 121.69, "NVIDIA GB10", 256, 2048),
        ("0.27.0", 121.69, "NVIDIA GB10", 1024, 8192),
    ],
)
def test_batch_defaults_depend_on_version_and_gpu(version, gib, name, seqs, tokens):
    """arg_utils.py get_batch_defaults, API server column."""
    flags = parse("/m", engine_version=version, gpu_total_bytes=int(gib * GIB), gpu_name=name)
    assert (flags.max_num_seqs, flags.max_num_batched_tokens) == (seqs, tokens)


def test_a_default_says_where_it_comes_from():
    """The origin names version and GPU class, so that a plan can be checked by a reader."""
    flags = parse("/m")
    assert flags.flags["--max-num-seqs"].origin == "default of vLLM 0.15 for GPUs >= 70 GiB"
    assert parse("/m", engine_version="0.20.0").gpu_memory_utilization == 0.92
    assert flags.gpu_memory_utilization == 0.90
    assert parse("/m", engine_version="").flags["--gpu-memory-utilization"].origin.endswith("(version not known)")


def test_without_a_gpu_size_batch_defaults_stay_open():
    """They depend on the GPU, so none is made up."""
    assert "--max-num-seqs" not in parse("/m", gpu_total_bytes=None).flags


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--compilation-config.cudagraph_mode NONE", "--compilation-config", {"cudagraph_mode": "NONE"}),
        ("-O.cudagraph_mode=NONE", "--compilation-config", {"cudagraph_mode": "NONE"}),
        ("-cc.pass_config.fuse=true -cc.level=3", "--compilation-config", {"pass_config": {"fuse": True}, "level": 3}),
        ("-O3", "--compilation-config", 3),
        ("--hf-overrides.text_config.num_hidden_layers 4", "--hf-overrides", {"text_config": {"num_hidden_layers": 4}}),
        (
            "--speculative-config.method mtp --speculative-config.num_speculative_tokens=2",
            "--speculative-config",
            {"method": "mtp", "num_speculative_tokens": 2},
        ),
    ],
)
def test_a_flag_with_a_dot_sets_one_value_of_an_object(line, name, value):
    """vllm/utils/argparse_utils.py: what stands behind the dots is the way to it; several are joined."""
    assert parse(f"/m {line}").value(name) == value


@pytest.mark.parametrize("line", ["-O0", "--optimization-level 0", "-O.cudagraph_mode=NONE", "--enforce-eager"])
def test_graphs_can_be_switched_off_in_four_ways(line):
    """Without CUDA graphs a launch is eager for memory's sake."""
    assert parse(f"/m {line}").is_eager
    assert not parse("/m -O3").is_eager
