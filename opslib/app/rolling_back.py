"""Service back first: the last deploy that served, from records and from the host; the evidence is saved before."""

from pathlib import Path

from opslib.app.investigating import investigate_host
from opslib.domain.host import Host
from opslib.domain.rollback import GoodDeploy
from opslib.errors import OpslibError
from opslib.records.earlier import last_good
from opslib.workflow.rollback import find_last_good, find_version


def find_deploy(host: Host, unit: str, wanted: str, *, runs_dir: Path) -> GoodDeploy:
    """The deploy of the kept version that is `wanted`; where none is, the last one that served."""
    if wanted:
        return find_version(host, unit, wanted)
    known = last_good(runs_dir, host.settings.alias, unit.removesuffix(".service"))
    return find_last_good(host, unit, known.snapshot if known else None, known.folder if known else "")


def save_evidence(alias: str, unit: str, *, runs_dir: Path) -> str:
    """Keep what the host knows about the unit in a record of its own; says where, or why that was not possible."""
    try:
        found, _ = investigate_host(alias, unit.removesuffix(".service"), runs_dir=runs_dir)
    except OpslibError as error:  # the service comes first
        return f"evidence could not be saved: {error.message}"
    return f"evidence saved: {found[0].folder} ({found[0].card.diagnosis.cause})"
