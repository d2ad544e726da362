"""Benchmarks from a shell: of a unit by its runbook, of a URL from here, and the comparison of two records."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from opslib.app.binding import check_alias, open_bound_host
from opslib.app.completing import complete_record
from opslib.app.sections.benchmark import keep_formats, load_of, slo_of
from opslib.domain.benchmark import BenchmarkLevel, BenchmarkReport
from opslib.domain.benchmark_compare import LOAD_PARAMETERS, Comparison, Subject, compare_levels
from opslib.domain.host import HostSettings
from opslib.domain.parameters import UnitBenchmarkParameters
from opslib.domain.record import RunRecord, SectionRecord
from opslib.domain.states import Outcome, State
from opslib.domain.unit_words import group_by_flag
from opslib.errors import BadParameter, OpslibError
from opslib.hosts.open import LOCAL, open_host
from opslib.records.baselines import read_baseline
from opslib.records.folder import RunFolder
from opslib.workflow.benchmark import run_benchmark
from opslib.workflow.running import running_argv

RUNBOOK = "50-benchmark"
HERE = "this-machine"
_KEPT = {*LOAD_PARAMETERS, "benchmark_repeats"}
_GIVEN_BY = {"--port": "port", "--served-model-name": "served_model_name"}


class Measured(NamedTuple):
    """What measuring a URL found, and where its record lies."""

    report: BenchmarkReport
    folder: Path


def parameters_of_unit(alias: str, unit: str) -> dict[str, Any]:
    """What `50-benchmark` has to be given to measure a running unit: port, model and name from its own command line.

    Raises UnknownName before anything is asked; what the host cannot say is left to the defaults.
    """
    check_alias(alias)
    given: dict[str, Any] = {"host": alias, "unit": unit}
    host = open_bound_host(alias)
    try:
        argv = list(running_argv(host, unit))
    except OpslibError:  # not running, or not readable: the runbook says so itself
        return given
    finally:
        host.close()
    words = argv[argv.index("serve") + 1 :] if "serve" in argv else argv
    for flag, *values in (line for line in group_by_flag(words) if line):
        if not flag.startswith("-"):
            given.setdefault("model", flag)
        elif flag in _GIVEN_BY and values:
            given[_GIVEN_BY[flag]] = int(values[0]) if flag == "--port" else values[0]
    return given


def measure_url(
    url: str,
    parameters: UnitBenchmarkParameters,
    *,
    model: str,
    ca_file: str,
    api_key: str,
    runs_dir: Path,
    on_level: Callable[[BenchmarkLevel], None],
) -> Measured:
    """Measures an endpoint from this machine and keeps a record; raises BadParameter for a URL that is none."""
    where = _checked(url)
    started_at, start = datetime.now(UTC), time.monotonic()
    folder = RunFolder.create(runs_dir, where, "url", RUNBOOK, started_at)
    host = open_host(HostSettings(alias=HERE, address=LOCAL))
    try:
        report = run_benchmark(
            host,
            url=url,
            model=model,
            ca_file=ca_file,
            api_key=api_key,
            load=load_of(parameters),
            deadline_s=parameters.benchmark_deadline_s,
            slo=slo_of(parameters),
            on_progress=lambda event: on_level(event) if isinstance(event, BenchmarkLevel) else None,
        )
    except BaseException:
        folder.drop_if_empty()
        raise
    finally:
        host.close()
    duration_s = time.monotonic() - start
    keep_formats(folder, report)
    folder.write_record(_record(url, parameters, report, started_at, duration_s))
    complete_record(folder)
    return Measured(report, folder.path)


def _checked(url: str) -> str:
    """The URL's host name; the record keeps the URL, so one that may bear a secret is refused without being quoted."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
        has_login = "@" in parts.netloc
    except ValueError:  # as of "http://[::1"
        is_url, has_login = False, "@" in url
    if has_login:
        raise BadParameter("a URL with a login in it would be kept in the record", hint="--api-key env:NAME")
    if not is_url:
        raise BadParameter(f"{url!r} is no URL", hint="as https://llm.example.com/v1, or HOST UNIT for a unit")
    if parts.query or parts.fragment:
        raise BadParameter("a URL with ? or # is no base of an API", hint="a key goes by --api-key env:NAME")
    return parts.hostname or HERE


def _record(
    url: str, parameters: UnitBenchmarkParameters, report: BenchmarkReport, started_at: datetime, duration_s: float
) -> RunRecord:
    load = {name: str(value) for name, value in parameters.model_dump().items() if name in _KEPT}
    subject = Subject(host=url, load=load).model_dump(mode="json")
    values = {"benchmark": report.model_dump(mode="json"), "compare": {"subject": subject}}
    sections = [
        SectionRecord(
            name=name,
            state=report.state,
            summary=report.summary,
            value=value,
            started_at=started_at,
            duration_s=round(duration_s, 3),
        )
        for name, value in values.items()
    ]
    record = RunRecord(
        runbook=RUNBOOK,
        parameters={"url": url, **load},
        host=urlsplit(url).hostname or url,
        unit="url",
        started_at=started_at,
        sections=tuple(sections),
    )
    return record.finished(Outcome(state=report.state, reason=report.summary), datetime.now(UTC))


def compare_records(before: str, now: str, *, runs_dir: Path, threshold_percent: float) -> Comparison:
    """Two recorded benchmarks beside each other, with what else differs between them; raises UnknownName."""
    old, new = read_baseline(runs_dir, before), read_baseline(runs_dir, now)
    comparison = compare_levels(old.levels, new.levels, threshold_percent=threshold_percent, baseline=old.record)
    changes: dict[str, Any] = {"differences": old.subject.differences(new.subject)}
    if not comparison.changes:
        changes["state"] = State.UNKNOWN
    return comparison.model_copy(update=changes)
