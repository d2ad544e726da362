"""No false alarm: what is valid, however odd, is ok at every level that reads the weights."""

import json

import numpy as np
import pytest

from opslib.domain.checkpoint_kinds import LEVELS
from tests.onhost.test_verify_faults import home, judged
from tests.real_checkpoint import (
    SMALL,
    gguf_bytes,
    gguf_files,
    model_files,
    safetensors_bytes,
    values,
    write_hub_cache,
    write_local_dir,
    write_model_in,
    write_modelscope,
    write_plain,
)

__all__ = ["home"]


def single(tensors, metadata=None, **more):
    """A one-file model's files."""
    small = {name: text.encode() for name, text in SMALL.items()}
    return {**small, "model.safetensors": safetensors_bytes(tensors, metadata), **more}


PLAIN = {"a.weight": ("bfloat16", (64, 64)), "b.weight": ("float32", (64, 64))}
DTYPES = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2", "uint8", "int64", "float8_e8m0fnu", "bool", "float16",
          "float64", "int32", "complex64", "float8_e4m3fnuz")  # fmt: skip
ADAPTER = {
    "adapter_config.json": b'{"peft_type": "LORA"}',
    "adapter_model.safetensors": safetensors_bytes(
        {
            "base.q_proj.lora_A.weight": ("float32", (8, 64)),
            "base.q_proj.lora_B.weight": ("float32", (64, 8), bytes(2048)),
        }
    ),
}
MISTRAL = {
    "params.json": b'{"dim": 64, "vocab_size": 100}',
    "tekken.json": b"{}",
    "consolidated.safetensors": safetensors_bytes({"layers.0.wq.weight": ("bfloat16", (64, 64))}),
}
PADDED = values("bfloat16", (1000, 64)) + bytes(64 * 2 * 24)  # a vocabulary rounded up to 1024

SOUND = {
    "single file": single(PLAIN),
    "metadata": single(PLAIN, {"format": "pt", "note": 'ü "x"'}),
    "sharded": model_files(),
    "many shards": model_files(7),
    "0-dim and empty tensors": single(
        {**PLAIN, "scale": ("float32", ()), "none": ("bfloat16", (0, 64)), "n": ("int64", ())}
    ),
    "every dtype": single({f"{dtype}.weight": (dtype, (64, 64)) for dtype in DTYPES}),
    "no tensor at all": single({}),
    "tied weights": single({"model.embed_tokens.weight": ("bfloat16", (100, 64))}),
    "padded vocabulary": single({"model.embed_tokens.weight": ("bfloat16", (1024, 64), PADDED), **PLAIN}),
    "constant helpers": single(
        {
            **PLAIN,
            "a.bias": ("float32", (512,), bytes(2048)),
            "a.norm.weight": ("float32", (512,), np.ones(512, "f4").tobytes()),
            "a.qzeros": ("int32", (64, 64), bytes(16384)),
            "a.weight_scale": ("float32", (64, 64), np.ones(4096, "f4").tobytes()),
            "a.causal_mask": ("float32", (64, 64), np.full(4096, -np.inf, "f4").tobytes()),
        }
    ),
    "adapter": ADAPTER,
    "Mistral's own layout": MISTRAL,
    "Mistral's own layout beside the usual one": {**model_files(), **MISTRAL},
    "Mistral's own layout with an index": {
        "params.json": b"{}",
        "tokenizer.model.v3": b"x",
        "consolidated-00001-of-00002.safetensors": safetensors_bytes({"a": ("bfloat16", (64, 64))}),
        "consolidated-00002-of-00002.safetensors": safetensors_bytes({"b": ("bfloat16", (64, 64))}),
        "consolidated.safetensors.index.json": json.dumps(
            {
                "metadata": {"total_size": 16384},
                "weight_map": {
                    "a": "consolidated-00001-of-00002.safetensors",
                    "b": "consolidated-00002-of-00002.safetensors",
                },
            }
        ).encode(),
    },
    "an empty text file and an HTML page that is one": {
        **single(PLAIN),
        "notes.txt": b"",
        "doc.html": b"<!doctype html>",
    },
    "split GGUF": gguf_files(),
    "single GGUF": {"tiny-q4.gguf": gguf_bytes({"a.weight": 512})},
    "a model that only sees": {
        "config.json": b'{"model_type": "vit", "image_size": 224}',
        "preprocessor_config.json": b"{}",
        "model.safetensors": safetensors_bytes(PLAIN),
    },
    "UTF-8 names of tensors": single({"gewicht.größe": ("bfloat16", (64, 64))}),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_is_valid_is_ok(name, home):
    """Each sound model has no finding when its headers, a sample, or all its bytes are read."""
    model = write_plain(home / "m", SOUND[name])
    for level in ("extents", "sample", "full-scan"):
        report = judged(model, level)
        assert (report.state, report.findings) == ("ok", ())
        assert report.n_shards == report.n_expected_shards


@pytest.mark.parametrize("layout", ["local-dir", "hub-cache", "modelscope", "gguf", "plain"])
def test_each_layout_is_recognised_and_ok(layout, home):
    """What each tool leaves behind is known by its name, and right as far as digests are known."""
    report = judged(write_model_in(layout, home / "m"), "extents")
    known = {"local-dir": "hf-local-dir", "gguf": "gguf-split"}.get(layout, layout)
    assert (report.layout, report.state) == (known, "ok")


@pytest.mark.parametrize("writer", [write_local_dir, write_hub_cache])
def test_downloads_with_digests_are_proven(writer, home):
    """Every file has its digest; none is called verified without one."""
    report = judged(writer(home / "m", model_files()), "digest")
    assert (report.state, report.unverifiable, report.findings) == ("ok", (), ())
    assert report.summary.endswith("10 of 10 files have their digest")
    assert report.checked_bytes == sum(len(content) for content in model_files().values())


def test_a_hub_cache_may_be_named_by_its_repository(home):
    """models--ORG--NAME stands for the snapshot that its main reference names."""
    snapshot = write_hub_cache(home / "m", model_files())
    report = judged(snapshot.parents[1], "extents")
    assert (report.path, report.commit, report.state) == (str(snapshot), "1f" * 20, "ok")


def test_files_without_a_known_digest_are_told(home):
    """They are hashed, listed as unverifiable, and the weights among them are a warning."""
    report = judged(write_modelscope(home / "m", model_files()), "digest")
    assert (report.state, [finding.kind for finding in report.findings]) == ("warning", ["no-digest"])
    assert len(report.unverifiable) == 12
    assert len(report.sha256) == 12


def test_levels_are_a_ladder(home):
    """What a level reads grows with the level."""
    model = write_model_in("local-dir", home / "m")
    read = [judged(model, level).checked_bytes for level in LEVELS]
    assert read[0] < read[1] <= read[2] < read[3]
