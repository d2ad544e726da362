"""Unit files as systemd reads them: fragments and drop-ins, keys obeyed, accepted or unknown."""

import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TypeAlias

from opslib.rehearsal.unit_semantics import RESTARTED_RESULTS, parse_time_span
from opslib.rehearsal.unit_syntax import ExecCommand, expand_specifiers, logical_lines, parse_exec, split_words

# Keys that are obeyed here, and keys of systemd that are accepted without effect; any other is an unknown key.
_OBEYED = {
    "Unit": {"Description", "StartLimitIntervalSec", "StartLimitInterval", "StartLimitBurst"},
    "Service": {
        "Type", "ExecStartPre", "ExecStart", "Environment", "EnvironmentFile", "WorkingDirectory", "Restart",
        "RestartSec", "TimeoutStartSec", "TimeoutStopSec", "TimeoutSec", "KillMode", "KillSignal",
        "SendSIGKILL", "SuccessExitStatus", "RestartPreventExitStatus", "RemainAfterExit", "SyslogIdentifier",
        "StartLimitInterval", "StartLimitBurst", "LogRateLimitIntervalSec", "LogRateLimitBurst",
    },
    "Install": {"WantedBy", "RequiredBy", "Alias", "Also"},
}  # fmt: skip
_HARMLESS = {
    "Unit": {"Documentation", "After", "Before", "Wants", "Requires", "BindsTo", "PartOf", "Conflicts",
             "ConditionPathExists", "AssertPathExists", "RequiresMountsFor", "DefaultDependencies", "OnFailure"},
    "Service": {"User", "Group", "SupplementaryGroups", "StandardOutput", "StandardError", "StandardInput",
                "SyslogLevelPrefix", "LimitNOFILE", "LimitMEMLOCK", "LimitSTACK", "LimitNPROC", "LimitCORE",
                "OOMPolicy", "OOMScoreAdjust", "Nice", "UMask", "TasksMax", "MemoryMax", "MemoryHigh", "CPUWeight",
                "CPUAffinity", "Delegate", "NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectSystem",
                "ProtectHome", "ReadWritePaths", "RuntimeDirectory", "StateDirectory", "CacheDirectory",
                "Slice", "PassEnvironment", "UnsetEnvironment", "NotifyAccess"},
    "Install": set(),
}  # fmt: skip
# What systemd 252 says of a value that it cannot read, by key.
_UNREADABLE = {
    "ExecStart": 'Unbalanced quoting, ignoring: "{}"',
    "ExecStartPre": 'Unbalanced quoting, ignoring: "{}"',
    "Environment": "Invalid syntax, ignoring: {}",
    "WorkingDirectory": "WorkingDirectory= path is not absolute: {}",
    "Type": "Failed to parse service type, ignoring: {}",
    "Restart": "Failed to parse service restart specifier, ignoring: {}",
    "RestartSec": "Failed to parse sec value, ignoring: {}",
    "StartLimitIntervalSec": "Failed to parse sec value, ignoring: {}",
    "TimeoutStartSec": "Failed to parse TimeoutStartSec= parameter, ignoring: {}",
    "TimeoutStopSec": "Failed to parse time value, ignoring: {}",
    "KillMode": "Failed to parse kill mode specification, ignoring: {}",
    "RemainAfterExit": "Failed to parse boolean value, ignoring: {}",
    "SendSIGKILL": "Failed to parse boolean value, ignoring: {}",
    "StartLimitBurst": "Failed to parse unsigned value, ignoring: {}",
    "LogRateLimitIntervalSec": "Failed to parse sec value, ignoring: {}",
    "LogRateLimitBurst": "Failed to parse unsigned value, ignoring: {}",
}
_TYPES = {"simple", "exec", "oneshot"}
_NOT_HERE = {("Type", "notify")}  # systemd's, not rehearsed: a unit that needs it is refused, not started otherwise
_KILL_MODES = {"control-group", "process", "mixed", "none"}


Setter: TypeAlias = "Callable[[UnitConfig, str, str], None]"


@dataclass(frozen=True)
class Complaint:
    """A line that systemd complains about in the journal when it loads the unit."""

    path: str
    line: int
    text: str
    priority: int = 4


