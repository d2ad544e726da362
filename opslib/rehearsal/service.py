"""One service: systemd 252's state machine (src/core/service.c) over real processes."""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isinf

from opslib.rehearsal import processes
from opslib.rehearsal.jobs import UnitRefused
from opslib.rehearsal.spawning import ExecStatus, Surroundings
from opslib.rehearsal.unit_config import UnitConfig
from opslib.rehearsal.unit_journal import manager_line
from opslib.rehearsal.unit_processes import UnitProcesses
from opslib.rehearsal.unit_semantics import (
    ACTIVE_STATES,
    RESTARTED_RESULTS,
    Exit,
    ServiceState,
    StartLimit,
    result_of,
    transition_stamps,
)
from opslib.rehearsal.unit_syntax import ExecCommand

_EMPTY_CHECK_S = 0.03  # how often a stopping unit is looked at for processes left (systemd is told by the kernel)
_STOPPING = {
    ServiceState.STOP_SIGTERM,
    ServiceState.STOP_SIGKILL,
    ServiceState.FINAL_SIGTERM,
    ServiceState.FINAL_SIGKILL,
}
_STOP_STATES = {ServiceState.STOP_SIGTERM, ServiceState.STOP_SIGKILL}
_STARTING = {ServiceState.START_PRE, ServiceState.START}


