"""Whether a service stayed well while something was done with it."""

from datetime import UTC, datetime

import pytest

from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.launch import HealthSeen, UnitSeen
from opslib.domain.steadiness import check_steadiness

T0 = datetime(2026, 11, 29, 12, tzinfo=UTC)
OURS, NEXT = "a" * 32, "b" * 32


def unit(invocation_id=OURS, active_state="active", *, load_state="loaded", **more):
    status = UnitStatus(
        unit="vllm.service",
        load_state=load_state,
        active_state=active_state,
        sub_state="",
        invocation_id=invocation_id,
        **more,
    )
    return UnitSeen(at=T0, status=status)


def health(*codes):
    return [HealthSeen(at=T0, status_code=code) for code in codes]


def check(*events, invocation_id=OURS):
    return check_steadiness(events, unit="vllm", invocation_id=invocation_id)


def test_one_invocation_that_answers_is_ok():
    """The same start runs on and /health answers 200; an answer that came late under load is no change."""
    assert check(unit(), *health(200)).state == "ok"
    assert check(unit(), *health(200, None, 200)).state == "ok"
    assert check(unit(), *health(200), invocation_id="").state == "ok"


def test_a_success_of_systemd_is_an_end_all_the_same():
    """An end is an end: "Deactivated successfully" while it should serve is critical."""
    result = check(unit(), *health(200), unit(active_state="inactive", result="success"))
    assert result.state == "critical"
    assert result.summary == "vllm has ended while it was measured, and systemd calls it a success"


@pytest.mark.parametrize(
    "event",
    [
        unit(NEXT, n_restarts=1),
        unit(active_state="failed", result="exit-code"),
        unit(active_state="activating", result="exit-code"),
    ],
)
def test_a_restart_or_a_failure_is_critical(event):
    """Active again is not well: another invocation means that the one that was measured has ended."""
    assert check(unit(), *health(200), event).state == "critical"


def test_a_health_check_that_changes_is_a_warning():
    """Every change between answers counts, and an end without an answer."""
    flapping = check(unit(), *health(200, 503, 200, 503))
    assert (flapping.state, flapping.summary.endswith("it changed 3 times between 200 and 503")) == ("warning", True)
    assert check(unit(), *health(200, None)).state == "warning"
    assert check(unit(), *health(503)).summary == "/health answers 503, not 200"


def test_a_service_that_systemd_does_not_know_is_not_judged():
    """Where no such unit is installed (another service manager), nothing is said about it."""
    assert check(unit(active_state="inactive", load_state="not-found"), *health(200)).state == "unknown"
