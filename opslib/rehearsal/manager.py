"""The unit manager: units loaded and unloaded, jobs queued and finished, as systemd 252 does it."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from opslib.rehearsal import processes
from opslib.rehearsal.jobs import Job, JobLines, UnitRefused
from opslib.rehearsal.journal_store import JournalStore
from opslib.rehearsal.service import Service
from opslib.rehearsal.spawning import Surroundings
from opslib.rehearsal.unit_config import UnitConfig
from opslib.rehearsal.unit_install import enabled_units, is_enabled
from opslib.rehearsal.unit_journal import manager_line
from opslib.rehearsal.unit_loading import load_unit, modification_times, unit_paths
from opslib.rehearsal.unit_semantics import ServiceState


class Manager:
    """All units of one rehearsal host."""

    def __init__(
        self,
        unit_dir: Path,
        journal: JournalStore,
        table: processes.ProcessTable,
        environment: Mapping[str, str],
        *,
        group_prefix: str = "",
        time_factor: float = 1.0,
    ) -> None:
        self.unit_dir = unit_dir
        self.journal = journal
        self._around = Surroundings(journal, table, environment, group_prefix, time_factor)
        self._services: dict[str, Service] = {}
        self._jobs: dict[str, Job] = {}
        self._known_drop_in_dirs: set[str] = set()
        self._last_job_number = 0

    # -- units -----------------------------------------------------------------------------------------------------

    def service(self, name: str) -> Service:
        """The unit by name, loaded from its files when it is not in memory (or was not found before)."""
        known = self._services.get(name)
        if known and (known.config.load_state != "not-found" or known.state is not ServiceState.DEAD):
            return known
        service = Service(self._load(name), self._around, self._on_change)
        service.stop_pending = lambda: self._job_type(name) == "stop"
        service.schedule_restart = lambda: self._schedule_restart(name)
        self._services[name] = service
        return service

    def loaded(self) -> tuple[Service, ...]:
        """The units in memory, by name."""
        return tuple(self._services[name] for name in sorted(self._services))

    def needs_daemon_reload(self, service: Service) -> bool:
        """Whether the unit's files differ from those that were loaded.

        A drop-in directory made since systemd last loaded any unit is not noticed (its path cache; seen on 252).
        """
        paths = [
            path
            for path in unit_paths(self.unit_dir, service.name)
            if path.parent == self.unit_dir or path.parent.name in self._known_drop_in_dirs
        ]
        return modification_times(paths) != service.config.modified_ns

    def daemon_reload(self) -> None:
        """Read all unit files again; what runs goes on under the new configuration."""
        manager_line(self.journal, "notice", "Reloading.", PRIORITY="6")
        for name, service in tuple(self._services.items()):
            service.reload_config(self._load(name))
        self.collect()

    def collect(self) -> None:
        """Unload units that are inactive, wanted by nothing and have no job, as systemd does (CollectMode=inactive)."""
        for name, service in tuple(self._services.items()):
            is_idle = service.state is ServiceState.DEAD and name not in self._jobs
            if is_idle and not is_enabled(self.unit_dir, name):
                del self._services[name]

    def kill_all(self) -> None:
        """End all processes of all units at once."""
        for service in self._services.values():
            service.kill_all()

    def power_off(self) -> None:
        """End all processes at once, and forget every unit and job: nobody is there to say so."""
        self.kill_all()
        for service in self._services.values():
            service.forget()
        self._services.clear()
        self._jobs.clear()

    def boot(self) -> None:
        """Start the enabled units."""
        for name in enabled_units(self.unit_dir):
            self.enqueue(name, "start")

    def _load(self, name: str) -> UnitConfig:
        self._known_drop_in_dirs = {path.name for path in self.unit_dir.glob("*.d")}
        config = load_unit(self.unit_dir, name)
        for complaint in config.warnings:
            where = f"{complaint.path}:{complaint.line}: " if complaint.path else ""
            manager_line(
                self.journal,
                "notice",
                where + complaint.text,
                unit=name,
                PRIORITY=str(complaint.priority),
                CONFIG_FILE=complaint.path,
                CONFIG_LINE=str(complaint.line or ""),
            )
        return config

    # -- jobs ------------------------------------------------------------------------------------------------------

    def enqueue(self, name: str, job_type: str) -> Job:
        """Queue a job (JobMode=replace): the same wish is merged, a contrary one is cancelled.

        Raises UnitRefused for a unit that does not exist or has a bad setting.
        """
        service = self.service(name)
        state = service.config.load_state
        if state == "not-found" and (job_type != "stop" or service.state is ServiceState.DEAD):
            text = f"Unit {name} not found." if job_type != "stop" else f"Unit {name} not loaded."
            raise UnitRefused(f"Failed to {job_type} {name}: {text}\n", 5, text)
        if state == "bad-setting" and job_type != "stop":
            raise UnitRefused(
                f"Failed to {job_type} {name}: Unit {name} has a bad unit file setting.\n"
                f"See system logs and 'systemctl status {name}' for details.\n",
                1,
            )
        current = self._jobs.get(name)
        if current and current.type == job_type:
            return current
        if current:
            self._jobs.pop(name)
            self._end(current, "canceled")
        self._last_job_number += 1
        job = self._jobs[name] = Job(self._last_job_number, job_type)
        self._soon(name, job)
        return job

    def _soon(self, name: str, job: Job) -> None:
        asyncio.get_running_loop().call_soon(self._run, name, job)

    def _run(self, name: str, job: Job) -> None:
        if self._jobs.get(name) is not job or job.is_running:
            return
        service = self.service(name)
        job.is_running = True
        begun_as = job.shown_type
        answer = service.start() if job.type == "start" else service.stop()
        if self._jobs.get(name) is not job or (job.type == "start" and begun_as == "stop"):
            return
        if answer == "again":
            job.is_running = False
        elif answer == "already":
            self._finish(service, job, "done", is_quiet=True)
        elif answer == "failed":
            self._finish(service, job, "failed")
        elif answer == "begun":
            self._lines(service).begin(job, begun_as)

    def _on_change(self, service: Service) -> None:
        job = self._jobs.get(service.name)
        if job is None:
            asyncio.get_running_loop().call_soon(self.collect)
            return
        if not job.is_running:
            self._soon(service.name, job)
            return
        state = service.active_state
        if job.type == "start" and state in {"active", "inactive", "failed"}:
            self._finish(service, job, "failed" if state == "failed" else "done")
        elif job.type != "start" and state in {"inactive", "failed"}:
            self._finish(service, job, "done")

    def _finish(self, service: Service, job: Job, result: str, *, is_quiet: bool = False) -> None:
        if not is_quiet:
            self._lines(service).end(job, result)
        if job.type == "restart" and result == "done":
            job.type, job.is_running = "start", False
            self._soon(service.name, job)
            return
        self._jobs.pop(service.name, None)
        self._end(job, result)

    def _end(self, job: Job, result: str) -> None:
        job.result = result
        job.finished.set()
        asyncio.get_running_loop().call_soon(self.collect)

    def _lines(self, service: Service) -> JobLines:
        return JobLines(self.journal, service.config, service.invocation_id)

    def _schedule_restart(self, name: str) -> None:
        if self._job_type(name) is None:
            self.enqueue(name, "restart")
        else:  # a start job waited for this moment: it becomes the restart
            job = self._jobs[name]
            job.type = "restart"
            self._soon(name, job)

    def _job_type(self, name: str) -> str | None:
        job = self._jobs.get(name)
        return job.type if job else None
