"""The newest deploy and the newest benchmark of each host, from the index of the records."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from opslib.domain.states import Value
from opslib.domain.survey import LastRun
from opslib.records.index import RecordEntry, list_records

_DEPLOYS = ("90-deploy", "30-launch")


class LatestRuns(Value):
    """What was done last to one host; None where no record tells."""

    deploy: LastRun | None = None
    benchmark: LastRun | None = None


def latest_runs(runs_dir: Path, hosts: Iterable[str]) -> Mapping[str, LatestRuns]:
    """The newest deploy (a dry run is none) and the newest measured benchmark of each of these hosts."""
    found = {host: LatestRuns() for host in hosts}
    for entry in list_records(runs_dir):  # newest first
        known = found.get(entry.host)
        if known is None or entry.is_dry_run:
            continue
        changed = {}
        if known.deploy is None and entry.runbook in _DEPLOYS:
            changed["deploy"] = _last_run(entry)
        if known.benchmark is None and entry.output_throughput is not None:
            changed["benchmark"] = _last_run(entry)
        if any(changed.values()):
            found[entry.host] = known.model_copy(update=changed)
    return found


def _last_run(entry: RecordEntry) -> LastRun | None:
    if entry.started_at is None:
        return None
    return LastRun(
        record=entry.name,
        runbook=entry.runbook,
        state=entry.shown_state,
        at=entry.started_at,
        output_throughput=entry.output_throughput,
    )
