"""Service back first: the last deploy that served, from records and from the host; the evidence is saved before."""

from pathlib import Path

from opslib.app.investigating import Investigated, investigate_host
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.host import Host
from opslib.domain.rollback import GoodDeploy
from opslib.errors import OpslibError
from opslib.records.earlier import last_good
from opslib.workflow.facts import gather_unit_status
from opslib.workflow.rollback import find_last_good, find_version

FAILED, CURRENT = "-1", "0"  # values of the parameter `invocation`


def find_deploy(host: Host, unit: str, wanted: str, *, runs_dir: Path) -> GoodDeploy:
    """The deploy of the kept version that is `wanted`; where none is, the last one that served."""
    if wanted:
        return find_version(host, unit, wanted)
    known = last_good(runs_dir, host.settings.alias, unit.removesuffix(".service"))
    return find_last_good(host, unit, known.snapshot if known else None, known.folder if known else "")


def save_evidence(host: Host, unit: str, *, runs_dir: Path) -> str:
    """Keep what the host knows about the unit in a record of its own; says where, or why that was not possible."""
    alias, name = host.settings.alias, unit.removesuffix(".service")
    try:
        start = start_to_explain(gather_unit_status(host, unit))
        found, _ = investigate_host(alias, name, invocation=start, runs_dir=runs_dir)
    except OpslibError as error:  # the service comes first
        return f"evidence could not be saved: {error.message}"
    said = found[0].now or found[0].card.headline
    return f"evidence not saved: {found[0].not_kept}\n{said}" if found[0].not_kept else _saved(found[0], said)


def _saved(found: Investigated, said: str) -> str:
    cause = found.card.diagnosis.cause
    return f"evidence saved: {found.folder} ({said if found.now or cause == 'none' else cause})"


def start_to_explain(status: UnitStatus) -> str:
    """Which start of the unit is asked about: the one that failed, or the last where that runs on or was stopped."""
    is_up = status.active_state == "active" and not status.n_restarts
    return CURRENT if is_up or status.is_stopped else FAILED
