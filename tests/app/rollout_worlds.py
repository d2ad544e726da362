"""Hosts for a rollout whose runs are played: in memory, where a test takes a moment, or practice hosts."""

import hashlib
from contextlib import contextmanager, suppress

from opslib.app import rollout_dry, rollout_host, rollout_running, rollout_truth, rollout_undo
from opslib.domain.host import HostSettings
from opslib.domain.lifecycle import LifecycleReport
from opslib.domain.lock import LockHolder, lock_held
from opslib.domain.rollout import UnitFound
from opslib.domain.states import State
from opslib.errors import HostUnreachable
from opslib.rehearsal.fleet import RehearsalFleet, inventory_text
from opslib.workflow import lifecycle
from opslib.workflow.install import apply_plan, plan_install, read_unit_text
from opslib.workflow.launch import start_unit, stop_unit
from opslib.workflow.lock import hold_lock
from opslib.workflow.unit_found import gather_found, is_serving
from tests.conftest import opened

UNIT = "vllm-minimax"
ALIASES = tuple(f"practice-{number}" for number in range(1, 5))
ANA = LockHolder(user="ana", controller="desk", process_id=7, runbook="90-deploy", since="2026-11-29T10:00:00Z")


class _Host:
    """A host of the memory: a name, and whether it answers."""

    def __init__(self, world, alias):
        self.world, self.settings = world, HostSettings(alias=alias, address="127.0.0.1", is_rehearsal=True)

    def run(self, argv, **_options):
        del argv
        if self.settings.alias in self.world.away:
            raise HostUnreachable("no route to host", host=self.settings.alias)

    def close(self):
        """Nothing is open."""


class MemoryWorld:
    """Four hosts in memory, at the seam between the rollout and what it asks of a host."""

    def __init__(self, monkeypatch, directory):
        self.units, self.up, self.starts, self.away, self.locked = {}, set(), {}, set(), set()
        settings = [
            HostSettings(alias=alias, address="127.0.0.1", port=port, is_rehearsal=True, labels=("practice",))
            for port, alias in enumerate(ALIASES, 3001)
        ]
        self.inventory = directory / "hosts.toml"
        self.inventory.write_text(inventory_text(settings))
        found = lambda host, _unit, replaces=None: self.found(host.settings.alias)  # noqa: E731
        for module in (rollout_host, rollout_truth, rollout_undo, rollout_dry):
            monkeypatch.setattr(module, "gather_found", found)
        for module in (rollout_running, rollout_dry):
            monkeypatch.setattr(module, "open_bound_host", lambda alias: _Host(self, alias))
        for module in (rollout_host, rollout_undo):
            monkeypatch.setattr(module, "at_work", self._at_work)
        monkeypatch.setattr(rollout_running, "CarefulHost", lambda host, **_options: host)
        monkeypatch.setattr(rollout_running, "is_serving", lambda host, _unit: self.serves(host.settings.alias))
        monkeypatch.setattr(rollout_host, "start_unit", lambda host, _unit: self.start(host.settings.alias))
        monkeypatch.setattr(rollout_undo, "restore_found", self._restore)
        monkeypatch.setattr(
            lifecycle, "drain", lambda host, unit, **_options: self._act("drain", host, unit, self.stop)
        )
        monkeypatch.setattr(
            lifecycle, "start", lambda host, unit, **_options: self._act("start", host, unit, self.start)
        )

    def deploy(self, alias, text):
        """Install and start."""
        self.units[alias] = text
        self.start(alias, is_restart=True)

    def text(self, alias):
        """The unit as it lies there."""
        return self.units.get(alias)

    def serves(self, alias):
        """Whether it serves."""
        if alias in self.away:
            raise HostUnreachable("no route to host", host=alias)
        return alias in self.up

    def stop(self, alias):
        """Stop the unit."""
        self.up.discard(alias)

    def start(self, alias, *, is_restart=False):
        """Start the unit."""
        if is_restart or alias not in self.up:
            self.starts[alias] = self.starts.get(alias, 0) + 1
        self.up.add(alias)

    def found(self, alias):
        """How the unit stands."""
        if alias in self.away:
            raise HostUnreachable("no route to host", host=alias)
        text, is_up = self.units.get(alias), alias in self.up
        digest = None if text is None else hashlib.sha256(text.encode()).hexdigest()
        start = f"{self.starts.get(alias, 0):032x}"
        return UnitFound(files={"/unit": digest}, is_up=is_up, is_serving=is_up, invocation_id=start, boot_id="b")

    @contextmanager
    def cut_off(self, alias):
        """While the block lasts, the host can't be reached."""
        self.away.add(alias)
        yield
        self.away.discard(alias)

    @contextmanager
    def locked_by_ana(self, alias):
        """While the block lasts, somebody else is at work on the unit."""
        self.locked.add(alias)
        yield
        self.locked.discard(alias)

    @contextmanager
    def _at_work(self, _rollout, host):
        if host.settings.alias in self.locked:
            raise lock_held(UNIT, ANA, host=host.settings.alias)
        yield

    def _act(self, verb, host, unit, act):
        act(host.settings.alias)
        return LifecycleReport(
            host=host.settings.alias, unit=unit, verb=verb, state=State.OK, summary=verb, checks=(), duration_s=0.0
        )

    def _restore(self, host, _unit, found, *, replaces=None):
        del replaces
        alias = host.settings.alias
        known = {hashlib.sha256(text.encode()).hexdigest(): text for text in KEPT}
        self.units[alias] = known.get(found.files["/unit"])
        self.start(alias, is_restart=True) if found.is_up else self.stop(alias)
        return "1 files as before"


OLD, NEW = (f"[Unit]\nDescription={word}\n[Service]\nExecStart=/bin/sleep 1000\n" for word in ("old", "new"))
KEPT = (OLD, NEW)


class FleetWorld:
    """Four practice hosts; the unit is no engine, so that it starts in a moment."""

    def __init__(self, monkeypatch, fleet: RehearsalFleet):
        del monkeypatch
        self.fleet, self.inventory = fleet, fleet.inventory
        self.settings = {host.settings.alias: host.settings for host in fleet.hosts}

    def _with(self, alias, act):
        with opened(self.settings[alias]) as host:
            return act(host)

    def deploy(self, alias, text):
        """Install and start."""

        def act(host):
            apply_plan(host, plan_install(host, unit=UNIT, unit_text=text))
            start_unit(host, UNIT)

        self._with(alias, act)

    def text(self, alias):
        """The unit as it lies there."""
        return self._with(alias, lambda host: read_unit_text(host, UNIT))

    def serves(self, alias):
        """Whether it serves."""
        return self._with(alias, lambda host: is_serving(host, UNIT))

    def stop(self, alias):
        """Stop the unit."""
        self._with(alias, lambda host: stop_unit(host, UNIT))

    def found(self, alias):
        """How the unit stands."""
        return self._with(alias, lambda host: gather_found(host, UNIT))

    @contextmanager
    def cut_off(self, alias):
        """While the block lasts, the host can't be reached."""
        number = ALIASES.index(alias)
        self.fleet.hosts[number].drill("cut-link", "600")
        yield
        self.fleet.hosts[number].drill("cut-link", "0")

    @contextmanager
    def locked_by_ana(self, alias):
        """While the block lasts, somebody else is at work on the unit."""
        with opened(self.settings[alias]) as host, hold_lock(host, UNIT, ANA), suppress(StopIteration):
            yield
