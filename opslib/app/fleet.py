"""Which hosts a fleet is, what is planned for it, and the practice fleet that a kernel starts for itself."""

import atexit
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opslib.app.binding import REHEARSAL
from opslib.domain.parameter_parts import ALL_HOSTS
from opslib.domain.parameters import FleetParameters
from opslib.domain.rollout import RolloutPlan, choose_hosts
from opslib.hosts.inventory import load_inventory

if TYPE_CHECKING:
    from opslib.rehearsal.fleet import RehearsalFleet

N_PRACTICE_HOSTS = 3
_practice: "list[RehearsalFleet]" = []


def fleet_hosts(words: Sequence[str]) -> tuple[str, ...]:
    """The aliases that aliases, labels and `all` mean here; raises UnknownName, BadParameter, contacts nobody."""
    inventory = load_inventory()
    where = Path(inventory.path).name if inventory.path else "no hosts.toml"
    return choose_hosts(words, inventory.hosts, where)


def is_practice(parameters: FleetParameters) -> bool:
    """Whether the practice hosts are meant, which the run starts for itself."""
    return parameters.hosts == [REHEARSAL]


def start_practice() -> None:
    """Start practice hosts, once in this process, and let its inventory be theirs; they end with it."""
    if not _practice:
        from opslib.rehearsal.fleet import start_fleet  # noqa: PLC0415 - only a rehearsal needs it

        _practice.append(start_fleet(N_PRACTICE_HOSTS))
        atexit.register(_practice[0].close)
    os.environ["OPSLIB_HOSTS"] = str(_practice[0].inventory)


def plan_fleet(parameters: FleetParameters) -> RolloutPlan:
    """The rollout that the parameters ask for; raises BadParameter and UnknownName, contacts nobody."""
    from opslib.app.rollout_planning import Care, plan_rollout  # noqa: PLC0415 - it checks as `opslib run` does

    words = [ALL_HOSTS] if is_practice(parameters) else parameters.hosts
    consent = {"consent": "given"} if parameters.consent == "given" else {}
    given = {**parameters.runbook_parameters, **_taken(parameters.runbook, consent | _ticket(parameters))}
    care = {name: getattr(parameters, name) for name in ("canary", "wave", "max_failures", "pause_s", "min_serving")}
    return plan_rollout(parameters.runbook, words, given, Care(**care))


def _ticket(parameters: FleetParameters) -> dict[str, str]:
    return {"ticket": parameters.ticket} if parameters.ticket else {}


def _taken(runbook: str, given: dict[str, str]) -> dict[str, str]:
    """Those of the values that the runbook has a parameter for."""
    from opslib.app.catalogue import find_runbook  # noqa: PLC0415
    from opslib.domain.parameters import schema_of  # noqa: PLC0415

    fields = schema_of(find_runbook(runbook)[0]).model_fields
    return {name: value for name, value in given.items() if name in fields}
