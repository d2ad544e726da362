"""Many hosts at one look: one row per host, what needs attention, and units and GPUs in detail."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from opslib.domain.facts.gpu import Gpu
from opslib.domain.states import State, worst
from opslib.domain.survey import HostSurvey, SurveyCheck, age_words
from opslib.views.shown import Shown
from opslib.views.tables import table, text_table
from opslib.views.theme import MUTED, badge, headline, note, state_text

GIB = 2**30
WIDTH = 118  # of a line of text
UNIT_COLUMNS = ("host", "state", "unit", "it is", "model", "port", "engine")
GPU_COLUMNS = ("host", "GPU", "used GiB", "of", "held by", "pid", "unit", "user", "for")
CHECK_COLUMNS = ("topic", "state", "finding")
# what is typed -> the runbook that it runs
_RUNBOOKS = {"opslib run investigate-crash": "40-investigate-crash", "opslib run launch": "30-launch"}
_LEAST = 24  # characters that the widest column keeps


def attention(surveys: Sequence[HostSurvey]) -> Shown:
    """Everything that isn't ok, the worst first, each with what to do."""
    found = [(survey, check) for survey in surveys for check in survey.checks if check.state is not State.OK]
    if not found:
        n_checks = sum(len(survey.checks) for survey in surveys)
        sentence = f"nothing needs attention: all {n_checks} checks are ok"
        return Shown(headline(State.OK, sentence), f"{state_text(State.OK)}  {sentence}")
    order = (State.CRITICAL, State.UNKNOWN, State.WARNING)
    found.sort(key=lambda pair: order.index(pair[1].state))
    html = "".join(_finding_html(survey.host, check) for survey, check in found)
    return Shown(html, "\n".join(_finding_text(survey.host, check) for survey, check in found))


def _finding_html(host: str, check: SurveyCheck) -> str:
    lines = check.evidence[1:] if check.evidence[:1] and check.evidence[0] in check.summary else check.evidence
    evidence = "".join(f"<br><code>{escape(line)}</code>" for line in lines)
    step = f'<br><span style="color:{MUTED}">next:</span> {_step_html(check.next_step)}' if check.next_step else ""
    where = f"<b>{escape(host)}</b>: {escape(check.summary)}"
    return f'<p style="margin:6px 0">{badge(check.state)} {where}{evidence}{step}</p>'


def _step_html(step: str) -> str:
    is_command = step.startswith(("opslib ", "systemctl ", "journalctl ", "systemd-analyze ", "ssh-keygen "))
    shown = f"<code>{escape(step)}</code>" if is_command else re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(step))
    runbook = next((name for command, name in _RUNBOOKS.items() if step.startswith(command)), "")
    return f'<a href="{runbook}.ipynb">{runbook}</a>, or {shown}' if runbook else shown


def _finding_text(host: str, check: SurveyCheck) -> str:
    lines = _wrapped(f"{state_text(check.state)}  {host}: {check.summary}", "  ")
    lines += [line for text in check.evidence if text not in check.summary for line in _wrapped(f"  | {text}", "  | ")]
    if check.next_step:
        step = f"  next: {check.next_step}"
        lines += [step] if "`" in step else _wrapped(step, "        ")  # a command is to be copied whole
    return "\n".join(lines)


def _wrapped(text: str, indent: str) -> list[str]:
    """Lines of at most WIDTH characters; a word that is longer (a command, a path) is not cut."""
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, drop_whitespace=True, **options)  # type: ignore[arg-type]


def units_table(surveys: Sequence[HostSurvey]) -> Shown:
    """The engine units of all hosts: what each really is, what it serves and where."""
    rows: list[tuple[object, ...]] = []
    for survey in surveys:
        for unit in survey.units:
            words = unit.summary.removeprefix(unit.unit).strip()
            model = unit.model.rstrip("/").rsplit("/", 1)[-1] or None
            engine = f"{unit.engine} {unit.engine_version}".strip() or None
            port = str(unit.port) if unit.port else None
            rows.append((survey.host, unit.state, unit.unit, words, model, port, engine))
    state, summary = units_sentence(surveys)
    if not rows:
        return Shown(headline(state, summary), f"{state_text(state)}  {summary}")
    html = headline(state, summary) + table(rows, UNIT_COLUMNS)
    return Shown(html, f"{state_text(state)}  {summary}\n\n{fitted(rows, UNIT_COLUMNS, 'it is')}")


def units_sentence(surveys: Sequence[HostSurvey]) -> tuple[State, str]:
    """How many engine units there are, how they are, and of which hosts it isn't known."""
    units = [unit for survey in surveys for unit in survey.units]
    silent = [survey.host for survey in surveys if not survey.knows_units]
    state = worst([*(unit.state for unit in units), *(State.UNKNOWN for _ in silent)])
    summary = f"{len(units)} engine unit{'' if len(units) == 1 else 's'}"
    return state, summary + (f"; not known of {', '.join(silent)}" if silent else "")


def gpus_table(surveys: Sequence[HostSurvey]) -> Shown:
    """The GPUs of all hosts: memory in use, and by whom; free ones side by side in one row."""
    rows = [row for survey in surveys for row in _gpu_rows(survey)]
    if not rows:
        return _nothing("no host has a GPU that answers")
    checks = [check for survey in surveys for check in survey.checks if check.name == "gpus" and survey.gpus]
    state = worst(check.state for check in checks)
    summary = f"{sum(len(survey.gpus) for survey in surveys)} GPUs; driver {', '.join(_drivers(surveys))}"
    html = headline(state, summary) + table(rows, GPU_COLUMNS)
    return Shown(html, f"{state_text(state)}  {summary}\n\n{fitted(rows, GPU_COLUMNS, 'held by')}")