@dataclass
class UnitConfig:
    """What the unit files say, after defaults (systemd 252)."""

    name: str
    fragment_path: str = ""
    drop_in_paths: tuple[str, ...] = ()
    load_state: str = "loaded"
    description: str = ""
    type: str = "simple"
    exec_start_pre: list[ExecCommand] = field(default_factory=list)
    exec_start: list[ExecCommand] = field(default_factory=list)
    environment: list[str] = field(default_factory=list)
    environment_files: list[tuple[str, bool]] = field(default_factory=list)  # path, may be missing
    working_directory: str = ""
    restart: str = "no"
    restart_s: float = 0.1
    timeout_start_s: float | None = None
    timeout_stop_s: float = 90.0
    kill_mode: str = "control-group"
    kill_signal: int = 15
    send_sigkill: bool = True
    success_statuses: set[int | str] = field(default_factory=set)
    restart_prevent_statuses: set[int | str] = field(default_factory=set)
    remain_after_exit: bool = False
    syslog_identifier: str = ""
    start_limit_interval_s: float = 10.0
    start_limit_burst: int = 5
    log_rate_limit_interval_s: float = 0.0
    log_rate_limit_burst: int = 0
    wanted_by: list[str] = field(default_factory=list)
    warnings: list[Complaint] = field(default_factory=list)
    modified_ns: tuple[tuple[str, int], ...] = ()

    @property
    def start_timeout_s(self) -> float:
        """TimeoutStartSec=; without it 90 s, and no limit for a oneshot."""
        if self.timeout_start_s is not None:
            return self.timeout_start_s
        return inf if self.type == "oneshot" else 90.0


def unit_paths(unit_dir: Path, name: str) -> tuple[Path, ...]:
    """The unit's file and its drop-ins, in the order in which they are read; those that exist."""
    drop_ins = sorted((unit_dir / f"{name}.d").glob("*.conf"))
    return tuple(path for path in (unit_dir / name, *drop_ins) if path.is_file())


def modification_times(paths: Iterable[Path]) -> tuple[tuple[str, int], ...]:
    """Path and modification time of each file: when it differs, the unit needs a daemon-reload."""
    return tuple((str(path), path.stat().st_mtime_ns) for path in paths)


def load_unit(unit_dir: Path, name: str) -> UnitConfig:
    """The unit as systemd would load it now; `load_state` is not-found or bad-setting where it cannot."""
    paths = unit_paths(unit_dir, name)
    config = UnitConfig(name=name, description=name, modified_ns=modification_times(paths))
    if unit_dir / name not in paths:
        config.load_state = "not-found"
        return config
    config.fragment_path = str(unit_dir / name)
    config.drop_in_paths = tuple(str(path) for path in paths[1:])
    for path in paths:
        _read_into(config, str(path), path.read_text("utf-8", "replace"))
    _verify(config)
    return config


def _read_into(config: UnitConfig, path: str, text: str) -> None:
    known_section = True
    section = ""
    for number, line in logical_lines(text):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            known_section = section in _OBEYED or section.startswith("X-")
            if not known_section:
                config.warnings.append(Complaint(path, number, f"Unknown section '{section}'. Ignoring."))
            continue
        key, separator, value = line.partition("=")
        key, value = key.strip(), value.strip()
        if not separator:
            config.warnings.append(Complaint(path, number, "Missing '=', ignoring line."))
        elif not section:
            config.warnings.append(Complaint(path, number, "Assignment outside of section. Ignoring."))
        elif known_section and not section.startswith("X-") and not key.startswith("X-"):
            _assign(config, Complaint(path, number, ""), section, key, value)


def _assign(config: UnitConfig, where: Complaint, section: str, key: str, value: str) -> None:
    if key in _HARMLESS[section]:
        return
    if key not in _OBEYED[section]:
        text = f"Unknown key '{key}' in section [{section}], ignoring."
        config.warnings.append(Complaint(where.path, where.line, text))
        return
    try:
        _SETTERS.get(key, _ignore)(config, key, expand_specifiers(value, config.name))
    except (ValueError, IndexError, KeyError):
        wording = _UNREADABLE.get(key, "Failed to parse value, ignoring: {}")
        config.warnings.append(Complaint(where.path, where.line, wording.format(value)))
        if key == "WorkingDirectory":
            config.load_state = "bad-setting"
        if (key, value) in _NOT_HERE:
            config.warnings[-1] = Complaint(where.path, where.line, f"The practice host knows no {key}={value}", 3)
            config.load_state = "bad-setting"


def environment_of(config: UnitConfig) -> dict[str, str]:
    """Environment= and then EnvironmentFile= (which wins); OSError where a needed file cannot be read."""
    environment = dict(item.partition("=")[::2] for item in config.environment)
    for path, may_be_missing in config.environment_files:
        try:
            text = Path(path).read_text("utf-8", "replace")
        except OSError:
            if may_be_missing:
                continue
            raise
        for _, line in logical_lines(text):
            name, separator, value = line.partition("=")
            if separator:
                environment[name.strip()] = " ".join(split_words(value)) if value[:1] in "\"'" else value.strip()
    return environment


def _verify(config: UnitConfig) -> None:
    is_oneshot = config.type == "oneshot"
    if config.load_state == "bad-setting":
        text = f"{config.name}: Unit configuration has fatal error, unit will not be started."
        config.warnings.append(Complaint("", 0, text, 3))
        return
    if not config.exec_start:
        reason = "Service has no ExecStart=, ExecStop=, or SuccessAction=."
    elif len(config.exec_start) > 1 and not is_oneshot:
        reason = "Service has more than one ExecStart= setting, which is only allowed for Type=oneshot services."
    elif is_oneshot and config.restart in {"always", "on-success"}:
        reason = (
            "Service has Restart= set to either always or on-success, which isn't allowed for Type=oneshot services."
        )
    else:
        return
    config.load_state = "bad-setting"
    config.warnings.append(Complaint("", 0, f"{config.name}: {reason} Refusing.", 3))


