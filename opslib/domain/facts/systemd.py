"""What systemd says about a unit: `systemctl show`, read into a value."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from opslib.domain.states import Value
from opslib.errors import BadParameter, UnexpectedAnswer

PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "NRestarts",
    "InvocationID",
    "MainPID",
    "ExecMainCode",
    "ExecMainStatus",
    "ExecMainStartTimestamp",
    "ExecMainExitTimestamp",
    "ActiveEnterTimestamp",
    "FragmentPath",
    "DropInPaths",
    "NeedDaemonReload",
    "UnitFileState",
)
_UNIT_SUFFIXES = (".service", ".socket", ".timer", ".target", ".mount", ".slice", ".path", ".scope")
_NO_UNIT = re.compile(r"[^A-Za-z0-9:_.\\@-]")  # systemd.unit(5): what a name may not hold, patterns' signs among it
_TIME_FORMATS = ("%a %Y-%m-%d %H:%M:%S UTC", "%a %Y-%m-%d %H:%M:%S.%f UTC")
_CLD_EXITED = 1  # waitid(2): the codes that ExecMainCode carries
_CLD_WORDS = {2: "killed by signal", 3: "dumped core on signal"}


class UnitStatus(Value):
    """A unit as `systemctl show` tells it; "active" alone says little, see `n_restarts` and `invocation_id`."""

    unit: str
    load_state: str
    active_state: str
    sub_state: str
    result: str = ""
    n_restarts: int = 0
    invocation_id: str = ""
    main_pid: int = 0
    exec_main_code: int = 0
    exec_main_status: int = 0
    exec_main_start_at: datetime | None = None
    exec_main_exit_at: datetime | None = None
    active_enter_at: datetime | None = None
    fragment_path: str = ""
    drop_in_paths: tuple[str, ...] = ()
    need_daemon_reload: bool = False
    unit_file_state: str = ""

    @property
    def is_installed(self) -> bool:
        """Whether systemd found a unit file (`systemctl show` exits 0 for unknown units too)."""
        return self.load_state not in {"not-found", ""}

    @property
    def is_running(self) -> bool:
        """Whether a main process is running now; it may have been restarted a moment ago."""
        return self.active_state == "active" and self.main_pid != 0

    @property
    def exit_words(self) -> str:
        """How the main process last ended: "exited with status 1", "killed by signal 9", or ""."""
        if self.exec_main_code == _CLD_EXITED:
            return f"exited with status {self.exec_main_status}"
        word = _CLD_WORDS.get(self.exec_main_code)
        return f"{word} {self.exec_main_status}" if word else ""


def unit_name(unit: str) -> str:
    """The full name of `unit`, with ".service" where no unit type is given.

    Raises BadParameter for what can't be one unit's name: systemctl takes `vllm-*` for all units that match.

    >>> unit_name("vllm-minimax")
    'vllm-minimax.service'
    """
    if strange := _NO_UNIT.search(unit):
        raise BadParameter(f"{unit!r} is no unit's name: {strange[0]!r} can't be in one; patterns aren't taken")
    return unit if unit.endswith(_UNIT_SUFFIXES) else f"{unit}.service"


def show_unit_command(unit: str) -> tuple[str, ...]:
    """Asks systemd for the state of one unit, its restarts, last exit and unit file; times come in UTC.

    TZ=UTC does this for every version; `--timestamp=` exists from 247 on only. Raises BadParameter for a template.
    """
    if unit_name(unit).rpartition(".")[0].endswith("@"):
        raise BadParameter(f"{unit} is a template, which doesn't run by itself: name an instance, as in vllm@NAME")
    properties = ",".join(PROPERTIES)
    return ("env", "TZ=UTC", "systemctl", "show", f"--property={properties}", "--", unit_name(unit))


def parse_unit_show(text: str) -> UnitStatus:
    """Reads `systemctl show`; unasked properties are passed over, absent ones count as empty.

    Raises UnexpectedAnswer where LoadState or ActiveState is missing, or a number or time can't be read.
    """
    properties = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if "LoadState" not in properties or "ActiveState" not in properties:
        raise UnexpectedAnswer(f"systemctl show answered without LoadState: {text.strip()[:200]!r}")
    return UnitStatus(
        unit=properties.get("Id", ""),
        load_state=properties["LoadState"],
        active_state=properties["ActiveState"],
        sub_state=properties.get("SubState", ""),
        result=properties.get("Result", ""),
        n_restarts=_number(properties, "NRestarts"),
        invocation_id=properties.get("InvocationID", ""),
        main_pid=_number(properties, "MainPID"),
        exec_main_code=_number(properties, "ExecMainCode"),
        exec_main_status=_number(properties, "ExecMainStatus"),
        exec_main_start_at=_time(properties, "ExecMainStartTimestamp"),
        exec_main_exit_at=_time(properties, "ExecMainExitTimestamp"),
        active_enter_at=_time(properties, "ActiveEnterTimestamp"),
        fragment_path=properties.get("FragmentPath", ""),
        drop_in_paths=tuple(properties.get("DropInPaths", "").split()),
        need_daemon_reload=properties.get("NeedDaemonReload") == "yes",
        unit_file_state=properties.get("UnitFileState", ""),
    )


def _number(properties: Mapping[str, str], name: str) -> int:
    text = properties.get(name, "")
    if text in {"", "[not set]"}:
        return 0
    try:
        return int(text)
    except ValueError:
        raise UnexpectedAnswer(f"systemctl show: {name} is no number: {text!r}") from None


def _time(properties: Mapping[str, str], name: str) -> datetime | None:
    text = properties.get(name, "")
    if text in {"", "n/a", "0"}:
        return None
    if text.startswith("@"):  # --timestamp=unix
        return datetime.fromtimestamp(float(text[1:]), tz=UTC)
    for time_format in _TIME_FORMATS:
        try:
            return datetime.strptime(text, time_format).replace(tzinfo=UTC)
        except ValueError:
            continue
    raise UnexpectedAnswer(f"systemctl show: {name} is no time in UTC: {text!r}")
