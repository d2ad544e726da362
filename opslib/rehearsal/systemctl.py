"""systemctl's verbs over the unit manager, for the options that the kit uses (systemctl(1), systemd 252)."""

import json
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from opslib.rehearsal.jobs import Job, UnitRefused
from opslib.rehearsal.manager import Manager
from opslib.rehearsal.options import NO_VALUE, VALUE, OptionRefused, Parsed, parse_options
from opslib.rehearsal.service import Service
from opslib.rehearsal.terminal import Terminal
from opslib.rehearsal.unit_install import disable, enable, unit_file_state
from opslib.rehearsal.unit_loading import load_unit
from opslib.rehearsal.unit_properties import unit_properties
from opslib.rehearsal.unit_syntax import unit_name

_OPTIONS = {
    "--property": VALUE,
    "--value": NO_VALUE,
    "--all": NO_VALUE,
    "--no-pager": NO_VALUE,
    "--no-legend": NO_VALUE,
    "--plain": NO_VALUE,
    "--full": NO_VALUE,
    "--no-ask-password": NO_VALUE,
    "--no-block": NO_VALUE,
    "--now": NO_VALUE,
    "--quiet": NO_VALUE,
    "--output": VALUE,
    "--type": VALUE,
    "--timestamp": VALUE,
    "--system": NO_VALUE,
    "--version": NO_VALUE,
}
_SHORT = {"p": "--property", "a": "--all", "q": "--quiet", "l": "--full", "t": "--type", "o": "--output"}
_WHY_FAILED = {  # systemctl's explanations by result (252, bus-wait-for-jobs.c)
    "resources": "of unavailable resources or another system error",
    "timeout": "a timeout was exceeded",
    "exit-code": "the control process exited with error code",
    "signal": "a fatal signal was delivered to the control process",
    "core-dump": "a fatal signal was delivered causing the control process to dump core",
    "start-limit-hit": "start of the service was attempted too often",
}
_START_LIMIT_ADVICE = 'To force a start use "systemctl reset-failed {0}"\nfollowed by "systemctl start {0}" again.\n'
_LEGEND = """
LOAD   = Reflects whether the unit definition was properly loaded.
ACTIVE = The high-level unit activation state, i.e. generalization of SUB.
SUB    = The low-level unit activation state, values depend on unit type.
"""
_COUNT = """\
{} loaded units listed.{}
To show all installed unit files use 'systemctl list-unit-files'.
"""
_VERSION = (
    "systemd 252 (252-rehearsal)\n-PAM -AUDIT (a rehearsal host: one program that does what the kit asks of systemd)\n"
)


async def systemctl(manager: Manager, argv: Sequence[str], terminal: Terminal) -> int:
    """Carry out one systemctl command line and return its exit status."""
    try:
        parsed = parse_options(argv, _OPTIONS, _SHORT)
        if "--version" in parsed:
            terminal.out(_VERSION)
            return 0
        verb, names = (parsed.words or ["list-units"])[0], parsed.words[1:]
        if verb not in _VERBS:
            terminal.err(f"{OptionRefused(verb)}\n")
            return 1
        if verb in _CHANGING and not terminal.is_root:
            terminal.err(_denied(verb, names))
            return _NO_PERMISSION if verb in _JOB_VERBS else 1
        return await _VERBS[verb](manager, names, parsed, terminal)
    except OptionRefused as refusal:
        terminal.err(f"{refusal}\n")
        return 1
    finally:
        manager.collect()


def _denied(verb: str, names: Sequence[str]) -> str:
    if verb == "daemon-reload":
        return "Reload daemon failed: Access denied\n"
    if verb in {"enable", "disable"}:
        return f"Failed to {verb} unit: Access denied\n"
    name = unit_name(names[0]) if names else ""
    if verb == "reset-failed":
        return f"Failed to reset failed state of unit {name}: Access denied\n"
    return f"Failed to {verb} {name}: Access denied\nSee system logs and 'systemctl status {name}' for details.\n"


