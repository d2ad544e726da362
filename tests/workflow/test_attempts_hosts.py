"""A crash loop and a quiet end as systemd itself tells them: the rehearsal host and a real Debian alike."""

from collections.abc import Iterator

import pytest

from opslib.domain.diagnosis_quote import attempts_in_words
from opslib.domain.host import Host
from opslib.domain.steadiness import check_steadiness
from opslib.workflow.attempts import follow_attempts
from opslib.workflow.install import apply_plan, plan_install, undo
from opslib.workflow.launch import pause, start_unit
from opslib.workflow.steadiness import watched_service
from tests.conftest import opened

PORT = 59998  # where nobody listens
LOOP = """\
[Unit]
StartLimitIntervalSec=600
StartLimitBurst=3

[Service]
Type=exec
# it lives on for a moment: journald can't tell whose the words of a process are that is gone when it reads them
ExecStart=/usr/bin/env python3 -c "import atexit, time; atexit.register(time.sleep, 0.3); import opslib_is_not_here"
Restart=on-failure
RestartSec=0.2
"""
QUIET = """\
[Service]
Type=exec
ExecStart=/usr/bin/env sleep 1
Restart=on-failure
"""


@pytest.fixture(scope="module", params=["rehearsal", pytest.param("realhost-ops", marks=pytest.mark.realhost)])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """Each kind of host on which units may be started."""
    if request.param == "rehearsal":
        settings = request.getfixturevalue("rehearsal").settings
    else:
        settings = request.getfixturevalue("debian").ops_settings
    with opened(settings) as opened_host:
        yield opened_host


@pytest.fixture
def installed(host: Host, request: pytest.FixtureRequest) -> Iterator[str]:
    """The unit of this test's marker, installed, and taken away at the end."""
    unit, text = request.param
    report = apply_plan(host, plan_install(host, unit=unit, unit_text=text))
    assert report.state == "ok", report.steps
    yield unit
    host.run(("systemctl", "stop", f"{unit}.service"), sudo=True)
    undo(host, report)


@pytest.mark.parametrize("installed", [("opslib-loop", LOOP)], indirect=True)
def test_a_fast_crash_loop_is_read_to_its_end(host: Host, installed: str) -> None:
    """The start limit ends it; every start is read with its cause, and none is counted twice."""
    start = start_unit(host, installed)
    pause(0.5)
    attempts = follow_attempts(host, start)
    assert attempts.has_given_up
    assert attempts.status.active_state == "failed"
    told = attempts_in_words(attempts.diagnosis, has_given_up=True)
    assert told.startswith("systemd started it 3 times and gave up (start-limit-hit): environment/python-dependency")


@pytest.mark.parametrize("installed", [("opslib-quiet", QUIET)], indirect=True)
def test_an_end_that_systemd_calls_a_success_is_noticed(host: Host, installed: str) -> None:
    """A service that ends with status 0 while it is used has ended, whatever its result says."""
    start_unit(host, installed)
    with watched_service(host, installed, port=PORT) as watched:
        pause(3.0)
        watched.look()
    result = check_steadiness(watched.events, unit=installed)
    assert result.state == "critical"
    assert "systemd calls it a success" in result.summary
