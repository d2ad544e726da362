"""Prefect's part: a flow that maps one runbook over hosts, and one for each host, which a worker runs.

Needs the extra `opslib[fleet]`; nothing else imports this module. Queue, workers, schedules, retries, limits, states
and the screen are Prefect's own; what happened on a host is told by the kit's records and by the lock on that host.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from httpx import HTTPError, RequestError
from prefect import flow, get_client, get_run_logger, runtime, task
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, State
from prefect.concurrency.sync import concurrency
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectAlreadyExists, PrefectException
from prefect.states import Completed, Crashed, Failed

from opslib.app.catalogue import default_runs_dir, find_runbook
from opslib.app.fleet import fleet_hosts
from opslib.app.host_run import HostEnd, check_hosts, run_once
from opslib.domain.states import State as Verdict
from opslib.errors import BadParameter, Refused

HOST_FLOW, FLEET_FLOW, DEPLOYMENT = "opslib-host", "opslib-fleet", "opslib"
TAG = "opslib"
MOST_LOST = 3  # times that a host's flow run is started again after its worker was lost
RETRIES_S = [30, 60, 120, 300, 600]  # where it could not be found out, or the host refused: another run has its lock
LEASE_S = 60  # a worker that is gone holds a host's limit no longer than this
_LOST_FOR_GOOD = timedelta(minutes=15)  # crashed, and nothing has started it again
_ASK_EVERY_S = 3.0


class _OpenEnd(Exception):  # noqa: N818 - a statement about knowledge, not a fault
    """The host's end isn't known, or it refused: worth another look."""

    def __init__(self, end: HostEnd) -> None:
        super().__init__(f"{end.word}: {end.reason}")
        self.end = end


@flow(name=FLEET_FLOW, flow_run_name="{runbook}", persist_result=False)
def run_fleet(
    runbook: str, hosts: list[str], parameters: dict[str, Any] | None = None, runs_dir: str | None = None
) -> State[Any]:
    """Run one runbook on each host; started again after a crash, it finds the hosts' runs that it began.

    Args:
        runbook: name or number, as in `opslib run`
        hosts: aliases and labels of hosts.toml on the workers; all: every one of them
        parameters: what the runbook is given besides its host, as in a file for `opslib run -f`
        runs_dir: where the records go, a path that every worker sees; none: the worker's own runs/

    """
    given = parameters or {}
    try:
        _records_place(runs_dir)
        name, aliases = find_runbook(runbook)[0], fleet_hosts(hosts)
        check_hosts(name, aliases, given)
    except Refused as error:
        return Failed(name="Refused", message=str(error))
    runs = [_begin(name, alias, given, runs_dir) for alias in aliases]
    ends = _wait_for(runs)
    _show(name, dict(zip(aliases, ends, strict=True)))
    return _state_of_all(ends)


def _records_place(runs_dir: str | None) -> Path:
    """Where the records go; raises BadParameter for a path that each worker would take from another directory."""
    place = Path(runs_dir) if runs_dir else default_runs_dir()
    if not place.is_absolute():
        raise BadParameter(f"runs_dir: {runs_dir} is relative; a worker runs each flow in a directory of its own")
    return place


def _begin(runbook: str, host: str, given: dict[str, Any], runs_dir: str | None) -> FlowRun:
    """The host's flow run, begun now or by an earlier start of this fleet's."""
    parameters = {"runbook": runbook, "host": host, "parameters": given, "runs_dir": runs_dir}
    key = f"{runtime.flow_run.id}-{host}"
    named = f"{host} {runbook}"
    run: FlowRun = run_deployment(
        f"{HOST_FLOW}/{DEPLOYMENT}", parameters=parameters, timeout=0, idempotency_key=key, flow_run_name=named
    )
    return run


def _wait_for(runs: Sequence[FlowRun]) -> list[FlowRun]:
    """The runs when all have ended; one that crashed is started again, and hasn't."""
    with get_client(sync_client=True) as client:
        while True:
            with suppress(RequestError):  # a server that is started anew
                found = [client.read_flow_run(run.id) for run in runs]
                if all(map(_has_ended, found)):
                    return found
            time.sleep(_ASK_EVERY_S)


def _has_ended(run: FlowRun) -> bool:
    state = run.state
    if state is None or not state.is_final():
        return False
    return not state.is_crashed() or datetime.now(UTC) - state.timestamp > _LOST_FOR_GOOD


def _show(runbook: str, ends: dict[str, FlowRun]) -> None:
    """One table of all hosts, beside the fleet's flow run."""
    rows = [{"host": host, "state": run.state_name, "outcome": _message(run)} for host, run in ends.items()]
    create_table_artifact(rows, description=f"{runbook}: how it ended on each host")
    for row in rows:
        get_run_logger().info("%(host)s: %(state)s: %(outcome)s", row)


