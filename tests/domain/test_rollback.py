"""Kept versions, and which of them served."""

from datetime import UTC, datetime, timedelta

import pytest

from opslib.domain.facts.systemd import parse_unit_show
from opslib.domain.lifecycle import plan_verb, report_of
from opslib.domain.rollback import KeptVersion, choose_version, list_kept, served_version, version_at
from opslib.domain.states import CheckResult, State
from opslib.errors import BadParameter, UnknownName

PATH = "/etc/systemd/system/vllm-a.service"
STAMPS = ("20261101T100000.000000Z", "20261102T100000.000000Z", "20261102T110000.000000Z")
KEPT = list_kept(PATH, [*(f"{PATH}.{stamp}.bak" for stamp in STAMPS), f"{PATH}.bak", f"{PATH}.d", "/x/other.bak"])


def at(day: int, hour: int) -> datetime:
    """A moment of that November."""
    return datetime(2026, 11, day, hour, tzinfo=UTC)


def test_kept_versions_are_found_newest_first() -> None:
    """Only this file's, by the time in their names."""
    assert [version.name for version in KEPT] == list(reversed(STAMPS))


@pytest.mark.parametrize(
    ("moment", "name"), [(at(1, 9), STAMPS[0]), (at(1, 11), STAMPS[1]), (at(2, 10), STAMPS[2]), (at(2, 12), None)]
)
def test_the_version_of_a_moment_is_the_first_that_was_replaced_after_it(moment: datetime, name: str | None) -> None:
    """A version was in place until its own time stamp; after the newest one it is the present file."""
    found = version_at(KEPT, moment)
    assert (found.name if found else None) == name


def test_the_last_version_that_served_is_by_the_newest_such_moment() -> None:
    """A later version that never served doesn't count; without a moment nothing is known."""
    version, moment = served_version(KEPT, [at(1, 9), at(1, 11), at(1, 10) + timedelta(minutes=5)]) or (None, None)
    assert isinstance(version, KeptVersion)
    assert (version.name, moment) == (STAMPS[1], at(1, 11))
    assert served_version(KEPT, []) is None


def test_a_version_is_chosen_by_number_or_by_time() -> None:
    """Minus one is the one before; the beginning of a time stamp has to mean one version."""
    assert choose_version(KEPT, "-1").name == STAMPS[2]
    assert choose_version(KEPT, "-3").name == STAMPS[0]
    assert choose_version(KEPT, "20261101").name == STAMPS[0]
    with pytest.raises(BadParameter, match="2 versions"):
        choose_version(KEPT, "20261102")
    for wanted in ("-4", "2025"):
        with pytest.raises(UnknownName):
            choose_version(KEPT, wanted)


def show(active: str, sub: str = "x", result: str = "success") -> str:
    """What systemd says about a unit in this state."""
    return f"Id=vllm-a.service\nLoadState=loaded\nActiveState={active}\nSubState={sub}\nResult={result}\n"


@pytest.mark.parametrize(
    ("active", "verb", "commands"),
    [
        ("inactive", "start", ["--no-block start"]),
        ("active", "start", []),
        ("failed", "start", ["reset-failed", "--no-block start"]),
        ("active", "restart", ["--no-block restart"]),
        ("failed", "restart", ["reset-failed", "--no-block start"]),
        ("activating", "stop", ["stop"]),
        ("inactive", "stop", []),
        ("active", "drain", ["stop"]),
    ],
)
def test_the_steps_of_a_verb_are_those_that_the_state_needs(active: str, verb: str, commands: list[str]) -> None:
    """A start after a failure is preceded by a shown reset-failed; what is there already needs no step."""
    plan = plan_verb("a", parse_unit_show(show(active)), verb)
    given = [" ".join(step.command) for step in plan.steps if step.command]
    assert given == [f"systemctl {words} -- vllm-a.service" for words in commands]


def test_a_start_limit_that_was_hit_is_named() -> None:
    """The step that clears it says so."""
    plan = plan_verb("a", parse_unit_show(show("failed", "failed", "start-limit-hit")), "start")
    assert "the start limit was hit" in plan.steps[0].title


def test_a_report_is_as_good_as_its_worst_check() -> None:
    """Its sentence is that check's; else the good one."""
    good = CheckResult(name="a", state=State.OK, summary="fine")
    bad = CheckResult(name="b", state=State.CRITICAL, summary="port 8000 belongs to process 7")
    report = report_of("h", "u", "restart", (good, bad), "serves", duration_s=1.0)
    assert (report.state, report.summary) == ("critical", "u.service restart: port 8000 belongs to process 7")
    assert report_of("h", "u", "restart", (good,), "serves", duration_s=1.0).summary == "u.service serves"
