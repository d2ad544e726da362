"""One line of an engine's log: its frame, process prefix, level, source and text (vLLM 0.6 to 0.32, SGLang and kin)."""

import re

from opslib.domain.states import Value

_MAX_TEXT = 6000  # characters of a line that are looked at; longer ones are lists of names
_ANSI = re.compile(r"(?:\x1b|#033)\[[0-9;]*[A-Za-z]")
# docker compose: "name  | ", "[name]  | "; a box drawn by a terminal
_COMPOSE = re.compile(r"\[?(?P<container>[\w./-]{1,64})\]? {1,40}\| ?|\u2502 ")
_COLLECTOR = re.compile(  # log collectors: "time [Info] (Process) ", "time | ERROR | stderr | ", "time | "; "[time] "
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})? (?:\[\w{1,10}\] (?:\(\w{1,20}\) )?"
    r"|\| \w{1,10} {1,4}\| [\w.:]{1,60} \| |\| )|\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z\] "
)
_STAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d) ")
_SYSLOG = re.compile(
    r"(?:[^\W\d_]{3,5}\.? [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,6})?[+-]\d\d:?\d\d) "
    r"(?P<host>[\w.-]{1,64}) (?P<identifier>[^\s:\[]{1,64})(?:\[(?P<pid>\d{1,10})\])?: ?"
)
_PREFIX = re.compile(
    r"\((?P<name>(?:[A-Za-z][\w.-]{0,40})?)(?P<detail>(?: rank=\d{1,6})?)"
    r"(?:[ ,]{0,3}\bpid=(?P<pid>\d{1,10}))?(?:[ ,]{1,3}ip=[\d.:a-f]{1,40})?\) ?"
)
_MOST_PREFIXES = 3  # "(EngineCore pid=1) (RayWorkerWrapper pid=2) ", "(Worker pid=3) (Worker_TP1 pid=3) "
_RANK = re.compile(r"\[(?P<name>rank\d{1,5})\]: (?!\[)")  # torchrun and vLLM up to 0.9; not PyTorch's own C++ lines
_LEVEL = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_HEAD = re.compile(
    rf"(?P<level>{_LEVEL}) (?P<at>\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{{1,6}})?) "
    r"\[?(?P<source>[\w./<>-]{1,80}:\d{1,6})\] ?"
)
_OTHER_HEADS = (
    re.compile(rf"(?P<level>{_LEVEL}): {{1,6}}(?P<at>)(?P<source>)"),  # uvicorn
    re.compile(
        r"(?P<at>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?Z?) -? ?(?P<source>[\w.]{1,80}) - "
        rf"(?P<level>{_LEVEL}) - "
    ),
    re.compile(  # SGLang
        r"\[(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?P<source>(?: [A-Z]{2}\d{1,4}){0,3})\] (?P<level>)"
    ),
)
# vLLM's head behind something else: what a supervisor writes before each line, or a bar that has no line's end.
_INNER_HEAD = re.compile(rf"(?:\([^()]{{1,60}}\) ?){{0,{_MOST_PREFIXES}}}{_HEAD.pattern}")
_MOST_BEFORE = 700
_PYTHON_WARNING = re.compile(r"(?P<source>[\w./+-]{1,300}\.py:\d{1,6}): \w{1,60}Warning: ")
_GIB = 2**30
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": _GIB, "MB": 2**20, "GB": _GIB}  # vLLM's old "GB" are GiB


class LogLine(Value):
    """One line without its frame: who said it, how loud, from where, and the text."""

    text: str
    process: str = ""  # as printed: "APIServer", "EngineCore_DP0", "Worker_TP0", "VllmWorker rank=1"
    pid: int | None = None
    level: str = ""
    source: str = ""
    logged_at: str = ""  # the process's own local time, as printed
    identifier: str = ""  # of a syslog frame: "systemd", "kernel", "vllm"; of a compose file: the container
    before: str = ""  # a bar that stands on the same line, because nobody ended it


def strip_colours(text: str) -> str:
    """The text without ANSI colours (also as syslog writes them), and of a redrawn progress bar the last state."""
    if "\x1b" in text or "#033" in text:
        text = _ANSI.sub("", text)
    text = text.rstrip("\r\n")
    if "\r" in text:
        text = next((part for part in reversed(text.split("\r")) if part.strip()), "")
    return text[:_MAX_TEXT]


def parse_log_line(message: str) -> LogLine:
    """Reads one message of an engine, or one line of a pasted log.

    >>> parse_log_line("(Worker_TP0 pid=7) ERROR 11-29 15:31:48 [core.py:953] WorkerProc failed to start.").process
    'Worker_TP0'
    """
    text, found = _strip_frames(strip_colours(message))
    text = _strip_prefixes(text, found)
    text, head = _strip_head(text)
    before = ""
    if not head[0] and (match := _inner_head(text)):
        before, text = text[: match.start()], _strip_prefixes(text[match.start() :], found)
        text, head = _strip_head(text)
    pid = found.get("pid", "")
    return LogLine(
        text=text,
        process=found.get("process", ""),
        pid=int(pid) if pid else None,
        identifier=found.get("identifier", ""),
        level=head[0],
        source=head[1],
        logged_at=head[2],
        before=before if "%" in before else "",
    )


def _strip_frames(text: str) -> tuple[str, dict[str, str]]:
    """The text without what collectors, containers and syslog put before it, and what these say."""
    found: dict[str, str] = {}
    if match := _COMPOSE.match(text):
        found["identifier"] = match["container"] or ""
        text = text[match.end() :]
    for _ in range(2):  # a collector may stamp what was stamped before
        if match := _SYSLOG.match(text):
            found["identifier"] = match["identifier"]
            found["pid"] = match["pid"] or ""
            return text[match.end() :], found
        if match := _COLLECTOR.match(text) or _STAMP.match(text):
            text = text[match.end() :]
    return text, found


def _strip_prefixes(text: str, found: dict[str, str]) -> str:
    """The text without the prefixes of processes; of several the innermost speaks."""
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(text) if text.startswith("(") else None
        if match is None or "=" not in match[0]:
            break
        found["process"] = match["name"] + match["detail"] or found.get("process", "")
        found["pid"] = match["pid"] or ""
        text = text[match.end() :]
    if text.startswith("[rank") and (match := _RANK.match(text)):
        found["process"] = found.get("process") or match["name"]
        text = text[match.end() :]
    return text


def _inner_head(text: str) -> re.Match[str] | None:
    """Where vLLM's own head begins behind something else; None where there is none."""
    return _INNER_HEAD.search(text, 0, _MOST_BEFORE) if ":" in text[:_MOST_BEFORE] else None


def _strip_head(text: str) -> tuple[str, tuple[str, str, str]]:
    """The text after level, time and source, and these three."""
    if match := _HEAD.match(text):
        return text[match.end() :], (match["level"], match["source"], match["at"])
    for pattern in _OTHER_HEADS:
        if match := pattern.match(text):
            return text[match.end() :], (match["level"], match["source"].strip(), match["at"])
    if match := _PYTHON_WARNING.match(text):
        return text, ("WARNING", match["source"], "")
    return text, ("", "", "")


def size_bytes(number: str, unit: str) -> int:
    """What a printed size is in bytes; vLLM's "GB" are GiB.

    >>> size_bytes("1.5", "GiB")
    1610612736
    """
    return round(float(number.replace(",", "")) * _UNITS[unit])
