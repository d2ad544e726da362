"""What a survey's reading comes to: cases as data, each with the sentence that an operator reads."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from opslib.domain.host import HostSettings
from opslib.domain.states import State
from opslib.domain.survey import age_words, unreached
from opslib.domain.survey_checks import judge_survey
from opslib.domain.survey_reading import HealthReading, UnitReading, parse_survey, survey_program
from opslib.domain.survey_units import judge_unit
from opslib.errors import UnexpectedAnswer

CASES = Path(__file__).parents[1] / "cases" / "survey"
NAMES = sorted(path.stem for path in CASES.glob("*.json") if path.stem != "base")
AT = datetime.fromisoformat("2026-11-29T18:00:00.05Z")


def reading(show=None):
    """The base reading as the on-host program prints it, with these properties of its unit changed."""
    document = json.loads((CASES / "base.json").read_text())
    unit = document["units"][0]
    unit["show"] = "\n".join(f"{name}={value}" for name, value in {**unit["show"], **(show or {})}.items())
    return document


def judge(changes):
    """The survey of the base reading with these changes."""
    changes = dict(changes)
    given = {"received_at": AT, "duration_s": 0.2, **changes.pop("arguments", {})}
    given["received_at"] = datetime.fromisoformat(str(given["received_at"]))
    document = reading(changes.pop("show", {}))
    document["units"][0] |= changes.pop("unit", {})
    document["processes"] += changes.pop("processes+", [])
    for name, value in changes.items():
        document[name] = {**document[name], **value} if isinstance(value, dict) else value
    return judge_survey(parse_survey(json.dumps(document)), host="gpu-a", **given)


@pytest.mark.parametrize("name", NAMES)
def test_case(name):
    """Each case's host has the expected state, and its topic the expected state's sentence."""
    case = json.loads((CASES / f"{name}.json").read_text())
    survey, expected = judge(case["changes"]), case["expected"]
    assert survey.state.value == expected["state"], [
        (check.name, check.state, check.summary) for check in survey.checks
    ]
    topic = next(check for check in survey.checks if check.name == expected["topic"])
    assert topic.summary == expected["words"]
    assert topic.state is survey.state
    if "next_step" in expected:
        assert survey.next_step == expected["next_step"]


REAL = [
    ("clean-stop", "ok", "vllm-tiny is stopped"),
    ("exec-203", "critical", "vllm-tiny crashed, about to be restarted: exited with status 203 11 min ago, 1 restart before"),
    ("healthy", "critical", 'vllm-tiny "active" for 31 min, but /health closed'),
    ("port-in-use", "critical", "vllm-tiny crashed and restarted 19 min ago (1 restart), /health closed"),
    ("start-pre-guard-timeout", "critical", "vllm-tiny crashed, its restart 1 waits in ExecStartPre (for GPU memory to be released?)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "state", "words"), REAL)
def test_answers_of_a_real_systemd(name, state, words):
    """What real units answered, with a closed /health beside it, is never called healthy."""
    show = (CASES.parent / "systemd" / f"real-{name}.show.txt").read_text()
    reading = UnitReading(id="x", show=show, engine="vllm", port=8000, health=HealthReading(problem="closed"))
    unit = judge_unit(reading, host="gpu-a", now=datetime.fromisoformat("2026-11-29T16:00:00Z"))
    assert (unit.state.value, unit.summary) == (state, words)


def test_every_case_states_its_rule():
    """A case is a rule in one sentence, what differs from the base reading, and what is expected."""
    for name in NAMES:
        case = json.loads((CASES / f"{name}.json").read_text())
        assert set(case) == {"rule", "changes", "expected"}, name
        assert case["rule"].endswith("."), name


def test_holders_have_unit_user_and_age():
    """Each GPU's holder is named as nvidia-smi names it in full, with unit, user and age from the host."""
    holders = judge({}).holders
    assert [(held.gpu_index, held.name, held.unit, held.user, held.age_s) for held in holders][:2] == [
        (0, "VLLM::Worker_TP0", "vllm-minimax", "vllm", 10800.0),
        (1, "VLLM::Worker_TP1", "vllm-minimax", "vllm", 10800.0),
    ]


def test_versions_are_told():
    """Driver, engine and systemd versions stand in the survey."""
    survey = judge({})
    assert (survey.driver_version, survey.engine_version, survey.systemd_version) == ("580.95.05", "0.15.1", "252")
    assert survey.units[0].engine_version == "0.15.1"


@pytest.mark.parametrize("skew_s", [-3600.0, -0.4, 0.0, 0.4, 3600.0])
@pytest.mark.parametrize("there_s", [0.0, 0.05, 0.4])
def test_the_true_skew_lies_within_the_uncertainty(skew_s, there_s):
    """However a round trip splits into there and back, the true offset is within the stated uncertainty."""
    round_trip_s, busy_s = 0.5, 0.1
    received_at = AT + timedelta(seconds=round_trip_s - there_s - busy_s - skew_s) - timedelta(seconds=0.05)
    clock = judge({"arguments": {"received_at": received_at.isoformat(), "duration_s": round_trip_s}}).clock
    assert abs(clock.offset_s - skew_s) <= clock.uncertainty_s + 0.002


def test_an_unreached_host_is_unknown_and_says_what_to_do():
    """The row is short, the whole reason is its evidence, the hint its next step."""
    reason = "the host key of gpu-b has CHANGED: it is ssh-ed25519 SHA256:x, known is ssh-ed25519 SHA256:y"
    survey = unreached("gpu-b", reason, "find out why", surveyed_at=AT, duration_s=0.1, is_refused=True)
    assert (survey.state, survey.summary) == (State.UNKNOWN, "refused: the host key of gpu-b has CHANGED")
    assert survey.checks[0].evidence == (reason,)
    assert survey.next_step == "find out why"


def test_only_read_only_commands_are_sent():
    """What the on-host program may run are listings and queries, nothing that changes a host."""
    _, arguments = survey_program(HostSettings(alias="a", address="192.0.2.1"), ["x"])
    allowed = {
        ("systemctl", "list-units"),
        ("systemctl", "show"),
        ("systemctl", "--version"),
        ("journalctl", "--output=json"),
        ("ss", "-H"),
    }
    for argv in arguments["commands"].values():
        assert tuple(argv[:2]) in allowed or (argv[0] == "nvidia-smi" and argv[1].startswith("--query-"))
    assert arguments["units"] == ["x.service"]


def test_garbage_is_an_unexpected_answer():
    """What is no survey can't be judged: not finding out is no verdict."""
    with pytest.raises(UnexpectedAnswer):
        parse_survey("Traceback (most recent call last):")
    with pytest.raises(UnexpectedAnswer):
        parse_survey("{}")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (119, "119 s"), (121, "2 min"), (7200, "2 h"), (172800, "2 d"), (-3, "0 s")]
)
def test_ages_are_told_in_one_unit(seconds, words):
    """The largest unit that keeps two figures' worth of meaning."""
    assert age_words(seconds) == words
