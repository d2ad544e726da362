"""What a unit's files say, after systemd's defaults."""

from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from opslib.rehearsal.unit_syntax import ExecCommand, logical_lines, split_words


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
