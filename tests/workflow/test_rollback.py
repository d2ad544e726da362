"""The last good deploy, by record and by the host's own journal; what is gone is refused before anything is changed."""

import json
from datetime import UTC, datetime

import pytest

from opslib.domain.host import CommandResult
from opslib.domain.snapshot import Snapshot
from opslib.errors import Refused, UnknownName
from opslib.workflow.rollback import find_last_good, find_version, model_note, plan_rollback
from tests.fakes import FakeHost, answered

PATH, ENV = "/etc/systemd/system/vllm-a.service", "/var/lib/opslib/vllm-a.env"
OLD, BAD = (f"[Service]\nExecStart=/v serve /srv/m --port {port}\nEnvironmentFile={ENV}\n" for port in (1, 2))
BACKUP, ENV_BACKUP = f"{PATH}.20261102T100000.000000Z.bak", f"{ENV}.20261102T100000.000000Z.bak"
SHOW = "Id=vllm-a.service\nLoadState=loaded\nActiveState={}\nSubState=x\nNRestarts={}\nFragmentPath=" + PATH + "\n"


def a_host(*, served: tuple[datetime, ...] = (), active: str = "failed", n_restarts: int = 0) -> FakeHost:
    """A host whose unit was replaced on the second of November at ten."""
    lines = [
        json.dumps({"MESSAGE": "Application startup complete.", "__REALTIME_TIMESTAMP": f"{at.timestamp() * 1e6:.0f}"})
        for at in served
    ]
    host = FakeHost(
        {
            ("env", "TZ=UTC", "systemctl", "show"): SHOW.format(active, n_restarts),
            ("journalctl",): "\n".join(lines),
            ("id",): "root",
            ("test", "-e"): "",
            ("test", "-d"): "",
        }
    )

    def find(argv: tuple[str, ...]) -> CommandResult:
        begins = f"{argv[1]}/{argv[-1].partition('*')[0]}"
        return answered(argv, "\n".join(path for path in host.files if path.startswith(begins)))

    host.answers[("find",)] = find
    host.files = {PATH: BAD.encode(), BACKUP: OLD.encode(), ENV: b'T="new"\n', ENV_BACKUP: b'T="old"\n'}
    return host


def test_the_journal_tells_which_version_served() -> None:
    """Unit and environment of the version that was in place then; the plan brings both back."""
    host = a_host(served=(datetime(2026, 11, 2, 9, tzinfo=UTC),))
    deploy = find_last_good(host, "vllm-a", None)
    assert (deploy.unit_text, deploy.environment_path, deploy.model_path) == (OLD, ENV_BACKUP, "/srv/m")
    plan = plan_rollback(host, "vllm-a", deploy)
    assert [step.file.path for step in plan.steps if step.file] == [ENV, PATH]
    assert "old" not in plan.steps[0].file.diff
    assert "T=[not shown]" in plan.steps[0].file.diff


def test_the_version_in_place_does_not_count_while_the_unit_fails() -> None:
    """It served once, and now it restarts: the one before is the last good one; where it is well, it counts itself."""
    served = (datetime(2026, 11, 2, 9, tzinfo=UTC), datetime(2026, 11, 2, 11, tzinfo=UTC))
    for trouble in ({"active": "failed"}, {"active": "active", "n_restarts": 1}):
        assert find_last_good(a_host(served=served, **trouble), "vllm-a", None).unit_text == OLD
    assert find_last_good(a_host(served=served, active="active"), "vllm-a", None).unit_text == BAD


def test_a_newer_record_knows_better_than_the_journal() -> None:
    """A launch that was recorded later than what the journal tells is the last good one; its model's index is compared."""
    text = OLD.replace("--port 1", "--port 3")
    snapshot = Snapshot(taken_at=datetime(2026, 11, 2, 9, 30, tzinfo=UTC), unit_text=text, model_digest="0" * 64)
    host = a_host(served=(datetime(2026, 11, 2, 9, tzinfo=UTC),))
    deploy = find_last_good(host, "vllm-a", snapshot, "20261102T093000Z-a")
    assert (deploy.unit_text, deploy.known_from[:24]) == (text, "record 20261102T093000Z-")
    assert "another one than then" in model_note(host, deploy)


def test_nothing_known_is_no_guess() -> None:
    """Without a record and without a moment in the journal no version is called good; one can be named."""
    with pytest.raises(UnknownName, match="known to have served"):
        find_last_good(a_host(), "vllm-a", None)
    assert find_version(a_host(), "vllm-a", "-1").unit_text == OLD


def test_a_model_that_is_gone_is_refused_before_anything_is_changed() -> None:
    """Its directory is asked for first."""
    host = a_host()
    host.answers[("test", "-e")] = answered(exit_status=1)
    with pytest.raises(Refused, match="/srv/m"):
        plan_rollback(host, "vllm-a", find_version(host, "vllm-a", "-1"))
