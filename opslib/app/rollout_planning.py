"""What is to be rolled out where, checked before any host is contacted."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from opslib.app.binding import is_rehearsal_alias
from opslib.app.catalogue import effect_of, find_runbook
from opslib.app.headless import check_run
from opslib.domain.host import HostSettings
from opslib.domain.parameter_parts import Parameters
from opslib.domain.parameters import schema_of
from opslib.domain.rollout import RolloutPlan, check_plan, choose_hosts
from opslib.errors import BadParameter, UnknownName
from opslib.hosts.inventory import load_inventory
from opslib.records.operator import operator

PAUSE_S = 300  # between two waves of real hosts


@dataclass(frozen=True)
class Care:
    """How carefully a rollout goes about it; the defaults of the command line."""

    canary: int = 1
    wave: str = "25%"
    max_failures: int = 0
    pause_s: int | None = None  # None: five minutes; on practice hosts none
    min_serving: int = 0
    workers: int = 4
    drain_s: int = 300
    is_drain_forced: bool = False


def plan_rollout(runbook: str, asked: Sequence[str], given: Mapping[str, Any], care: Care | None = None) -> RolloutPlan:
    """The plan; raises BadParameter and UnknownName for whatever is wrong with it, before anything is contacted."""
    care = care or Care()
    name, notebook = find_runbook(runbook)
    schema = schema_of(name)
    if not issubclass(schema, Parameters):
        raise BadParameter(f"{name} is not about one host: it can't be rolled out")
    if "host" in given:
        raise BadParameter("host: the hosts are chosen by --hosts")
    chosen = _chosen(asked)
    for alias in chosen:
        unit = str(getattr(check_run(name, {**given, "host": alias}).parameters, "unit", ""))
    is_practice = all(settings.is_rehearsal for settings in chosen.values())
    pause_s = care.pause_s if care.pause_s is not None else 0 if is_practice else PAUSE_S
    plan = RolloutPlan(
        runbook=name,
        unit=unit,
        hosts=tuple(chosen),
        asked=tuple(asked),
        parameters=dict(given),
        canary=care.canary,
        wave=care.wave,
        max_failures=care.max_failures,
        pause_s=pause_s,
        min_serving=care.min_serving,
        workers=care.workers,
        drain_s=care.drain_s,
        is_drain_forced=care.is_drain_forced,
        is_write=effect_of(notebook) == "write",
        user=operator(),
        controller=socket.gethostname(),
        begun_at=datetime.now(UTC),
    )
    return check_plan(plan)


def with_consent(plan: RolloutPlan) -> RolloutPlan:
    """The plan with the operator's consent to what each host's run will plan."""
    return plan.model_copy(update={"parameters": {**plan.parameters, "consent": "given"}})


def needs_consent(plan: RolloutPlan) -> bool:
    """Whether somebody has to agree first: it changes hosts that are not for practice, and nobody has agreed yet."""
    if "consent" not in schema_of(plan.runbook).model_fields or plan.parameters.get("consent") == "given":
        return False
    inventory = load_inventory()
    return not all(inventory.settings(alias).is_rehearsal for alias in plan.hosts)


def _chosen(asked: Sequence[str]) -> dict[str, HostSettings]:
    for word in asked:
        if is_rehearsal_alias(word):
            raise UnknownName(
                f"--hosts: {word} is a practice host of one run alone",
                hint="opslib rehearse --hosts 8 --serve keeps a fleet of them",
            )
    inventory = load_inventory()
    if inventory.path is None:
        raise UnknownName("--hosts: no hosts.toml was found", hint="opslib hosts says where it is looked for")
    return {alias: inventory.hosts[alias] for alias in choose_hosts(asked, inventory.hosts, inventory.path)}