def _ignore(_config: UnitConfig, _key: str, _value: str) -> None:
    """Keys that are read elsewhere or only accepted."""


def _append_exec(config: UnitConfig, key: str, value: str) -> None:
    commands = config.exec_start if key == "ExecStart" else config.exec_start_pre
    if value:
        commands.append(parse_exec(value))
    else:
        commands.clear()


def _add_environment(config: UnitConfig, _key: str, value: str) -> None:
    if not value:
        config.environment.clear()
    for item in split_words(value):
        name = item.partition("=")[0] + "="
        config.environment[:] = [old for old in config.environment if not old.startswith(name)] + [item]


def _add_environment_file(config: UnitConfig, _key: str, value: str) -> None:
    if value:
        config.environment_files.append((value.removeprefix("-"), value.startswith("-")))
    else:
        config.environment_files.clear()


def _set_text(attribute: str, allowed: set[str] | None = None) -> Setter:
    def set_value(config: UnitConfig, _key: str, value: str) -> None:
        if allowed is not None and value not in allowed:
            raise ValueError(value)
        setattr(config, attribute, value)

    return set_value


def _set_span(*attributes: str) -> Setter:
    def set_value(config: UnitConfig, _key: str, value: str) -> None:
        seconds = parse_time_span(value)
        for attribute in attributes:
            setattr(config, attribute, seconds or (inf if "timeout" in attribute else seconds))

    return set_value


def _set_flag(attribute: str) -> Setter:
    def set_value(config: UnitConfig, _key: str, value: str) -> None:
        words = {
            "yes": True,
            "true": True,
            "on": True,
            "1": True,
            "no": False,
            "false": False,
            "off": False,
            "0": False,
        }
        if value.lower() not in words:
            raise ValueError(value)
        setattr(config, attribute, words[value.lower()])

    return set_value


def _add_statuses(attribute: str) -> Setter:
    def set_value(config: UnitConfig, _key: str, value: str) -> None:
        statuses: set[int | str] = getattr(config, attribute)
        if not value:
            statuses.clear()
        for word in value.split():
            statuses.add(int(word) if word.isdigit() else signal.Signals["SIG" + word.removeprefix("SIG")].name[3:])

    return set_value


def _set_kill_signal(config: UnitConfig, _key: str, value: str) -> None:
    config.kill_signal = int(value) if value.isdigit() else signal.Signals["SIG" + value.removeprefix("SIG")].value


def _set_directory(config: UnitConfig, _key: str, value: str) -> None:
    if value and not value.lstrip("-").startswith(("/", "~")):
        raise ValueError(value)
    config.working_directory = value


def _set_number(attribute: str) -> Setter:
    def set_value(config: UnitConfig, _key: str, value: str) -> None:
        setattr(config, attribute, int(value))

    return set_value


def _add_wanted_by(config: UnitConfig, _key: str, value: str) -> None:
    config.wanted_by += value.split()


_SETTERS: dict[str, Setter] = {
    "Description": _set_text("description"),
    "StartLimitIntervalSec": _set_span("start_limit_interval_s"),
    "StartLimitInterval": _set_span("start_limit_interval_s"),
    "StartLimitBurst": _set_number("start_limit_burst"),
    "LogRateLimitIntervalSec": _set_span("log_rate_limit_interval_s"),
    "LogRateLimitBurst": _set_number("log_rate_limit_burst"),
    "Type": _set_text("type", _TYPES),
    "ExecStartPre": _append_exec,
    "ExecStart": _append_exec,
    "Environment": _add_environment,
    "EnvironmentFile": _add_environment_file,
    "WorkingDirectory": _set_directory,
    "Restart": _set_text("restart", set(RESTARTED_RESULTS)),
    "RestartSec": _set_span("restart_s"),
    "TimeoutStartSec": _set_span("timeout_start_s"),
    "TimeoutStopSec": _set_span("timeout_stop_s"),
    "TimeoutSec": _set_span("timeout_start_s", "timeout_stop_s"),
    "KillMode": _set_text("kill_mode", _KILL_MODES),
    "KillSignal": _set_kill_signal,
    "SendSIGKILL": _set_flag("send_sigkill"),
    "SuccessExitStatus": _add_statuses("success_statuses"),
    "RestartPreventExitStatus": _add_statuses("restart_prevent_statuses"),
    "RemainAfterExit": _set_flag("remain_after_exit"),
    "SyslogIdentifier": _set_text("syslog_identifier"),
    "WantedBy": _add_wanted_by,
}
