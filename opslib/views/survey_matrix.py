"""Many hosts in one table, a row each; what all of them share stands below it once, so that the table stays narrow."""

import textwrap
from collections.abc import Sequence
from datetime import datetime

from opslib.domain.states import State, worst
from opslib.domain.survey import HostSurvey, LastRun, age_words
from opslib.views.shown import Shown
from opslib.views.tables import table, text_table
from opslib.views.theme import STATE_SYMBOLS, headline, note, state_text

WIDTH = 100
GIB = 2**30
COLUMNS = ("host", "state", "unit", "GPUs", "model", "vLLM", "driver", "headroom", "deploy", "benchmark")
_SHARED = ("driver", "vLLM", "model")  # may stand below the table instead, this one first
_LEAST = 28  # characters that the unit's column keeps
_RUN_SYMBOLS = {"running": "…", "interrupted": "✗", "unreadable": "?"}


def hosts_table(surveys: Sequence[HostSurvey]) -> Shown:
    """One row per host: state, unit, GPUs, model, versions, free GPU memory, last deploy, last benchmark."""
    state, summary = worst(survey.state for survey in surveys), hosts_sentence(surveys)
    rows = [_row(survey) for survey in surveys]
    host = surveys[0].host if len(surveys) == 1 else ""
    columns, below, room = _laid_out(rows)
    told = [line for line in (*below, _LEGEND) if line]
    html = headline(state, summary, host=host) + table(rows, columns) + "".join(map(note, told))
    text = f"{state_text(state)}  {host}: {summary}" if host else f"{state_text(state)}  {summary}"
    lines = text_table([[_cell(row, name, room) for name in columns] for row in rows], columns)
    return Shown(html, "\n".join([text, "", lines, *([""] if below else []), *map(_wrapped, below)]))


_LEGEND = (
    "GPUs: in use, of all; headroom: least free memory of a GPU in use; deploy, benchmark: the newest records here"
)


def hosts_sentence(surveys: Sequence[HostSurvey]) -> str:
    """How many hosts are in which state, and which of them aren't ok; what it came to where there is one only."""
    if len(surveys) == 1:
        return surveys[0].summary
    parts = []
    for state in (State.CRITICAL, State.UNKNOWN, State.WARNING):
        named = [survey.host for survey in surveys if survey.state is state]
        if named:
            more = f" and {len(named) - 3} more" if len(named) > 3 else ""
            parts.append(f"{len(named)} {state.value} ({', '.join(named[:3])}{more})")
    n_ok = sum(survey.state is State.OK for survey in surveys)
    return f"{len(surveys)} hosts: " + ", ".join([*parts, f"{n_ok} ok"] if n_ok or not parts else parts)


def _row(survey: HostSurvey) -> dict[str, object]:
    models = {unit.model.rstrip("/").rsplit("/", 1)[-1] for unit in survey.units if unit.model}
    versions = {unit.engine_version for unit in survey.units if unit.engine_version} or {survey.engine_version}
    return {
        "host": survey.host,
        "state": survey.state,
        "unit": _unit_words(survey),
        "GPUs": _gpu_words(survey),
        "model": ", ".join(sorted(models)) or None,
        "vLLM": ", ".join(sorted(versions)) or None,
        "driver": survey.driver_version or None,
        "headroom": f"{survey.headroom_bytes / GIB:.1f} GiB" if survey.headroom_bytes is not None else None,
        "deploy": _run_words(survey.last_deploy, survey.surveyed_at),
        "benchmark": _benchmark_words(survey.last_benchmark, survey.surveyed_at),
    }


def _unit_words(survey: HostSurvey) -> str | None:
    """The one unit and how it is; of several the worst; why a host said nothing."""
    if not survey.is_reached:
        return survey.summary.removeprefix("could not find out: ")
    if not survey.units:
        return None
    state = worst(unit.state for unit in survey.units)
    unit = next(unit for unit in survey.units if unit.state is state)
    more = f" (of {len(survey.units)} units)" if len(survey.units) > 1 else ""
    return f"{STATE_SYMBOLS[state]} {unit.summary}{more}"


def _gpu_words(survey: HostSurvey) -> str | None:
    """How many are in use, with the worse of what nvidia-smi and the kernel say of them."""
    checks = [check for check in survey.checks if check.name in {"gpus", "kernel"}]
    if not survey.gpus and all(check.state is State.OK for check in checks):
        return None
    symbol = STATE_SYMBOLS[worst(check.state for check in checks)]
    n_held = sum(gpu.memory_used_bytes >= GIB for gpu in survey.gpus)
    return f"{symbol} {n_held}/{len(survey.gpus)}" if survey.gpus else f"{symbol} none answers"


def _run_words(run: LastRun | None, now: datetime) -> str | None:
    if run is None:
        return None
    symbol = STATE_SYMBOLS[State(run.state)] if run.state in set(State) else _RUN_SYMBOLS.get(run.state, "?")
    return f"{symbol} {age_words((now - run.at).total_seconds())}"


def _benchmark_words(run: LastRun | None, now: datetime) -> str | None:
    if run is None or run.output_throughput is None:
        return None
    return f"{run.output_throughput:,.0f} tok/s {age_words((now - run.at).total_seconds())}"


def _laid_out(rows: Sequence[dict[str, object]]) -> tuple[list[str], list[str], int]:
    """Which columns stand in a table of WIDTH characters, what stands below it, and the room for the unit's words.

    What all share goes below first, then what differs, then the unit's words are cut.
    """
    columns = [name for name in COLUMNS if any(row[name] is not None for row in rows)]
    below: dict[str, str] = {}
    longest = max(len(str(row["unit"] or "")) for row in rows)
    for is_alike, least in ((True, longest), (False, min(longest, _LEAST))):
        for name in _SHARED:
            alike = len({row[name] for row in rows if row[name]}) == 1
            if name in columns and is_alike == alike and _over(rows, columns, least) > 0:
                columns.remove(name)
                below[name] = _grouped(name, rows)
    room = max(_LEAST, longest - max(0, _over(rows, columns, longest)))
    return columns, [below[name] for name in COLUMNS if name in below], room


def _over(rows: Sequence[dict[str, object]], columns: Sequence[str], room: int) -> int:
    """By how many characters the table is too wide, its unit column cut to `room`."""
    cells = [[_cell(row, name, room) for name in columns] for row in rows]
    return max(len(line) for line in text_table(cells, columns).splitlines()) - WIDTH


def _cell(row: dict[str, object], name: str, room: int) -> object:
    value = row[name]
    is_long = name == "unit" and value is not None and len(str(value)) > room
    return f"{str(value)[: room - 1].rstrip()}…" if is_long else value


def _grouped(name: str, rows: Sequence[dict[str, object]]) -> str:
    """Which hosts have which value, the most frequent first."""
    hosts: dict[str, list[str]] = {}
    for row in rows:
        hosts.setdefault(str(row[name] or "not known"), []).append(str(row["host"]))
    ordered = sorted(hosts.items(), key=lambda group: -len(group[1]))
    told = [f"{value} on {_names(named, is_first=at == 0)}" for at, (value, named) in enumerate(ordered)]
    return f"{name}: " + "; ".join(told)


def _wrapped(line: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _names(named: Sequence[str], *, is_first: bool) -> str:
    return f"{len(named)} hosts" if len(named) > 3 or (is_first and len(named) > 1) else ", ".join(named)
