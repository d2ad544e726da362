"""Small questions to a host, each one round trip."""

from opslib.domain.facts import gpu, identity, ports, systemd
from opslib.domain.host import CommandResult, Host
from opslib.errors import UnexpectedAnswer, UnknownName

_JOURNAL_READERS = frozenset({"root", "systemd-journal", "adm", "wheel"})


def gather_identity(host: Host) -> identity.Identity:
    """Who answers: host name, boot id, login, kernel and the machine's time."""
    result = host.run_program(*identity.identity_program())
    return identity.parse_identity(_answer(host, result))


def gather_unit_status(host: Host, unit: str) -> systemd.UnitStatus:
    """How systemd sees `unit` now; a unit that does not exist has load_state "not-found"."""
    result = host.run(systemd.show_unit_command(unit))
    return systemd.parse_unit_show(_answer(host, result))


def unknown_unit(host: Host, unit: str) -> UnknownName:
    """The refusal of a unit that systemd on the host knows nothing of, with where to look next."""
    hint = f"opslib survey {host.settings.alias} lists its engine units"
    if host.settings.is_rehearsal:
        hint = "a rehearsal host ends with its command; `opslib rehearse` deploys on one, `make lab` keeps one"
    message = f"systemd knows no unit {systemd.unit_name(unit)}"
    return UnknownName(message, host=host.settings.alias, hint=hint)


def may_read_journal(host: Host) -> bool:
    """Whether the login itself may read the whole journal, by its groups (journalctl(1), "Access control")."""
    groups = host.run(("id", "--groups", "--name")).text.split()
    return not _JOURNAL_READERS.isdisjoint(groups)


def journal_sudo(host: Host) -> bool:
    """Whether sudo is needed, and there, to read the journal."""
    return host.settings.has_sudo and not may_read_journal(host)


def gather_listeners(host: Host, port: int) -> tuple[ports.Listener, ...]:
    """Who listens on TCP `port`; with the host's sudo, so that processes have names."""
    result = host.run(ports.listeners_command(port), sudo=host.settings.has_sudo)
    return ports.parse_listeners(_answer(host, result))


def gather_gpus(host: Host) -> tuple[gpu.Gpu, ...]:
    """The GPUs and their memory; none where the host has no nvidia-smi (exit status 127) or no device."""
    result = host.run(gpu.gpu_memory_command())
    if result.exit_status == 127 or "No devices were found" in result.text:
        return ()
    return gpu.parse_gpu_memory(_answer(host, result))


def gather_gpu_processes(host: Host) -> tuple[gpu.GpuProcess, ...]:
    """Which compute processes hold GPU memory."""
    result = host.run(gpu.gpu_processes_command())
    return gpu.parse_gpu_processes(_answer(host, result))


def _answer(host: Host, result: CommandResult) -> str:
    if not result.is_success:
        said = result.error_text or result.text.strip()
        program = " ".join(result.argv[:3])
        raise UnexpectedAnswer(f"`{program}` exited with {result.exit_status}: {said}", host=host.settings.alias)
    return result.text
