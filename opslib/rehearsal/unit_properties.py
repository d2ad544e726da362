"""What `systemctl show` prints about a service: names, order and formats of systemd 252."""

from opslib.rehearsal.manager import Manager
from opslib.rehearsal.service import Service
from opslib.rehearsal.spawning import ExecStatus
from opslib.rehearsal.unit_install import unit_file_state
from opslib.rehearsal.unit_semantics import ServiceState, format_time_span, format_timestamp
from opslib.rehearsal.unit_syntax import ExecCommand


def unit_properties(manager: Manager, service: Service, *, timestamp_style: str = "pretty") -> list[tuple[str, str]]:
    """Property names and values in systemctl's order; commands appear once each, empty values are kept."""
    if service.config.load_state == "not-found" and service.state is ServiceState.DEAD:
        return _not_found(service.name)
    return [
        *_of_the_service(service, timestamp_style),
        *_of_its_processes(service),
        *_of_the_unit(manager, service, timestamp_style),
    ]


def _of_the_service(service: Service, timestamp_style: str) -> list[tuple[str, str]]:
    config, status = service.config, service.main_status
    rows: list[tuple[str, str]] = [
        ("Type", config.type),
        ("ExitType", "main"),
        ("Restart", config.restart),
        ("NotifyAccess", "none"),
        ("RestartUSec", format_time_span(config.restart_s)),
        ("TimeoutStartUSec", format_time_span(config.start_timeout_s)),
        ("TimeoutStopUSec", format_time_span(config.timeout_stop_s)),
        ("RemainAfterExit", _flag(config.remain_after_exit)),
        ("MainPID", str(service.children.main_pid)),
        ("ControlPID", str(service.children.control_pid)),
        ("StatusErrno", "0"),
        ("Result", service.result),
        ("NRestarts", str(service.n_restarts)),
        *_moment("ExecMainStart", status.start_at_s, status.start_monotonic_us, timestamp_style),
        *_moment("ExecMainExit", status.exit_at_s, status.exit_monotonic_us, timestamp_style),
        ("ExecMainPID", str(status.pid)),
        ("ExecMainCode", str(status.end.number if status.end else 0)),
        ("ExecMainStatus", str(status.end.status if status.end else 0)),
    ]
    for setting, commands in (("ExecStartPre", config.exec_start_pre), ("ExecStart", config.exec_start)):
        for command in commands:
            run = service.children.command_status.get(command, ExecStatus())
            rows.append((setting, _command(command, run, timestamp_style)))
    return rows


def _of_its_processes(service: Service) -> list[tuple[str, str]]:
    config = service.config
    group = f"/system.slice/{service.name}" if service.active_state in {"active", "activating", "deactivating"} else ""
    return [
        ("Slice", "system.slice"),
        ("ControlGroup", group),
        ("MemoryCurrent", "[not set]"),
        ("TasksCurrent", "[not set]"),
        ("Environment", " ".join(map(_quoted, config.environment))),
        *[
            ("EnvironmentFiles", f"{path} (ignore_errors={_flag(may_miss)})")
            for path, may_miss in config.environment_files
        ],
        ("WorkingDirectory", config.working_directory),
        ("KillMode", config.kill_mode),
        ("KillSignal", str(config.kill_signal)),
        ("SendSIGKILL", _flag(config.send_sigkill)),
    ]


def _of_the_unit(manager: Manager, service: Service, timestamp_style: str) -> list[tuple[str, str]]:
    config = service.config
    rows = [
        ("Id", service.name),
        ("Names", service.name),
        ("Description", config.description),
        ("LoadState", config.load_state),
        ("ActiveState", service.active_state),
        ("FreezerState", "running"),
        ("SubState", service.state.value),
        ("FragmentPath", config.fragment_path),
        ("DropInPaths", " ".join(config.drop_in_paths)),
        ("UnitFileState", unit_file_state(manager.unit_dir, config)),
        ("UnitFilePreset", "enabled"),
    ]
    for name in ("StateChange", "InactiveExit", "ActiveEnter", "ActiveExit", "InactiveEnter"):
        rows += _moment(name, *service.timestamps.get(name, (0.0, 0)), timestamp_style)
    rows += [
        ("CanStart", _flag(config.load_state == "loaded")),
        ("CanStop", "yes"),
        ("CanReload", "no"),
        ("NeedDaemonReload", _flag(manager.needs_daemon_reload(service))),
        ("ConditionResult", _flag("Condition" in service.timestamps)),
        ("StartLimitIntervalUSec", format_time_span(config.start_limit_interval_s)),
        ("StartLimitBurst", str(config.start_limit_burst)),
        ("InvocationID", service.invocation_id),
        ("CollectMode", "inactive"),
    ]
    return rows


def _not_found(name: str) -> list[tuple[str, str]]:
    return [
        ("Type", ""),
        ("Restart", "no"),
        ("RestartUSec", "100ms"),
        ("TimeoutStartUSec", "1min 30s"),
        ("TimeoutStopUSec", "1min 30s"),
        ("MainPID", "0"),
        ("ControlPID", "0"),
        ("Result", "success"),
        ("NRestarts", "0"),
        ("ExecMainStartTimestamp", ""),
        ("ExecMainStartTimestampMonotonic", "0"),
        ("ExecMainExitTimestamp", ""),
        ("ExecMainExitTimestampMonotonic", "0"),
        ("ExecMainPID", "0"),
        ("ExecMainCode", "0"),
        ("ExecMainStatus", "0"),
        ("Id", name),
        ("Names", name),
        ("Description", name),
        ("LoadState", "not-found"),
        ("ActiveState", "inactive"),
        ("FreezerState", "running"),
        ("SubState", "dead"),
        ("FragmentPath", ""),
        ("DropInPaths", ""),
        ("UnitFileState", ""),
        ("UnitFilePreset", ""),
        ("StateChangeTimestamp", ""),
        ("ActiveEnterTimestamp", ""),
        ("ActiveExitTimestamp", ""),
        ("InactiveEnterTimestamp", ""),
        ("NeedDaemonReload", "no"),
        ("LoadError", f'org.freedesktop.systemd1.NoSuchUnit "Unit {name} not found."'),
        ("InvocationID", ""),
        ("CollectMode", "inactive"),
    ]


def _moment(name: str, at_s: float, monotonic_us: int, style: str) -> list[tuple[str, str]]:
    return [
        (f"{name}Timestamp", format_timestamp(at_s, style)),
        (f"{name}TimestampMonotonic", str(monotonic_us)),
    ]


def _command(command: ExecCommand, run: ExecStatus, style: str) -> str:
    end = run.end
    ended = f"code={end.code} ; status={end.status}" if end else "code=(null) ; status=0/0"
    start, stop = (format_timestamp(at, style) or "n/a" for at in (run.start_at_s, run.exit_at_s))
    return (
        f"{{ path={command.path} ; argv[]={' '.join(command.argv)} ; ignore_errors={_flag(command.ignore_failure)} ; "
        f"start_time=[{start}] ; stop_time=[{stop}] ; pid={run.pid} ; {ended} }}"
    )


def _quoted(item: str) -> str:
    if any(ch in item for ch in " \t\n\"'\\"):
        escaped = item.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return item


def _flag(value: bool) -> str:
    return "yes" if value else "no"
