"""A real vLLM (CPU) and a tiny model in the real Debian host: real engine, systemd, journal and SSH."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opslib.domain.host import HostSettings
from tests.rig.debian import DebianHost, debian_host
from tests.rig.vllm_build import VERSION, tiny_model, vllm_tree

__all__ = ["ENVIRONMENT", "MODEL_DIR", "SERVE_FLAGS", "VERSION", "RealVllmHost", "real_vllm_host"]

MODEL_NAME = "tiny-llama"
MODEL_DIR = f"/srv/models/{MODEL_NAME}"
VLLM = "/opt/vllm/bin/vllm"
SERVE_FLAGS = ("--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "16")
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class RealVllmHost:
    """The host, and the inventory entry with which it is used."""

    debian: DebianHost
    settings: HostSettings


@contextmanager
def real_vllm_host(name: str = "opslib-vllm") -> Iterator[RealVllmHost]:
    """A host with vLLM under /opt/vllm and the model under /srv/models/tiny-llama (its own copy, free to be damaged).

    Raises RigUnavailable where the host or the engine cannot be had.
    """
    tree, model = vllm_tree(), tiny_model()
    with debian_host(name, bind=[(tree, "/opt/vllm")]) as debian:
        shutil.copytree(model, debian.local_path(MODEL_DIR))
        yield RealVllmHost(debian, debian.settings.model_copy(update={"vllm": VLLM, "environment": dict(ENVIRONMENT)}))
