"""A real Debian host in the state that a scenario describes, with the stand-in engine as a plain program on it."""

from collections.abc import Iterator
from contextlib import contextmanager

from opslib.domain.host import HostSettings
from opslib.rehearsal.scenarios import Before, load_scenario
from tests.rig.debian import DebianHost, debian_host, install_standin


@contextmanager
def scenario_host(scenario: str) -> Iterator[HostSettings]:
    """Settings of a fresh real host as an operator without root logs in to it: `ops`, with `sudo -n`."""
    with debian_host(f"opslib-{scenario}") as debian:
        vllm = install_standin(debian, scenario).vllm
        for number, before in enumerate(load_scenario(scenario).before):
            _start_foreign_program(debian, before, f"foreign-{number}")
        yield debian.ops_settings.model_copy(update={"vllm": vllm})


def _start_foreign_program(debian: DebianHost, before: Before, unit: str) -> None:
    """What holds a port or GPU memory there before the deploy, as a unit of its own."""
    if before.kind == "listen":
        path = f"/opt/standin/bin/{before.program or 'listen'}"
        if before.program:
            debian.ssh("ln", "-s", "listen", path)
        argv = [path, str(before.port)]
    elif before.kind == "hold_gpu_memory":
        argv = ["/opt/standin/bin/hold-gpu-memory", str(before.gib), *map(str, before.gpus)]
    else:
        return
    started = debian.ssh("systemd-run", f"--unit={unit}", *argv)
    assert started.returncode == 0, started.stderr
