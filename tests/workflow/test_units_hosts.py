"""What starting, watching and planning ask of a host, on the practice host and on a real one alike."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from opslib.cli.sudoers import _FIND
from opslib.domain.facts.journal import journal_command
from opslib.domain.sudoers import PROGRAMS
from opslib.hosts import open_host
from opslib.workflow.launch import journal_cursor, show_unit, start_unit, stop_unit
from opslib.workflow.plan import gather_engine_version

UNIT = "opslib-asked"
TEXT = "[Service]\nExecStart=/bin/sleep 600\n"


@pytest.mark.parametrize("kind", ["rehearsal", pytest.param("debian", marks=pytest.mark.realhost)])
def test_a_unit_is_started_restarted_and_stopped(kind, request):
    """A start that is asked for twice is a restart with another invocation; the journal tells of it by cursor and by time."""
    host = open_host(request.getfixturevalue(kind).settings)
    try:
        host.write_file(f"{host.settings.unit_dir}/{UNIT}.service", TEXT.encode(), sudo=True)
        assert host.run(("systemctl", "daemon-reload"), sudo=True).is_success
        cursor = journal_cursor(host, UNIT)
        assert start_unit(host, UNIT).verb == "start"
        time.sleep(0.5)
        first = show_unit(host, UNIT).invocation_id
        assert start_unit(host, UNIT).verb == "restart"
        time.sleep(0.8)
        assert show_unit(host, UNIT).invocation_id not in {first, ""}
        told = host.run(journal_command(UNIT, after_cursor=cursor), sudo=True).text
        assert "Started " in told
        since = datetime.now(UTC) - timedelta(minutes=5)
        assert "Started " in host.run(journal_command(UNIT, since=since), sudo=True).text
        assert stop_unit(host, UNIT).active_state == "inactive"
        assert host.run(("systemctl", "start", "--no-block", "--", UNIT), sudo=True).is_success
        assert stop_unit(host, UNIT).active_state == "inactive"
    finally:
        host.close()


@pytest.mark.parametrize("kind", ["rehearsal", pytest.param("debian", marks=pytest.mark.realhost)])
def test_a_failed_unit_is_started_with_a_clean_slate(kind, request):
    """What failed before does not count against a start that is asked for: systemd forgets it first."""
    host = open_host(request.getfixturevalue(kind).settings)
    try:
        text = "[Service]\nExecStart=/bin/false\n"
        host.write_file(f"{host.settings.unit_dir}/{UNIT}.service", text.encode(), sudo=True)
        assert host.run(("systemctl", "daemon-reload"), sudo=True).is_success
        start_unit(host, UNIT)
        time.sleep(0.8)
        assert show_unit(host, UNIT).active_state == "failed"
        assert start_unit(host, UNIT).before.active_state == "failed"
    finally:
        host.close()


@pytest.mark.parametrize("kind", ["rehearsal", pytest.param("debian", marks=pytest.mark.realhost)])
def test_engine_version_and_programs_are_asked(kind, request):
    """The engine says its version, or none where there is no engine; programs are found by the shell's own means."""
    host = open_host(request.getfixturevalue(kind).settings)
    try:
        assert gather_engine_version(host) == ("0.15.1" if kind == "rehearsal" else "")
        found = host.run(("sh", "-c", _FIND, "opslib", *PROGRAMS, "visudo")).text.splitlines()
        assert len(found) == len(PROGRAMS) + 1
        assert found[PROGRAMS.index("cat")].endswith("/cat")
    finally:
        host.close()