async def _show(manager: Manager, names: Sequence[str], parsed: Parsed, terminal: Terminal) -> int:
    wanted = [name for value in parsed.all("--property") for name in value.split(",") if name]
    blocks = []
    for name in names:
        service = manager.service(unit_name(name))
        rows = unit_properties(manager, service, timestamp_style=parsed.last("--timestamp", "pretty"))
        lines = [
            value if "--value" in parsed else f"{key}={value}"
            for key, value in rows
            if (key in wanted if wanted else value or "--all" in parsed)
        ]
        blocks.append("".join(f"{line}\n" for line in lines))
    terminal.out("\n".join(blocks))
    return 0


async def _cat(manager: Manager, names: Sequence[str], _parsed: Parsed, terminal: Terminal) -> int:
    exit_status, blocks = 0, list[str]()
    for name in map(unit_name, names):
        config = manager.service(name).config
        if not config.fragment_path:
            terminal.err(f"No files found for {name}.\n")
            exit_status = 1
            continue
        for path in (config.fragment_path, *config.drop_in_paths):
            blocks.append(f"# {path}\n{_text(path)}")
    terminal.out("\n".join(blocks))
    return exit_status


def _text(path: str) -> str:
    return Path(path).read_text("utf-8", "surrogateescape")


def _job_verb(job_type: str) -> "Verb":
    async def run(manager: Manager, names: Sequence[str], parsed: Parsed, terminal: Terminal) -> int:
        return await _run_jobs(manager, [unit_name(name) for name in names], job_type, parsed, terminal)

    return run


async def _run_jobs(manager: Manager, names: Sequence[str], job_type: str, parsed: Parsed, terminal: Terminal) -> int:
    exit_status, jobs = 0, list[tuple[Service, Job]]()
    for name in names:
        service = manager.service(name)
        if job_type != "stop" and service.config.load_state == "loaded" and manager.needs_daemon_reload(service):
            terminal.err(
                f"Warning: The unit file, source configuration file or drop-ins of {name} changed on disk. "
                "Run 'systemctl daemon-reload' to reload units.\n"
            )
        try:
            jobs.append((service, manager.enqueue(name, job_type)))
        except UnitRefused as refusal:
            terminal.err(str(refusal))
            exit_status = refusal.exit_status
    if "--no-block" in parsed:
        return exit_status
    for service, job in jobs:
        await job.finished.wait()
        if job.result != "done":
            terminal.err("" if "--quiet" in parsed else _job_failure(service, job))
            exit_status = 1
    return exit_status


def _job_failure(service: Service, job: Job) -> str:
    name = service.name
    if job.result == "canceled":
        return f"Job for {name} canceled.\n"
    why = f" because {_WHY_FAILED[service.result]}" if service.result in _WHY_FAILED else ""
    details = f'See "systemctl status {name}" and "journalctl -xeu {name}" for details.\n'
    advice = _START_LIMIT_ADVICE.format(name) if service.result == "start-limit-hit" else ""
    return f"Job for {name} failed{why}.\n{details}{advice}"


async def _daemon_reload(manager: Manager, _names: Sequence[str], _parsed: Parsed, _terminal: Terminal) -> int:
    manager.daemon_reload()
    return 0


async def _reset_failed(manager: Manager, names: Sequence[str], _parsed: Parsed, terminal: Terminal) -> int:
    exit_status = 0
    loaded = {service.name: service for service in manager.loaded()}
    for name in map(unit_name, names):
        if name in loaded:
            loaded[name].reset_failed()
        else:
            terminal.err(f"Failed to reset failed state of unit {name}: Unit {name} not loaded.\n")
            exit_status = 1
    for service in () if names else loaded.values():
        service.reset_failed()
    return exit_status


