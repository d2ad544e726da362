"""The directives of a unit file: obeyed, accepted without effect, or unknown; and how a value is read (systemd 252)."""

import signal
from collections.abc import Callable
from math import inf
from typing import TypeAlias

from opslib.rehearsal.unit_config import Complaint, UnitConfig
from opslib.rehearsal.unit_semantics import RESTARTED_RESULTS, parse_time_span
from opslib.rehearsal.unit_syntax import expand_specifiers, parse_exec, split_words

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

Setter: TypeAlias = Callable[[UnitConfig, str, str], None]


def is_section(name: str) -> bool:
    """Whether the section is one of a service's, or one that systemd passes over (X-)."""
    return name in _OBEYED or name.startswith("X-")


def assign(config: UnitConfig, where: Complaint, section: str, key: str, value: str) -> None:
    """Take one line in; what systemd would say about it is appended to the warnings, at the place `where`."""
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
