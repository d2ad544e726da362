"""systemd's rules as tables and pure functions: time spans, exit texts, clean exits, who is restarted, rate limits."""

import os
import re
import signal
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from math import inf


class ServiceState(StrEnum):
    """A service's sub state (systemd 252, service.c)."""

    DEAD = "dead"
    START_PRE = "start-pre"
    START = "start"
    RUNNING = "running"
    EXITED = "exited"
    STOP_SIGTERM = "stop-sigterm"
    STOP_SIGKILL = "stop-sigkill"
    FINAL_SIGTERM = "final-sigterm"
    FINAL_SIGKILL = "final-sigkill"
    FAILED = "failed"
    AUTO_RESTART = "auto-restart"


ACTIVE_STATES = {
    ServiceState.DEAD: "inactive",
    ServiceState.START_PRE: "activating",
    ServiceState.START: "activating",
    ServiceState.RUNNING: "active",
    ServiceState.EXITED: "active",
    ServiceState.STOP_SIGTERM: "deactivating",
    ServiceState.STOP_SIGKILL: "deactivating",
    ServiceState.FINAL_SIGTERM: "deactivating",
    ServiceState.FINAL_SIGKILL: "deactivating",
    ServiceState.FAILED: "failed",
    ServiceState.AUTO_RESTART: "activating",
}

# Results after which each Restart= value restarts (systemd.service(5), table 2); start-limit-hit never does.
_FAILURES = frozenset({"exit-code", "signal", "core-dump", "timeout", "watchdog", "resources", "protocol", "oom-kill"})
RESTARTED_RESULTS = {
    "no": frozenset[str](),
    "always": _FAILURES | {"success"},
    "on-success": frozenset({"success"}),
    "on-failure": _FAILURES,
    "on-abnormal": _FAILURES - {"exit-code"},
    "on-abort": frozenset({"signal", "core-dump"}),
    "on-watchdog": frozenset({"watchdog"}),
}

_CLEAN_SIGNALS = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE}
_EXIT_NAMES = {  # exit-status.c: libc's two, LSB's, systemd's own that can happen here
    0: "SUCCESS",
    1: "FAILURE",
    2: "INVALIDARGUMENT",
    3: "NOTIMPLEMENTED",
    4: "NOPERMISSION",
    5: "NOTINSTALLED",
    6: "NOTCONFIGURED",
    7: "NOTRUNNING",
    200: "CHDIR",
    203: "EXEC",
    217: "USER",
}

_UNITS_S = {
    "us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3,
    "": 1.0, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0, "w": 604800.0, "week": 604800.0, "weeks": 604800.0,
}  # fmt: skip
_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)")


def parse_time_span(text: str) -> float:
    """Seconds of a systemd.time(7) span; ValueError for anything else.

    >>> parse_time_span("1min 30s"), parse_time_span("500ms"), parse_time_span("infinity")
    (90.0, 0.5, inf)
    """
    text = text.strip()
    if text == "infinity":
        return inf
    total, position = 0.0, 0
    while position < len(text):
        match = _SPAN.match(text, position)
        if not match or match[2] not in _UNITS_S:
            raise ValueError(text)
        total += float(match[1]) * _UNITS_S[match[2]]
        position = match.end()
    if not text:
        raise ValueError(text)
    return total


def format_time_span(seconds: float) -> str:
    """The span as systemctl shows it.

    >>> format_time_span(90), format_time_span(2), format_time_span(0.1), format_time_span(0)
    ('1min 30s', '2s', '100ms', '0')
    """
    if seconds == inf:
        return "infinity"
    parts, rest_ms = [], round(seconds * 1000)
    for name, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)):
        count, rest_ms = divmod(rest_ms, size_ms)
        if count:
            parts.append(f"{count}{name}")
    return " ".join(parts) or "0"


def format_timestamp(at_s: float, style: str = "pretty") -> str:
    """A wall-clock time as systemctl shows it; empty for 0, "never".

    >>> format_timestamp(1795966108.5)
    'Sun 2026-11-29 15:28:28 UTC'
    >>> format_timestamp(1795966108.5, "us+utc")
    'Sun 2026-11-29 15:28:28.500000 UTC'
    """
    if not at_s:
        return ""
    if style == "unix":
        return f"@{int(at_s)}"
    at = datetime.fromtimestamp(at_s, UTC)
    return at.strftime("%a %Y-%m-%d %H:%M:%S.%f UTC" if style.startswith("us") else "%a %Y-%m-%d %H:%M:%S UTC")


def transition_stamps(before: str, after: str) -> tuple[str, ...]:
    """The time stamps that a change of the active state sets.

    >>> transition_stamps("inactive", "activating"), transition_stamps("active", "failed")
    (('StateChange', 'InactiveExit'), ('StateChange', 'InactiveEnter', 'ActiveExit'))
    """
    was_off, is_off = before in {"inactive", "failed"}, after in {"inactive", "failed"}
    happened = {
        "StateChange": True,
        "InactiveExit": was_off and not is_off,
        "InactiveEnter": is_off and not was_off,
        "ActiveEnter": after == "active" != before,
        "ActiveExit": before == "active" != after,
    }
    return tuple(name for name, is_so in happened.items() if is_so)


@dataclass(frozen=True)
class Exit:
    """How a process ended, as wait(2) told it."""

    code: str  # "exited", "killed", "dumped"
    status: int  # exit status or signal number

    @property
    def number(self) -> int:
        """CLD_EXITED, CLD_KILLED or CLD_DUMPED, as ExecMainCode shows it."""
        return {"exited": 1, "killed": 2, "dumped": 3}[self.code]

    @property
    def text(self) -> str:
        """As the journal names it: "code=exited, status=203/EXEC"."""
        name = _EXIT_NAMES.get(self.status, "n/a") if self.code == "exited" else signal_name(self.status)
        return f"code={self.code}, status={self.status}/{name}"


def exit_of(wait_status: int) -> Exit:
    """The end that a wait status tells."""
    if os.WIFEXITED(wait_status):
        return Exit("exited", os.WEXITSTATUS(wait_status))
    return Exit("dumped" if os.WCOREDUMP(wait_status) else "killed", os.WTERMSIG(wait_status))


def signal_name(number: int) -> str:
    """The signal's short name ("TERM")."""
    return signal.Signals(number).name.removeprefix("SIG")


def result_of(end: Exit, *, success_statuses: frozenset[int | str], is_daemon: bool) -> str:
    """The result a process end stands for; SIGHUP, INT, TERM and PIPE are clean for a daemon (systemd.service(5))."""
    if end.code == "exited":
        return "success" if end.status == 0 or end.status in success_statuses else "exit-code"
    if end.code == "dumped":
        return "core-dump"
    is_clean = (is_daemon and end.status in _CLEAN_SIGNALS) or signal_name(end.status) in success_statuses
    return "success" if is_clean else "signal"


@dataclass
class StartLimit:
    """At most `burst` starts within `interval_s`, counted in windows as systemd's ratelimit does."""

    interval_s: float = 10.0
    burst: int = 5
    _began_at: float = field(default=-inf, repr=False)
    _count: int = field(default=0, repr=False)

    def admits(self, now_s: float) -> bool:
        """Count one start; False when it is one too many."""
        if self.interval_s <= 0 or self.burst <= 0:
            return True
        if now_s - self._began_at > self.interval_s:
            self._began_at, self._count = now_s, 0
        self._count += 1
        return self._count <= self.burst

    def reset(self) -> None:
        """Forget the starts counted (reset-failed)."""
        self._began_at = -inf
