"""A rollout that only asks: how each host's unit stands, and what its own run would change."""

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from opslib.app.binding import open_bound_host
from opslib.app.rollout_worker import parameters_text, read_worker_record, record_of, refusal_in, start_worker
from opslib.domain.rollout import RolloutPlan
from opslib.domain.states import State
from opslib.errors import CouldNotFindOut, OpslibError, Refused
from opslib.workflow.unit_found import gather_found

_LOOK_EVERY_S = 1.0


@dataclass(frozen=True)
class DryHost:
    """What a host's turn would be."""

    host: str
    stands: str  # its unit now
    state: State
    text: str
    record: str = ""


def dry_rollout(plan: RolloutPlan, runs_dir: Path, *, tell: Callable[[str], None]) -> tuple[DryHost, ...]:
    """A dry run on every host, so many at once, in the order of their turns; each keeps its own record."""
    with tempfile.TemporaryDirectory(prefix="opslib-dry-") as folder:
        Path(folder, "parameters.yaml").write_text(parameters_text(dict(plan.parameters)), "utf-8")
        with ThreadPoolExecutor(plan.workers, thread_name_prefix="dry") as pool:
            return tuple(pool.map(partial(_ask, plan, runs_dir, Path(folder), tell), plan.hosts))


def _ask(plan: RolloutPlan, runs_dir: Path, folder: Path, tell: Callable[[str], None], alias: str) -> DryHost:
    try:
        stands = _stands(plan, alias)
    except OpslibError as error:
        state = State.UNKNOWN if isinstance(error, CouldNotFindOut) else State.CRITICAL
        return DryHost(alias, "unknown", state, error.message)
    log = folder / f"{alias}.log"
    worker = start_worker(
        plan.runbook, alias, parameters=folder / "parameters.yaml", runs_dir=runs_dir, log=log, options=["--dry-run"]
    )
    try:
        while worker.is_running:
            worker.wait(_LOOK_EVERY_S)
    finally:
        worker.stop()
    path = record_of(log)
    record = read_worker_record(path)
    if record is None or record.outcome is None or path is None:
        state = State.CRITICAL if worker.exit_code == Refused.exit_code else State.UNKNOWN
        return DryHost(alias, stands, state, refusal_in(log) or "its run left no record")
    tell(f"{alias}: asked, {record.outcome.state}")
    return DryHost(alias, stands, record.outcome.state, record.outcome.reason, path.name)


def _stands(plan: RolloutPlan, alias: str) -> str:
    host = open_bound_host(alias)
    try:
        found = gather_found(host, plan.unit)
    finally:
        host.close()
    return f"{found.words}: would be drained" if found.is_serving and plan.is_write else found.words
