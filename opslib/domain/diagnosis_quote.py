"""What an operator reads after a cause: what the kernel did, or the line that decided, with its speaker."""

import re
from collections.abc import Mapping

from opslib.domain.diagnosis import Diagnosis

_GIB = 2**30
_MAX_QUOTED = 240
_HELD = "gpu-memory/held-by-another"  # its figures, and who holds the memory, stand in the line
_KILLED = re.compile(r"Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)(?:.{0,120}anon-rss:(?P<kib>\d+)kB)?")


def quote_decisive(diagnosis: Diagnosis) -> str:
    """One sentence about this very case; "" where nothing is known, or where the summary's figures say it already."""
    has_figures = diagnosis.cause.startswith("gpu-memory/") and diagnosis.cause != _HELD
    if diagnosis.cause in {"none", "unknown"} or has_figures or not diagnosis.evidence:
        return ""
    killed = next((found for line in diagnosis.evidence if (found := _KILLED.search(line.text))), None)
    if killed:
        held = f", which held {int(killed['kib']) * 1024 / _GIB:.1f} GiB of main memory" if killed["kib"] else ""
        return f"The kernel killed {killed['name']} (pid {killed['pid']}){held}."
    line = diagnosis.evidence[0]
    text = line.text.strip()
    text = text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…"
    return f'{_speaker(line.process)} says: "{text}".'


def _speaker(process: str) -> str:
    """Who says a line; before it executes the program, systemd's child bears its name in parentheses."""
    named = {"kernel": "The kernel", "": "Its journal"}
    return "systemd" if process.startswith("(") else named.get(process, process)


def attempts_in_words(diagnosis: Diagnosis, *, has_given_up: bool) -> str:
    """How often systemd started a unit in vain, and what each start failed with; "" for no failed start.

    `diagnosis` is that of all lines since the first of these starts.
    """
    causes: dict[str, int] = {}
    for start in diagnosis.invocations:
        if start.invocation_id and start.ending == "failed":
            causes[start.cause or "unknown"] = causes.get(start.cause or "unknown", 0) + 1
    if not causes:
        return ""
    gave_up = " and gave up (start-limit-hit)" if has_given_up else " so far"
    n_starts = sum(causes.values())
    return f"systemd started it {n_starts} times{gave_up}: {_counted(causes, n_starts)}."


def _counted(causes: Mapping[str, int], n_starts: int) -> str:
    if len(causes) == 1:
        return f"{next(iter(causes))} in all {n_starts} starts"
    return ", ".join(f"{cause} in {n}" for cause, n in causes.items())