@dataclass
class Service:
    """A loaded unit and what became of it; `start` and `stop` are what jobs call, events do the rest."""

    config: UnitConfig
    around: Surroundings
    on_change: Callable[["Service"], None] = lambda _service: None
    state: ServiceState = ServiceState.DEAD
    result: str = "success"
    n_restarts: int = 0
    invocation_id: str = ""
    main_status: ExecStatus = field(default_factory=ExecStatus)
    timestamps: dict[str, tuple[float, int]] = field(default_factory=dict)
    stop_pending: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.limit = StartLimit(self.config.start_limit_interval_s, self.config.start_limit_burst)
        self.schedule_restart: Callable[[], None] = lambda: None
        self._flush_n_restarts = False
        self._forbid_restart = False
        self._position = 0
        self._timer: asyncio.TimerHandle | None = None
        self._empty_check: asyncio.TimerHandle | None = None
        self.children = UnitProcesses(self.around, self.config.name)

    # -- what is asked ---------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The unit's name with its suffix."""
        return self.config.name

    @property
    def active_state(self) -> str:
        """active, inactive, failed, activating or deactivating."""
        return ACTIVE_STATES[self.state]

    def processes(self) -> tuple[int, ...]:
        """Living processes of the unit, ascending."""
        return self.children.alive()

    # -- what jobs do ----------------------------------------------------------------------------------------------

    def start(self) -> str:
        """Begin to start: "already", "again" (wait for a state change and ask again), "failed" or "begun"."""
        if self.active_state == "active":
            return "already"
        if self.state in _STARTING:
            return "begun"
        if self.state in _STOPPING or self.state is ServiceState.AUTO_RESTART:
            return "again"
        if not self.limit.admits(time.monotonic() * self.around.time_factor):
            self._log("start-limit", f"{self.name}: Start request repeated too quickly.")
            self._enter_dead("start-limit-hit", allow_restart=False)
            return "failed"
        self.invocation_id = secrets.token_hex(16)
        self.result, self._forbid_restart = "success", False
        self.children.main_pid = 0
        self.children.command_status.clear()  # so ExecMain* of a crash are gone as soon as the next start begins
        self.main_status = ExecStatus()
        if self._flush_n_restarts:
            self.n_restarts, self._flush_n_restarts = 0, False
        self._stamp("Condition", "Assert")
        self._position = 0
        self._enter_start_pre()
        return "begun"

    def stop(self) -> str:
        """Begin to stop: "already", "quiet" (no "Stopping" line is written then) or "begun"."""
        self._forbid_restart = True
        if self.state in {ServiceState.DEAD, ServiceState.FAILED}:
            return "already"
        if self.state in _STOPPING:
            return "quiet"
        if self.state is ServiceState.AUTO_RESTART:
            self._set_state(ServiceState.DEAD)
            return "quiet"
        if self.state in _STARTING:
            self._enter_signal(ServiceState.STOP_SIGTERM, "success")
            return "quiet"
        self._enter_signal(ServiceState.STOP_SIGTERM, "success")
        return "begun"

    def reset_failed(self) -> None:
        """Forget the failure, the restart counter and the starts counted."""
        self.n_restarts, self._flush_n_restarts, self.result = 0, False, "success"
        self.limit.reset()
        if self.state is ServiceState.FAILED:
            self._set_state(ServiceState.DEAD)

    def oom_killed(self) -> None:
        """The kernel killed one of the unit's processes for memory (OOMPolicy=stop, the default)."""
        if self.state not in {*_STARTING, ServiceState.RUNNING, ServiceState.EXITED}:
            return
        self._log("oom", f"{self.name}: A process of this unit has been killed by the OOM killer.")
        self._enter_signal(ServiceState.STOP_SIGTERM, "oom-kill")

    def reload_config(self, config: UnitConfig) -> None:
        """Take a newly read configuration; what runs goes on."""
        self.config = config
        self.limit.interval_s, self.limit.burst = config.start_limit_interval_s, config.start_limit_burst

    def forget(self) -> None:
        """Wait for nothing any more: the host has lost its power."""
        self._disarm()
        self.children.forget()

    def kill_all(self) -> None:
        """End every process at once (the rehearsal host is going)."""
        self._disarm()
        if self._empty_check:
            self._empty_check.cancel()
        self.children.kill_all()

    # -- entering states -------------------------------------------------------------------------------------------

    def _enter_start_pre(self) -> None:
        if self._position < len(self.config.exec_start_pre):
            command = self.config.exec_start_pre[self._position]
            try:
                status = self.children.spawn(self.config, command, self.invocation_id, self._on_control_exit)
            except OSError as error:
                self._log(
                    "task-failed", f"{self.name}: Failed to run 'start-pre' task: {os.strerror(error.errno or 0)}"
                )
                self._enter_dead("resources")
                return
            self.children.control_pid = status.pid
            if self.state is not ServiceState.START_PRE:
                self._arm(self.config.start_timeout_s)
                self._set_state(ServiceState.START_PRE)
            return
        self._position = 0
        self._enter_start()

    def _enter_start(self) -> None:
        command = self.config.exec_start[self._position]
        try:
            self.main_status = self.children.spawn(self.config, command, self.invocation_id, self._on_main_exit)
        except OSError as error:
            self._log("task-failed", f"{self.name}: Failed to run 'start' task: {os.strerror(error.errno or 0)}")
            self._enter_signal(ServiceState.STOP_SIGTERM, "resources")
            return
        self.children.main_pid = self.main_status.pid
        if self.config.type == "oneshot" or (self.config.type == "exec" and self.children.exec_failed):
            if self.state is not ServiceState.START_PRE or not self._timer:
                self._arm(self.config.start_timeout_s)
            self._set_state(ServiceState.START)
            return
        self._disarm()
        self._set_state(ServiceState.RUNNING)

    def _enter_signal(self, state: ServiceState, result: str) -> None:
        if self.result == "success":
            self.result = result
        is_kill = state in {ServiceState.STOP_SIGKILL, ServiceState.FINAL_SIGKILL}
        if self._kill(is_kill=is_kill):
            self._arm(self.config.timeout_stop_s)
            self._set_state(state)
            self._look_for_empty()
        elif state is ServiceState.STOP_SIGTERM and self.config.send_sigkill:
            self._enter_signal(ServiceState.STOP_SIGKILL, "success")
        elif state in _STOP_STATES:
            self._enter_stop_post("success")
        elif state is ServiceState.FINAL_SIGTERM and self.config.send_sigkill:
            self._enter_signal(ServiceState.FINAL_SIGKILL, "success")
        else:
            self._enter_dead("success")

    def _enter_stop_post(self, result: str) -> None:
        self._enter_signal(ServiceState.FINAL_SIGTERM, result)

    def _enter_dead(self, result: str, *, allow_restart: bool = True) -> None:
        self._disarm()
        self.children.drain()
        if self.result == "success":
            self.result = result
        if self.result == "success":
            self._log("success", f"{self.name}: Deactivated successfully.")
        else:
            text = f"{self.name}: Failed with result '{self.result}'."
            self._log("failure", text, UNIT_RESULT=self.result)
        self._warn_of_left_overs()
        restarts = allow_restart and not self.stop_pending() and self._shall_restart()
        self._set_state(ServiceState.DEAD if self.result == "success" else ServiceState.FAILED)
        if restarts:
            self._arm(self.config.restart_s)
            self._set_state(ServiceState.AUTO_RESTART)
        else:
            self._flush_n_restarts = True

    def _enter_restart(self) -> None:
        self.n_restarts += 1
        self._flush_n_restarts = False
        text = f"{self.name}: Scheduled restart job, restart counter is at {self.n_restarts}."
        self._log("restart", text, N_RESTARTS=str(self.n_restarts))
        try:
            self.schedule_restart()
        except UnitRefused as refusal:
            self._log("task-failed", f"{self.name}: Failed to schedule restart job: {refusal.reason}")
            self._enter_dead("resources", allow_restart=False)

    def _shall_restart(self) -> bool:
        end = self.main_status.end
        if self._forbid_restart or (end and end.status in self.config.restart_prevent_statuses):
            return False
        return self.result in RESTARTED_RESULTS[self.config.restart]

    # -- events ----------------------------------------------------------------------------------------------------

    def _on_control_exit(self, command: ExecCommand, end: Exit) -> None:
        self.children.control_pid = 0
        result = self._judge(command, end, "Control process", "ExecStartPre", is_daemon=False)
        if self.state is ServiceState.START_PRE and result == "success":
            self._position += 1
            self._enter_start_pre()
        elif self.state is ServiceState.START_PRE:
            self._enter_signal(ServiceState.STOP_SIGTERM, result)
        else:
            self._after_exit_while_stopping(result)

    def _on_main_exit(self, command: ExecCommand, end: Exit) -> None:
        self.children.main_pid = 0
        is_daemon = self.config.type != "oneshot"
        result = self._judge(command, end, "Main process", "ExecStart", is_daemon=is_daemon)
        if self.result == "success" and self.state in _STOPPING:
            self.result = result
        if self.state is ServiceState.START and result == "success" and not is_daemon:
            self._next_oneshot_command()
        elif self.state in {ServiceState.START, ServiceState.RUNNING}:
            if self.config.remain_after_exit and result == "success":
                self._set_state(ServiceState.EXITED)
            else:
                self._enter_signal(ServiceState.STOP_SIGTERM, result)
        else:
            self._after_exit_while_stopping(result)

    def _next_oneshot_command(self) -> None:
        self._position += 1
        if self._position < len(self.config.exec_start):
            self._enter_start()
            return
        self._disarm()
        if self.config.remain_after_exit:
            self._set_state(ServiceState.EXITED)
        else:
            self._enter_signal(ServiceState.STOP_SIGTERM, "success")

    def _after_exit_while_stopping(self, result: str) -> None:
        if self.children.main_pid or self.children.control_pid:
            return
        if self.state in _STOP_STATES:
            self._enter_stop_post(result)
        elif self.state in _STOPPING:
            self._on_empty_check()

    def _judge(self, command: ExecCommand, end: Exit, who: str, setting: str, *, is_daemon: bool) -> str:
        self.children.drain()
        result = result_of(end, success_statuses=frozenset(self.config.success_statuses), is_daemon=is_daemon)
        if command.ignore_failure:
            result = "success"
        if result != "success":
            self._log(
                "exited" if end.code == "exited" else "killed",
                f"{self.name}: {who} exited, {end.text}",
                COMMAND=setting,
                EXIT_CODE=end.code,
                EXIT_STATUS=str(end.status),
            )
        return result

    def _on_timer(self) -> None:
        self._timer = None
        if self.state in _STARTING:
            self._log("timeout", f"{self.name}: {self.state} operation timed out. Terminating.")
            self._enter_signal(ServiceState.STOP_SIGTERM, "timeout")
        elif self.state is ServiceState.AUTO_RESTART:
            self._enter_restart()
        elif self.state in {ServiceState.STOP_SIGTERM, ServiceState.FINAL_SIGTERM} and self.config.send_sigkill:
            self._log("timeout", f"{self.name}: State '{self.state}' timed out. Killing.")
            is_stop = self.state is ServiceState.STOP_SIGTERM
            self._enter_signal(ServiceState.STOP_SIGKILL if is_stop else ServiceState.FINAL_SIGKILL, "timeout")
        elif self.state is ServiceState.STOP_SIGKILL:
            self._log("timeout", f"{self.name}: Processes still around after SIGKILL. Ignoring.")
            self._enter_stop_post("timeout")
        elif self.state in _STOPPING:
            self._enter_dead("timeout")

    def _look_for_empty(self) -> None:
        if self._empty_check is None:
            self._empty_check = asyncio.get_running_loop().call_later(_EMPTY_CHECK_S, self._on_empty_check)

    def _on_empty_check(self) -> None:
        if self._empty_check:
            self._empty_check.cancel()
        self._empty_check = None
        if self.state not in _STOPPING:
            return
        if not self.children.is_empty():
            self._look_for_empty()
        elif self.state in _STOP_STATES:
            self._enter_stop_post("success")
        else:
            self._enter_dead("success")

    # -- means -----------------------------------------------------------------------------------------------------

    def _kill(self, *, is_kill: bool) -> bool:
        targets = self.children.targets(self.config.kill_mode, is_kill=is_kill)
        for pid in targets if is_kill else ():
            who = f"{pid} ({processes.command_name(pid)})"
            self._log("kill", f"{self.name}: Killing process {who} with signal SIGKILL.")
        processes.kill(targets, signal.SIGKILL if is_kill else self.config.kill_signal)
        return bool(targets)

    def _warn_of_left_overs(self) -> None:
        for pid in self.children.group() if self.config.kill_mode in {"process", "none"} else ():
            who = f"{pid} ({processes.command_name(pid)})"
            self._log("left-over", f"{self.name}: Unit process {who} remains running after unit stopped.")

    def _log(self, kind: str, message: str, **fields: str) -> None:
        manager_line(self.around.journal, kind, message, unit=self.name, invocation_id=self.invocation_id, **fields)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        if not isinf(seconds):
            delay_s = seconds / self.around.time_factor
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _disarm(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = None

    def _set_state(self, state: ServiceState) -> None:
        before, self.state = self.active_state, state
        self._stamp(*transition_stamps(before, self.active_state))
        self.on_change(self)

    def _stamp(self, *names: str) -> None:
        for name in names:
            self.timestamps[name] = (self.around.journal.now_s(), time.monotonic_ns() // 1000)
