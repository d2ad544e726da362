"""A service that fails is looked at until it is clear what became of it."""

from datetime import UTC, datetime

import pytest

from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.launch import HealthSeen, UnitSeen
from opslib.workflow import steadiness
from opslib.workflow.steadiness import Watched
from tests.fakes import FakeHost

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def unit(active_state="active", invocation_id="one"):
    shown = {"load_state": "loaded", "active_state": active_state, "sub_state": "", "invocation_id": invocation_id}
    return UnitSeen(at=NOW, status=UnitStatus(unit="u", **shown))


def health(code):
    return HealthSeen(at=NOW, status_code=code)


@pytest.mark.parametrize(
    ("seen", "n_looks"),
    [
        ([unit(), unit(), unit("inactive")], 3),
        ([unit(), unit(invocation_id="two")], 2),
        ([unit(), unit(), unit(), health(200)], 4),
        ([unit()] * 9, 5),
    ],
    ids=["it ends after a while", "it was started again", "it recovers", "it stays as it is"],
)
def test_looks_on_until_it_is_clear(monkeypatch, seen, n_looks):
    """The look ends with the unit, with a `/health` that answers again, or with the patience."""
    watched = Watched(FakeHost({}), "u")
    watched.events += [unit(), health(None)]
    coming = iter(seen)
    monkeypatch.setattr(steadiness, "pause", lambda _seconds: None)
    monkeypatch.setattr(watched, "look", lambda: watched.events.append(next(coming)))
    watched.settle(limit_s=5.0)
    assert len(watched.events) == 2 + n_looks
