"""Read a unit as systemd does, drop-ins included; change one flag of one that the kit did not write."""

from contextlib import suppress

from pydantic import ValidationError

from opslib.domain.facts.systemd import unit_name
from opslib.domain.flag_known import flag_fault
from opslib.domain.host import Host
from opslib.domain.plans import Plan
from opslib.domain.preflight_reading import EngineReading
from opslib.domain.unit_files import UnitFiles, UnitPart
from opslib.errors import PrivilegeRefused, Refused
from opslib.workflow.facts import gather_unit_status, unknown_unit
from opslib.workflow.install import plan_file


def gather_unit_files(host: Host, unit: str) -> UnitFiles:
    """The unit's file and drop-ins as they lie on the host; raises UnknownName where systemd knows no such unit."""
    status = gather_unit_status(host, unit)
    if not status.fragment_path:
        raise unknown_unit(host, unit)
    paths = (status.fragment_path, *status.drop_in_paths)
    parts = tuple(UnitPart(path=path, text=read_text(host, path) or "") for path in paths)
    return UnitFiles(unit=unit_name(unit), parts=parts, unit_dir=host.settings.unit_dir)


def read_text(host: Host, path: str) -> str | None:
    """A file's text, with sudo only where the login may not read it; None where it isn't there."""
    content = None
    try:
        content = host.read_file(path)
    except PrivilegeRefused:
        if host.settings.has_sudo:
            with suppress(PrivilegeRefused):
                content = host.read_file(path, sudo=True)
    return None if content is None else content.decode("utf-8", "surrogateescape")


def refuse_bad_flag(host: Host, unit: str, name: str, value: str | None) -> None:
    """Raise Refused for a flag that the vLLM which the unit runs doesn't know, or a value that it can't read.

    The installed sources say what it knows; where they aren't there, the kit's own table does. Another engine's flags
    aren't judged.
    """
    files = gather_unit_files(host, unit)
    if files.container or not files.merged.serve_arguments:
        return
    if fault := flag_fault(name, value, _known_flags(host, files)):
        raise Refused(fault, host=host.settings.alias, hint="--force sets it all the same")


def _known_flags(host: Host, files: UnitFiles) -> tuple[str, ...]:
    """The flags of the vLLM beside the program that the unit runs; none where its sources aren't there."""
    started = files.merged.engine_argv[: -len(files.merged.serve_arguments)]
    program = next((word for word in reversed(started) if word.startswith("/")), host.settings.vllm)
    result = host.run_program("engine_package", {"vllm": program})
    try:
        return EngineReading.model_validate_json(result.stdout).flags if result.is_success else ()
    except ValidationError:
        return ()


def plan_flag(host: Host, unit: str, name: str, value: str | None, *, is_removed: bool = False) -> Plan:
    """What has to change so that a unit, whoever wrote it, runs its engine with one flag otherwise.

    Everything else keeps its wording and its place. Raises Refused for an engine in a container.
    """
    files = gather_unit_files(host, unit)
    try:
        part = files.without_engine_flag(name) if is_removed else files.with_engine_flag(name, value)
    except Refused as error:
        raise Refused(f"{files.unit}: {error.message}", host=host.settings.alias, hint=error.hint) from error
    return plan_file(host, unit, part.path, part.text)
