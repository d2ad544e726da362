"""What a unit's main process was really started with."""

from contextlib import suppress

from opslib.domain.host import Host
from opslib.domain.unit_file import parse_unit_file
from opslib.domain.unit_words import group_by_flag
from opslib.errors import OpslibError, UnexpectedAnswer
from opslib.workflow.facts import gather_unit_status
from opslib.workflow.install import read_unit_text


def running_argv(host: Host, unit: str) -> tuple[str, ...]:
    """The argument vector of the unit's main process, from the kernel; raises UnexpectedAnswer where none runs."""
    pid = gather_unit_status(host, unit).main_pid
    # Without sudo first: only a /proc mounted with hidepid hides it.
    path = f"/proc/{pid}/cmdline"
    content = host.read_file(path) if pid else None
    if pid and not content and host.settings.sudo is True:
        content = host.read_file(path, sudo=True)
    if not content:
        raise UnexpectedAnswer(f"{unit} has no main process", host=host.settings.alias)
    return tuple(word.decode("utf-8", "replace") for word in content.rstrip(b"\0").split(b"\0"))


def running_flags(host: Host, unit: str) -> dict[str, str]:
    """The flags of the running process with their values ("" for a flag without one)."""
    lines = group_by_flag(running_argv(host, unit))
    return {line[0]: " ".join(line[1:]) for line in lines if line and line[0].startswith("--")}


def unit_gpus(host: Host, unit: str) -> tuple[int, ...]:
    """The GPU indices that the unit's own file gives the engine; none where it names none."""
    with suppress(OpslibError, ValueError):
        visible = parse_unit_file(read_unit_text(host, unit) or "").environment.get("CUDA_VISIBLE_DEVICES", "")
        return tuple(int(word) for word in visible.split(",") if word.strip().isdecimal())
    return ()
