"""Prefect on this machine: its server and its workers as Prefect starts them, and what both need to know of the kit."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

from opslib.app.catalogue import default_runs_dir
from opslib.errors import HostUnreachable, Refused
from opslib.hosts.inventory import inventory_path

POOL = "opslib"
FLEETS_QUEUE, MOST_FLEETS = "fleets", 4  # fewer than a worker's flow runs: a fleet waits for its hosts
HEARTBEAT_S = 30  # Prefect's least
LOST_AFTER_S = 100  # three heartbeats missed
SERVER_SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # in memory, which is the default, leases are forgotten when the server ends, and the slots stay taken
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
}
WORKER_SETTINGS = {"DO_NOT_TRACK": "1", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S)}
SETTINGS = {**SERVER_SETTINGS, **WORKER_SETTINGS}
LOCAL_API = "http://127.0.0.1:4200/api"


def prepare() -> None:
    """Put the settings above into the environment; raises Refused, naming the extra, where there is no Prefect."""
    if find_spec("prefect") is None:
        raise Refused("Prefect is not installed here", hint="make setup-fleet, or pip install 'opslib[fleet]'")
    settle(SETTINGS)


def server_command(host: str, port: int) -> list[str]:
    """The argument vector of an embedded server: SQLite, screen and scheduler in one process."""
    return [*_PREFECT, "server", "start", "--host", host, "--port", str(port)]


def worker_command(name: str, limit: int) -> list[str]:
    """The argument vector of a worker of the kit's pool."""
    named = ["--name", name] if name else []
    return [*_PREFECT, "worker", "start", "--pool", POOL, "--type", "process", "--limit", str(limit), *named]


def settle(settings: Mapping[str, str]) -> None:
    """Put settings into this process's environment, and so into what it becomes; what stands there already counts."""
    os.environ.update({name: value for name, value in settings.items() if name not in os.environ})


def become(command: Sequence[str]) -> None:
    """Go on as this command; doesn't come back."""
    sys.stdout.flush()
    os.execv(command[0], list(command))  # noqa: S606 - an argument vector of ours


def register() -> None:
    """Tell the server of pool, queue, flows and automations; told again, nothing changes but what is newer here.

    The server is that of Prefect's own settings (PREFECT_API_URL, a profile), else the one on this machine. Raises
    HostUnreachable where it doesn't answer.
    """
    import asyncio  # noqa: PLC0415 - only with the extra

    import httpx  # noqa: PLC0415
    from prefect.settings import PREFECT_API_URL, temporary_settings  # noqa: PLC0415

    address = PREFECT_API_URL.value() or LOCAL_API
    settle({"PREFECT_API_URL": address, **_places()})
    with temporary_settings({PREFECT_API_URL: address}):
        try:
            asyncio.run(_register())
        except httpx.RequestError as error:
            hint = "opslib fleet server starts one on this machine"
            raise HostUnreachable(f"no Prefect server answers at {address}", hint=hint) from error
        except httpx.HTTPStatusError as error:
            code, hint = error.response.status_code, "PREFECT_API_AUTH_STRING or PREFECT_API_KEY lets you in"
            raise Refused(
                f"the Prefect server at {address} answers {code} {error.response.reason_phrase}", hint=hint
            ) from error


def _places() -> dict[str, str]:
    """Inventory and records as they are found from here: a worker runs each flow in a directory of its own."""
    inventory = inventory_path()
    hosts = {"OPSLIB_HOSTS": str(inventory.resolve())} if inventory else {}
    return {**hosts, "OPSLIB_RUNS": str(default_runs_dir())}


async def _register() -> None:
    from prefect.client.orchestration import get_client  # noqa: PLC0415
    from prefect.client.schemas.actions import WorkPoolCreate  # noqa: PLC0415
    from prefect.exceptions import ObjectAlreadyExists  # noqa: PLC0415
    from prefect.flows import EntrypointType  # noqa: PLC0415

    from opslib.app import prefect_flow as flows  # noqa: PLC0415

    async with get_client() as client:
        with suppress(ObjectAlreadyExists):
            await client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
        with suppress(ObjectAlreadyExists):
            await client.create_work_queue(FLEETS_QUEUE, concurrency_limit=MOST_FLEETS, work_pool_name=POOL)
    for each, queue in ((flows.run_host, None), (flows.run_fleet, FLEETS_QUEUE)):
        wanted: dict[str, Any] = {"work_pool_name": POOL, "work_queue_name": queue, "tags": [flows.TAG]}
        deployment = await each.to_deployment(flows.DEPLOYMENT, entrypoint_type=EntrypointType.MODULE_PATH, **wanted)
        await deployment.apply()
    for automation in _automations(flows.TAG):
        await _keep(automation)


def _automations(tag: str) -> list[Any]:
    """A run whose heartbeats stop has crashed; one that has crashed is started again, and asks what was done."""
    from prefect.automations import (  # noqa: PLC0415
        Automation,
        ChangeFlowRunState,
        EventTrigger,
        Posture,
        ResourceSpecification,
    )
    from prefect.client.schemas.objects import StateType  # noqa: PLC0415

    ours: dict[str, Any] = {
        "match": ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
        "match_related": ResourceSpecification(
            {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{tag}"}
        ),
        "for_each": {"prefect.resource.id"},
        "threshold": 1,
    }
    silent = EventTrigger(
        after={"prefect.flow-run.heartbeat"},
        expect={"prefect.flow-run.*"},
        posture=Posture.Proactive,
        within=timedelta(seconds=LOST_AFTER_S),
        **ours,
    )
    crashed = EventTrigger(
        expect={"prefect.flow-run.Crashed"}, posture=Posture.Reactive, within=timedelta(seconds=0), **ours
    )
    lost = ChangeFlowRunState(state=StateType.CRASHED, message=f"no heartbeat for {LOST_AFTER_S} s: its worker is gone")
    again = ChangeFlowRunState(state=StateType.SCHEDULED, name="AwaitingRetry", message="started again after a crash")
    return [
        Automation(name="opslib: no heartbeat, crashed", trigger=silent, actions=[lost]),
        Automation(name="opslib: crashed, start again", trigger=crashed, actions=[again]),
    ]


async def _keep(automation: Any) -> None:
    """Create it, or bring the one of that name up to date."""
    try:
        known = await type(automation).aread(name=automation.name)
    except ValueError:
        await automation.acreate()
        return
    automation.id = known.id
    await automation.aupdate()


_PREFECT = (sys.executable, "-m", "prefect")
