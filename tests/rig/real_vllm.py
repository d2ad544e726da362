"""A real vLLM (CPU) and a tiny model in the real Debian host: real engine, systemd, journal and SSH."""

import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from opslib.domain.host import HostSettings
from opslib.domain.vllm_unit import render_vllm_unit
from opslib.rehearsal.scenarios import load_scenario
from opslib.rehearsal.standin_install import standin_files
from tests.rig.debian import DebianHost, debian_host
from tests.rig.vllm_build import VERSION, tiny_model, vllm_tree

__all__ = [
    "ENVIRONMENT",
    "MODEL_DIR",
    "MODEL_NAME",
    "SERVE_FLAGS",
    "VERSION",
    "VLLM",
    "RealVllmHost",
    "real_vllm_host",
    "with_flag",
]

MODEL_NAME = "tiny-llama"
MODEL_DIR = f"/srv/models/{MODEL_NAME}"
VLLM = "/opt/vllm/bin/vllm"
_WHO = ("--query-compute-apps=pid", "--format=csv,noheader")
SERVE_FLAGS = ("--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "16")
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCH_COMPILE_DISABLE": "1",  # the host has no compiler, and log-probabilities would ask for one
}


@dataclass(frozen=True)
class RealVllmHost:
    """The host, and the inventory entry with which it is used: as `ops`, who may sudo without a password."""

    debian: DebianHost
    settings: HostSettings

    def copy_model(self, name: str) -> Path:
        """A model of another name beside the whole one, free to be damaged; where it is seen from here."""
        copy = self.debian.local_path(f"/srv/models/{name}")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.debian.local_path(MODEL_DIR), copy)
        return copy

    def put_unit(
        self,
        unit: str,
        *,
        model: str = MODEL_DIR,
        flags: Sequence[str] = SERVE_FLAGS,
        environment: Mapping[str, str] | None = None,
        drop_in: Sequence[str] = ("Restart=no",),
    ) -> None:
        """Write the kit's unit for that model as a file, and a drop-in with these lines of [Service]."""
        text = render_vllm_unit(
            unit=unit,
            vllm=VLLM,
            model_path=model,
            flags=("--port", "8000", *flags),
            environment={**ENVIRONMENT, **(environment or {})},
        )
        path = f"/etc/systemd/system/{unit}.service"
        more = "\n".join(("[Service]", *drop_in)) + "\n"
        self.debian.put_files({path: (text.encode(), 0o644), f"{path}.d/10-case.conf": (more.encode(), 0o644)})
        self.debian.ssh("systemctl", "daemon-reload")

    def take_port(self, port: int = 8000) -> None:
        """Another program listens on the port (unit `squatter`), and does so when this returns."""
        self.debian.ssh("systemd-run", "--unit=squatter", "python3", "-m", "http.server", str(port))
        deadline = time.monotonic() + 20
        while not self.debian.ssh("ss", "-Hltn", f"sport = :{port}").stdout and time.monotonic() < deadline:
            time.sleep(0.1)

    def hold_gpu(self) -> None:
        """A make-believe GPU 0 of 95 GiB whose memory another program holds (unit `squatter`), told by its nvidia-smi."""
        self.debian.put_files(standin_files(load_scenario("healthy")))
        self.debian.ssh("systemd-run", "--unit=squatter", "/opt/standin/bin/hold-gpu-memory", "57.5", "0")
        asked = ("/opt/standin/bin/nvidia-smi", *_WHO)
        deadline = time.monotonic() + 20
        while not self.debian.ssh(*asked).stdout.strip() and time.monotonic() < deadline:
            time.sleep(0.1)

    @contextmanager
    def gpu_of(self, unit: str, gib: float = 57.5) -> Iterator[None]:
        """A make-believe GPU 0 whose memory the unit's real engine core holds, and for a second after its end."""
        pid = self.engine_core_pid(unit)
        self.debian.put_files(standin_files(load_scenario("healthy")))
        link = self.debian.local_path("/usr/local/bin/nvidia-smi")
        link.symlink_to("/opt/standin/bin/nvidia-smi")
        holder = f"import os, runpy, sys; os.getpid = lambda: {pid}; sys.argv = sys.argv[1:]"
        holder += "; runpy.run_path(sys.argv[0], run_name='__main__')"
        hold = f'python3 -c "{holder}" /opt/standin/bin/hold-gpu-memory {gib} 0'
        self.debian.ssh("systemd-run", "sh", "-c", f"{hold} & tail --pid={pid} --follow /dev/null; kill $!")
        deadline = time.monotonic() + 20
        while pid not in self.debian.ssh("nvidia-smi", *_WHO).stdout and time.monotonic() < deadline:
            time.sleep(0.1)
        yield
        link.unlink()

    def engine_core_pid(self, unit: str) -> str:
        """The process id of the engine core, as it stands before its lines in the journal."""
        journal = self.debian.ssh("journalctl", f"--unit={unit}", "--output=cat", "--no-pager").stdout
        return re.findall(r"EngineCore\w* pid=(\d+)", journal)[-1]


def with_flag(name: str, value: str) -> tuple[str, ...]:
    """The usual flags with one of them set or added."""
    pairs = list(SERVE_FLAGS)
    if name in pairs:
        pairs[pairs.index(name) + 1] = value
        return tuple(pairs)
    return (*pairs, name, value)


@contextmanager
def real_vllm_host(name: str = "opslib-vllm") -> Iterator[RealVllmHost]:
    """A host with vLLM under /opt/vllm and the model under /srv/models/tiny-llama (its own copy, free to be damaged).

    Raises RigUnavailable where the host cannot be had, EngineUnavailable where the engine cannot be installed.
    """
    tree, model = vllm_tree(), tiny_model()
    with debian_host(name, bind=[(tree, "/opt/vllm")]) as debian:
        shutil.copytree(model, debian.local_path(MODEL_DIR))
        settings = debian.ops_settings.model_copy(update={"vllm": VLLM, "environment": dict(ENVIRONMENT)})
        yield RealVllmHost(debian, settings)