def _drivers(surveys: Sequence[HostSurvey]) -> list[str]:
    return sorted({survey.driver_version for survey in surveys if survey.driver_version})


def _gpu_rows(survey: HostSurvey) -> Iterator[tuple[object, ...]]:
    named = {holder.gpu_index for holder in survey.holders}

    def kind(gpu: Gpu) -> object:
        is_free = gpu.index not in named and gpu.memory_used_bytes < GIB
        return (gpu.memory_used_bytes, gpu.memory_total_bytes) if is_free else gpu.index

    for _, group in groupby(survey.gpus, key=kind):
        gpus = list(group)
        first = gpus[0]
        index = str(first.index) if len(gpus) == 1 else f"{first.index}-{gpus[-1].index}"
        sizes = (f"{first.memory_used_bytes / GIB:.1f}", f"{first.memory_total_bytes / GIB:.1f}")
        holders = [holder for holder in survey.holders if holder.gpu_index == first.index]
        if not holders:
            yield survey.host, index, *sizes, _nobody(first), None, None, None, None
        for holder in holders:
            age = age_words(holder.age_s) if holder.age_s is not None else None
            who = (holder.name, str(holder.pid), holder.unit or None, holder.user or None, age)
            yield survey.host, index, *sizes, *who


def _nobody(gpu: Gpu) -> str:
    return "free" if gpu.memory_used_bytes < GIB else "nobody that nvidia-smi names"


def checks_table(survey: HostSurvey) -> Shown:
    """Every topic of one host, as it was judged."""
    rows = [(check.name, check.state, check.summary) for check in survey.checks]
    html = headline(survey.state, survey.summary, host=survey.host) + table(rows, CHECK_COLUMNS) + note(_who(survey))
    text = f"{state_text(survey.state)}  {survey.host}: {survey.summary}\n\n{fitted(rows, CHECK_COLUMNS, 'finding')}"
    return Shown(html, f"{text}\n\n{_who(survey)}")


def one_host(survey: HostSurvey) -> str:
    """The whole of one host as text, its state said once: topics, units, GPUs, and what is to be done, if anything."""
    parts = [checks_table(survey).text]
    parts += [_rows_of(units_table([survey]))] if survey.units else []
    parts += [_rows_of(gpus_table([survey]))] if survey.gpus else []
    parts += [attention([survey]).text] if survey.state is not State.OK else []
    return "\n\n".join(parts)


def _rows_of(shown: Shown) -> str:
    """A table without its headline."""
    return shown.text.partition("\n\n")[2]


def _who(survey: HostSurvey) -> str:
    """Who answered, in one line."""
    who = survey.identity
    if who is None:
        return survey.who
    systemd = f", systemd {survey.systemd_version}" if survey.systemd_version else ""
    driver = f", driver {survey.driver_version}" if survey.driver_version else ""
    versions = f"kernel {who.kernel}{systemd}{driver}, Python {who.python_version}"
    return f"{survey.who}, {versions}; looked over in {survey.duration_s:.2f} s"


def answered_table(surveys: Sequence[HostSurvey]) -> Shown:
    """Who answered under each alias."""
    columns = ("host", "hostname", "login", "boot id", "kernel", "Python", "clock")
    rows = [_answered_row(survey) for survey in surveys]
    n_reached = sum(survey.is_reached for survey in surveys)
    state = State.OK if n_reached == len(surveys) else State.UNKNOWN
    summary = f"{n_reached} of {len(surveys)} host{'s' if len(surveys) > 1 else ''} answered"
    text = f"{state_text(state)}  {summary}\n\n{fitted(rows, columns, 'hostname')}"
    return Shown(headline(state, summary) + table(rows, columns), text)


def _answered_row(survey: HostSurvey) -> tuple[object, ...]:
    who, clock = survey.identity, survey.clock
    if who is None or clock is None:
        return survey.host, survey.summary, None, None, None, None, None
    return (
        survey.host,
        who.hostname,
        who.user,
        who.boot_id[:8],
        who.kernel,
        who.python_version,
        f"{clock.offset_s:+.2f} s",
    )


def _nothing(sentence: str) -> Shown:
    return Shown(headline(State.OK, sentence), f"{state_text(State.OK)}  {sentence}")


def fitted(rows: Sequence[Sequence[object]], columns: Sequence[str], flexible: str) -> str:
    """The rows as aligned text of at most WIDTH characters a line: the flexible column is cut where it must be."""
    at = columns.index(flexible)
    text = text_table(rows, columns)
    over = max(len(line) for line in text.splitlines()) - WIDTH
    if over <= 0:
        return text
    longest = max(len(str(row[at] if row[at] is not None else "-")) for row in rows)
    limit = max(_LEAST, longest - over)
    return text_table([[*row[:at], _cut(row[at], limit), *row[at + 1 :]] for row in rows], columns)


def _cut(cell: object, limit: int) -> object:
    text = str(cell)
    return cell if cell is None or len(text) <= limit else text[: limit - 1].rstrip() + "…"