def _enabling(verb: str) -> "Verb":
    async def run(manager: Manager, names: Sequence[str], parsed: Parsed, terminal: Terminal) -> int:
        full_names = [unit_name(name) for name in names]
        try:
            for name in full_names:
                said = (enable if verb == "enable" else disable)(manager.unit_dir, name)
                terminal.err("" if "--quiet" in parsed else said)
        except UnitRefused as refusal:
            terminal.err(str(refusal))
            return refusal.exit_status
        manager.daemon_reload()
        if "--now" in parsed:
            return await _run_jobs(manager, full_names, "start" if verb == "enable" else "stop", parsed, terminal)
        return 0

    return run


async def _is_enabled(manager: Manager, names: Sequence[str], parsed: Parsed, terminal: Terminal) -> int:
    exit_status = 1
    for name in map(unit_name, names):
        state = unit_file_state(manager.unit_dir, load_unit(manager.unit_dir, name))
        if not state:
            terminal.err(f"Failed to get unit file state for {name}: No such file or directory\n")
            return 1
        if "--quiet" not in parsed:
            terminal.out(f"{state}\n")
        if state in {"enabled", "static"}:
            exit_status = 0
    return exit_status


def _asking(good: str, bad_status: int) -> "Verb":
    async def run(manager: Manager, names: Sequence[str], parsed: Parsed, terminal: Terminal) -> int:
        states = [manager.service(unit_name(name)).active_state for name in names]
        if "--quiet" not in parsed:
            terminal.out("".join(f"{state}\n" for state in states))
        return 0 if good in states else bad_status

    return run


async def _list_units(manager: Manager, names: Sequence[str], parsed: Parsed, terminal: Terminal) -> int:
    rows = [
        {
            "unit": service.name,
            "load": service.config.load_state,
            "active": service.active_state,
            "sub": service.state.value,
            "description": service.config.description,
        }
        for service in manager.loaded()
        if (service.state.value != "dead" or "--all" in parsed)
        and (not names or any(fnmatchcase(service.name, pattern) for pattern in names))
    ]
    if parsed.last("--output") == "json":
        terminal.out(json.dumps(rows, separators=(",", ":"), ensure_ascii=False) + "\n")
        return 0
    terminal.out(_unit_table(rows, is_plain="--plain" in parsed, has_legend="--no-legend" not in parsed))
    if "--no-legend" not in parsed:
        hint = "" if "--all" in parsed else " Pass --all to see loaded but inactive units, too."
        terminal.out((_LEGEND if rows else "") + _COUNT.format(len(rows), hint))
    return 0


def _unit_table(rows: Sequence[dict[str, str]], *, is_plain: bool, has_legend: bool) -> str:
    keys = ("unit", "load", "active", "sub", "description")
    head = [{key: key.upper() for key in keys}] if has_legend else []
    shown = [*head, *rows]
    widths = [max((len(row[key]) for row in shown), default=0) for key in keys[:-1]]
    lines = []
    for row in shown:
        lead = "" if is_plain else "● " if row["active"] == "failed" else "  "
        columns = " ".join(row[key].ljust(width) for key, width in zip(keys, widths, strict=False))
        lines.append(f"{lead}{columns} {row['description']}\n")
    return "".join(lines)


Verb = Callable[[Manager, Sequence[str], Parsed, Terminal], Awaitable[int]]

_NO_PERMISSION = 4
_JOB_VERBS = {"start", "stop", "restart"}
_CHANGING = _JOB_VERBS | {"daemon-reload", "reset-failed", "enable", "disable"}
_VERBS: dict[str, Verb] = {
    "show": _show,
    "cat": _cat,
    "start": _job_verb("start"),
    "stop": _job_verb("stop"),
    "restart": _job_verb("restart"),
    "daemon-reload": _daemon_reload,
    "reset-failed": _reset_failed,
    "enable": _enabling("enable"),
    "disable": _enabling("disable"),
    "is-enabled": _is_enabled,
    "is-active": _asking("active", 3),
    "is-failed": _asking("failed", 1),
    "list-units": _list_units,
}