def _message(run: FlowRun) -> str:
    return (run.state and run.state.message) or ""


def _state_of_all(ends: Sequence[FlowRun]) -> State[Any]:
    """All completed, or how many hosts ended how."""
    counts: dict[str, int] = {}
    for run in ends:
        counts[str(run.state_name)] = counts.get(str(run.state_name), 0) + 1
    said = ", ".join(f"{n} {name.lower()}" for name, n in counts.items())
    is_good = all(run.state is not None and run.state.is_completed() for run in ends)
    return Completed(message=said) if is_good else Failed(message=said)


def _is_open(_task: Any, _run: Any, state: State[Any]) -> bool:
    """Whether the task may be tried again."""
    return isinstance(state.result(raise_on_failure=False), _OpenEnd)


@task(
    name="opslib-run",
    task_run_name="opslib run {runbook} on {host}",
    retries=len(RETRIES_S),
    retry_delay_seconds=RETRIES_S,
    retry_condition_fn=_is_open,
    persist_result=False,
)
def run_on_host(
    runbook: str, host: str, given: dict[str, Any], *, runs_dir: Path, who: str, since: datetime | None
) -> HostEnd:
    """`opslib run` as a process; raises _OpenEnd where another try may tell more."""
    end = run_once(runbook, host, given, runs_dir=runs_dir, task=who, since=since, tell=get_run_logger().info)
    if end.is_open:
        raise _OpenEnd(end)
    return end


@flow(name=HOST_FLOW, persist_result=False)
def run_host(
    runbook: str, host: str, parameters: dict[str, Any] | None = None, runs_dir: str | None = None
) -> State[Any]:
    """Run one runbook on one host: at most one at a time, and never again what this flow run has done before.

    Args:
        runbook: name or number, as in `opslib run`
        host: alias of hosts.toml on the worker
        parameters: what the runbook is given besides its host, as in a file for `opslib run -f`
        runs_dir: where the record goes, a path that every worker sees; none: the worker's own runs/

    """
    since, n_lost = _before()
    if n_lost > MOST_LOST:
        return Failed(name="Unknown", message=f"{host}: its worker was lost {n_lost} times; not started again")
    try:
        place = _records_place(runs_dir)
    except Refused as error:
        return Failed(name="Refused", message=str(error))
    who = f"Prefect flow run {runtime.flow_run.id}"
    end: HostEnd | None = None
    try:
        with concurrency(_limit_of(host), strict=True, lease_duration=LEASE_S, raise_on_lease_renewal_failure=False):
            end = _settled(runbook, host, parameters or {}, runs_dir=place, who=who, since=since)
    except (HTTPError, PrefectException):  # the server is away: the lease ends by itself, and the end stands
        if end is None:
            raise
    return state_of(end)


def _settled(runbook: str, host: str, given: dict[str, Any], **about: Any) -> HostEnd:
    """The host's end, the last one where it stayed open."""
    try:
        end: HostEnd = run_on_host(runbook, host, given, **about)
    except _OpenEnd as error:
        return error.end
    except Refused as error:
        return HostEnd(host=host, state=Verdict.UNKNOWN, reason=str(error), exit_code=error.exit_code)
    return end


def _before() -> tuple[datetime | None, int]:
    """When this flow run came to an end that was told (Retry on the screen begins anew), how often it was lost since.

    Tasks of those starts that still read as running are closed: nobody else would.
    """
    own = UUID(runtime.flow_run.id)
    with get_client(sync_client=True) as client:
        ended = [state for state in client.read_flow_run_states(own) if state.is_final()]
        told = [state.timestamp for state in ended if not state.is_crashed()]
        for run in client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[own]))):
            if run.state and not run.state.is_final():
                client.set_task_run_state(run.id, Crashed(message="its worker was lost"), force=True)
    since = max(told, default=None)
    return since, sum(since is None or state.timestamp > since for state in ended if state.is_crashed())


def _limit_of(host: str) -> str:
    """The name of the host's own limit, one at a time; made where there is none yet."""
    name = f"opslib-host-{host}"
    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
    return name


def state_of(end: HostEnd) -> State[Any]:
    """The state of the host's flow run: exit codes 0 and 1 complete it, all others fail it; its name says which."""
    make = Completed if end.exit_code in (0, 1) else Failed
    named = {} if end.exit_code == 0 else {"name": end.word.capitalize()}
    record = f"; record {end.record}" if end.record else ""
    return make(message=f"{end.reason}{record}", **named)
