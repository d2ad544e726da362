"""How often systemd starts a unit again: Restart=, StartLimitBurst= and StartLimitIntervalSec=, read into a value."""

import re
from datetime import datetime

from opslib.domain.facts.systemd import unit_name
from opslib.domain.states import Value

_SPAN = re.compile(r"(?P<number>[\d.]+)(?P<unit>us|ms|s|min|h|d|w)\b")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


class RestartBudget(Value):
    """How often systemd starts a unit again before it gives up (systemd.unit(5), StartLimitBurst=)."""

    burst: int = 0  # 0: no limit
    interval_s: float = 0.0
    restart: str = ""  # "no", "on-failure", "always", …

    def words(self, starts: tuple[datetime, ...], now: datetime) -> str:
        """How much of it is used.

        >>> RestartBudget(burst=5, interval_s=600).words((), datetime(2026, 1, 1))
        '0 of 5 starts within 600 s used'
        """
        if not self.burst or not self.interval_s:
            return "no start limit"
        used = sum((now - at).total_seconds() <= self.interval_s for at in starts)
        return f"{used} of {self.burst} starts within {self.interval_s:.0f} s used"


def show_restart_command(unit: str) -> tuple[str, ...]:
    """Asks systemd how often it will start the unit again."""
    return ("systemctl", "show", "--property=Restart,StartLimitBurst,StartLimitIntervalUSec", "--", unit_name(unit))


def parse_restart_budget(text: str) -> RestartBudget:
    r"""Reads the answer; a time span is written as systemd.time(7) says.

    >>> parse_restart_budget("Restart=on-failure\nStartLimitIntervalUSec=1min 30s\nStartLimitBurst=3").interval_s
    90.0
    """
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    burst = fields.get("StartLimitBurst", "")
    spans = _SPAN.finditer(fields.get("StartLimitIntervalUSec", ""))
    interval_s = sum(float(span["number"]) * _SECONDS[span["unit"]] for span in spans)
    return RestartBudget(
        burst=int(burst) if burst.isdigit() else 0, interval_s=interval_s, restart=fields.get("Restart", "")
    )
