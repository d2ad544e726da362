"""What the records know of a host's last deploy and its last benchmark."""

from datetime import UTC, datetime

from opslib.domain.parameters import validate_parameters
from opslib.domain.record import SectionRecord, new_record
from opslib.domain.states import Outcome, State
from opslib.records.folder import RunFolder
from opslib.records.latest import latest_runs


def keep(runs_dir, hour, runbook, *, state=State.OK, throughput=None, is_dry_run=False):
    at = datetime(2026, 11, 29, hour, tzinfo=UTC)
    folder = RunFolder.create(runs_dir, "rehearsal", "vllm-minimax", runbook, at)
    record = new_record(runbook, validate_parameters(runbook, {}), started_at=at)
    if throughput:
        levels = [{"concurrency": n, "output_throughput": throughput * n} for n in (1, 4)]
        value = {"levels": levels}
        record = record.with_section(SectionRecord(name="benchmark", state=State.OK, value=value, started_at=at))
    record = record.finished(Outcome(state=state, reason="x"), at)
    folder.write_record(record.model_copy(update={"host": "gpu-a", "is_dry_run": is_dry_run}))


def test_the_newest_deploy_and_the_newest_benchmark_count(tmp_path):
    """A deploy that measured is both; a dry run, another host's run and a run of another kind are neither."""
    keep(tmp_path, 8, "90-deploy", throughput=100.0)
    keep(tmp_path, 9, "90-deploy", state=State.CRITICAL)
    keep(tmp_path, 10, "90-deploy", is_dry_run=True, throughput=900.0)
    keep(tmp_path, 11, "40-investigate-crash")
    found = latest_runs(tmp_path, ["gpu-a", "gpu-b"])
    assert (found["gpu-a"].deploy.state, found["gpu-a"].deploy.at.hour) == ("critical", 9)
    assert (found["gpu-a"].benchmark.output_throughput, found["gpu-a"].benchmark.at.hour) == (400.0, 8)
    assert (found["gpu-b"].deploy, found["gpu-b"].benchmark) == (None, None)


def test_without_records_nothing_is_known(tmp_path):
    """A directory that isn't there yet is no error."""
    assert latest_runs(tmp_path / "runs", ["gpu-a"])["gpu-a"].deploy is None
