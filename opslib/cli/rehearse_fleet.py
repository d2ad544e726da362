"""`opslib rehearse --hosts N`: a rollout over practice hosts, or the hosts alone for commands of another terminal."""

import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opslib.app.catalogue import default_runs_dir
from opslib.app.rollout_planning import plan_rollout
from opslib.app.signals import signals_to
from opslib.cli.rollout import carry_out
from opslib.cli.rollout_options import care_of
from opslib.cli.rollout_screen import RolloutScreen
from opslib.cli.rollout_told import tell_plan
from opslib.cli.showing import show
from opslib.errors import BadParameter
from opslib.rehearsal.fleet import LABEL, RehearsalFleet, start_fleet
from opslib.rehearsal.scenarios import load_scenario

RUNBOOK = "90-deploy"
# A rollout is what is rehearsed, not a benchmark: it measures little, so that eight hosts take minutes on a laptop.
_LIGHT = {"concurrency_levels": [1, 4], "benchmark_repeats": 1}


@dataclass(frozen=True)
class Wanted:
    """Which hosts, as they were asked for."""

    n_hosts: int
    scenario: str | None
    scenario_on: tuple[str, ...]

    @property
    def scenarios(self) -> dict[int, str]:
        """What goes wrong on which host; raises BadParameter for what is not N=SCENARIO, and for a host given twice."""
        found: dict[int, str] = {}
        for word in self.scenario_on:
            parts = re.fullmatch(r"(?:practice-)?([0-9]{1,3})=(\S+)", word)
            if not parts:
                raise BadParameter(f"--scenario-on {word}: expected N=SCENARIO, as 3=sampler-oom")
            if int(parts[1]) in found:
                raise BadParameter(f"--scenario-on {word}: host {int(parts[1])} has a scenario already")
            found[int(parts[1])] = parts[2]
        return found


def rehearse_fleet(
    wanted: Wanted,
    given: Mapping[str, Any],
    care: Mapping[str, Any],
    runs_dir: Path | None,
    *,
    is_serve: bool,
    as_json: bool,
) -> int:
    """Start the hosts, and roll the deploy out over them or keep them there; they end with the command."""
    chosen, scenarios, default = care_of(care), wanted.scenarios, wanted.scenario or "healthy"
    with start_fleet(wanted.n_hosts, scenarios, default=default) as fleet:
        os.environ["OPSLIB_HOSTS"] = str(fleet.inventory)  # for every host's own run as well
        if is_serve:
            return _serve(fleet, as_json=as_json)
        own: dict[str, Any] = {}
        for name in {default, *scenarios.values()}:
            own |= load_scenario(name).parameters
        screen = RolloutScreen(is_quiet_stdout=as_json)
        plan = plan_rollout(RUNBOOK, [LABEL], {"consent": "given", **_LIGHT, **own, **given}, chosen)
        tell_plan(screen, plan)
        return carry_out(screen, plan, runs_dir or default_runs_dir(), as_json=as_json, can_go_on=False)


def _serve(fleet: RehearsalFleet, *, as_json: bool) -> int:
    """Keep the hosts there until somebody ends this command."""
    ended = threading.Event()
    with signals_to(lambda _number: ended.set()):
        _tell(fleet, as_json=as_json)
        while not ended.wait(1.0):
            pass
    return 0


def _tell(fleet: RehearsalFleet, *, as_json: bool) -> None:
    """Where the hosts are, what goes wrong there, and how another terminal gets at them."""
    if as_json:
        show(json.dumps({"inventory": str(fleet.inventory), "hosts": list(fleet.aliases)}))
        return
    first, last, n_hosts = fleet.aliases[0], fleet.aliases[-1], len(fleet.hosts)
    named = f"{n_hosts} practice hosts, {first} to {last}" if n_hosts > 1 else f"a practice host, {first}"
    show(f"{named}, label {LABEL}")
    faults = [f"{host.settings.alias}: {host.scenario}" for host in fleet.hosts if host.scenario != "healthy"]
    show("".join(f"  {fault}\n" for fault in faults), end="")
    show("In another terminal, as long as this command runs (Ctrl-C ends it, and the hosts):")
    show(f"  export OPSLIB_HOSTS={fleet.inventory}")
    show(f"  opslib survey {' '.join(fleet.aliases[:2])}")
    deploy = f"rollout deploy --hosts {LABEL}" if n_hosts > 1 else f"run deploy -p host={first} -p consent=given"
    show(f"  opslib {deploy}")
