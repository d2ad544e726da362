"""How a unit stands on its host, as digests that can be compared later; and the way back to that."""

import hashlib

from opslib.domain.host import Host
from opslib.domain.rollout import UnitFound
from opslib.errors import Refused
from opslib.workflow.facts import gather_identity, gather_unit_status
from opslib.workflow.install import RELOAD, environment_path, guard_path, unit_path
from opslib.workflow.launch import start_unit, stop_unit
from opslib.workflow.rollback import gather_kept
from opslib.workflow.shim import shim_path
from opslib.workflow.survey import ask_survey

_UP = ("active", "activating", "reloading")


def gather_found(host: Host, unit: str, *, replaces: str | None = None) -> UnitFound:
    """How the unit stands now: the digests of all files that a deploy writes, and whether it is up and serves."""
    status, serving = gather_unit_status(host, unit), False
    if status.active_state in _UP:
        serving = is_serving(host, unit)
    return UnitFound(
        files={path: _digest(_read(host, path)) for path in deployed_paths(host, unit)},
        is_up=status.active_state in _UP,
        is_serving=serving,
        invocation_id=status.invocation_id,
        boot_id=gather_identity(host).boot_id,
        replaced_is_up=bool(replaces) and gather_unit_status(host, replaces or "").active_state in _UP,
    )


def is_serving(host: Host, unit: str) -> bool:
    """Whether the unit runs and answers `/health` with 200; of a unit that is no known engine, whether it runs."""
    survey = ask_survey(host, (unit,), is_units_only=True)
    found = next(iter(survey.units), None)
    if found is None:
        return False
    return found.status.is_running and (not found.engine or found.health_status_code == 200)


def deployed_paths(host: Host, unit: str) -> tuple[str, ...]:
    """The files that a deploy may write: the unit, its environment, the guard and the notify shim."""
    return (unit_path(host, unit), environment_path(host, unit), guard_path(host), shim_path(host))


def restore_found(host: Host, unit: str, found: UnitFound, *, replaces: str | None = None) -> str:
    """Bring the unit back to how it was found, files first, then systemd, then its state; says what was done.

    The content comes from the versions that are kept beside each file, by its digest. Raises Refused, before anything
    is changed, where one is not kept any more.
    """
    changed = {path: wanted for path, wanted in found.files.items() if _digest(_read(host, path)) != wanted}
    contents = {path: _kept_content(host, path, wanted) for path, wanted in changed.items() if wanted is not None}
    for path in changed:
        _write(host, unit, path, contents.get(path))
    if changed:
        host.run(RELOAD, sudo=host.settings.has_sudo)
    said = [f"{len(changed)} files as before" if changed else "no file had changed"]
    status = gather_unit_status(host, unit)
    is_same_start = status.invocation_id == found.invocation_id and not changed
    if not found.is_up and (status.active_state in _UP or status.sub_state.startswith("auto-restart")):
        stop_unit(host, unit)
        said.append(f"{unit} is stopped, as it was found")
    elif found.is_up and not (status.active_state in _UP and is_same_start):
        start_unit(host, unit)
        said.append(f"{unit} is started again with what it had")
    if replaces and found.replaced_is_up and gather_unit_status(host, replaces).active_state not in _UP:
        start_unit(host, replaces)
        said.append(f"{replaces}, whose place it had taken, is started again")
    return "; ".join(said)


def _read(host: Host, path: str) -> bytes | None:
    return host.read_file(path, sudo=host.settings.has_sudo)


def _digest(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def _kept_content(host: Host, path: str, wanted: str) -> bytes:
    for version in gather_kept(host, path):
        content = _read(host, version.path)
        if content is not None and _digest(content) == wanted:
            return content
    raise Refused(
        f"no kept version of {path} is the one that was found there (sha256 {wanted[:12]})",
        host=host.settings.alias,
        hint="bring it back by hand",
    )


def _write(host: Host, unit: str, path: str, content: bytes | None) -> None:
    sudo = host.settings.has_sudo
    if content is None:
        host.run(("rm", "--force", path), sudo=sudo)
        return
    modes = {unit_path(host, unit): 0o644, environment_path(host, unit): 0o600}
    host.write_file(path, content, mode=modes.get(path, 0o755), sudo=sudo)
