"""A rollout's rules: who is meant, which waves, what is folded from events, when it stops, what it comes to."""

from datetime import UTC, datetime, timedelta

import pytest

from opslib.domain.host import HostSettings
from opslib.domain.record import RunRecord, SectionRecord
from opslib.domain.rollout import HostStep, RolloutEvent, RolloutPlan, UnitFound, check_plan, choose_hosts, waves
from opslib.domain.rollout_judge import judge_gates, judge_rollout, judge_undo, next_wave, step_of, why_no_more
from opslib.domain.rollout_state import fold, new_state
from opslib.domain.states import Outcome, State
from opslib.errors import BadParameter, UnknownName

BEGAN = datetime(2026, 11, 30, 10, tzinfo=UTC)
SERVED = UnitFound(files={"/u": "a1"}, is_up=True, is_serving=True)


def plan(n=8, **given):
    """A plan over hosts h1 to hN."""
    hosts = tuple(f"h{number}" for number in range(1, n + 1))
    return RolloutPlan(runbook="90-deploy", unit="vllm", hosts=hosts, begun_at=BEGAN, **given)


def folded(planned, *told):
    """The state after events told as (kind, host, step, facts), one second apart."""
    events = []
    for number, (kind, *rest) in enumerate(told):
        host, step, facts = (*rest, "", None, {})[:3] if len(rest) < 3 else rest
        events.append(
            RolloutEvent(at=BEGAN + timedelta(seconds=number), kind=kind, host=host or "", step=step or None, **facts)
        )
    return fold(planned, events)


def host(name, step, **facts):
    """An event about a host."""
    return ("host", name, step, facts)


BEGUN = ("begun", "", None, {"process_id": 7})

WAVES = [
    (8, 1, "25%", "h1 | h2 h3 | h4 h5 | h6 h7 | h8"),
    (8, 1, "1", "h1 | h2 | h3 | h4 | h5 | h6 | h7 | h8"),
    (8, 2, "100%", "h1 h2 | h3 h4 h5 h6 h7 h8"),
    (8, 0, "50%", " | h1 h2 h3 h4 | h5 h6 h7 h8"),
    (3, 1, "25%", "h1 | h2 | h3"),
    (3, 1, "34%", "h1 | h2 h3"),
    (3, 3, "25%", "h1 h2 h3"),
    (1, 1, "25%", "h1"),
    (50, 1, "99", "h1 | " + " ".join(f"h{n}" for n in range(2, 51))),
]


@pytest.mark.parametrize(("n", "canary", "wave", "groups"), WAVES)
def test_waves(n, canary, wave, groups):
    """The canary goes first, alone; then so many hosts at a time, a share being one of all hosts, rounded up."""
    assert " | ".join(" ".join(group) for group in waves(plan(n, canary=canary, wave=wave))) == groups


BAD_PLANS = [
    ({"wave": "0"}, "--wave 0: expected at least one host"),
    ({"wave": "0%"}, "--wave 0%: expected a share from 1% to 100%"),
    ({"wave": "101%"}, "--wave 101%: expected a share"),
    ({"wave": "a few"}, "--wave a few: expected a number of hosts such as 2, or a share such as 25%"),
    ({"wave": "-1"}, "--wave -1: expected a number"),
    ({"wave": "2.5"}, "--wave 2.5: expected a number"),
    ({"wave": ""}, "--wave : expected a number"),
    ({"canary": 9}, "--canary 9: there are only 8 hosts"),
    ({"min_serving": 8}, "--min-serving 8: of 8 hosts none could ever be taken down"),
    ({"max_failures": 8}, "--max-failures 8: there are only 8 hosts"),
    ({"canary": 9, "wave": "0"}, "--canary 9.*\n--wave 0"),
]


@pytest.mark.parametrize(("given", "words"), BAD_PLANS)
def test_plans_that_cannot_be(given, words):
    """What can't be carried out is refused with one line per problem."""
    with pytest.raises(BadParameter, match=words):
        check_plan(plan(**given))


def test_a_plan_that_only_reads_takes_nothing_down():
    """Where nothing is taken down, as many units may have to serve as there are hosts."""
    planned = plan(min_serving=8, is_write=False)
    assert check_plan(planned) is planned


INVENTORY = {
    name: HostSettings(alias=name, address=address, labels=labels, port=port)
    for name, address, labels, port in [
        ("gpu-a", "10.0.0.1", ("prod", "h100"), None),
        ("gpu-b", "10.0.0.2", ("prod",), 22),
        ("gpu-c", "10.0.0.3", ("test",), None),
        ("spare", "10.0.0.2", (), None),
        ("prod", "10.0.0.9", (), None),
    ]
}

CHOSEN = [
    (["gpu-c", "gpu-a"], ("gpu-c", "gpu-a")),
    (["h100"], ("gpu-a",)),
    (["test", "h100"], ("gpu-c", "gpu-a")),
    (["gpu-a", "h100"], ("gpu-a",)),
    (["h100", "gpu-a"], ("gpu-a",)),
    (["prod"], ("prod",)),
]


@pytest.mark.parametrize(("asked", "aliases"), CHOSEN)
def test_hosts_are_chosen(asked, aliases):
    """Aliases in the order given, those of a label in the inventory's; an alias goes before a label of its name."""
    assert choose_hosts(asked, INVENTORY, "hosts.toml") == aliases


WRONG = [
    (["gpu-x"], UnknownName, "hosts.toml has neither a host nor a label 'gpu-x'.*gpu-"),
    (["h10"], UnknownName, "neither a host nor a label 'h10'.*h100"),
    (["gpu-a", "gpu-a"], BadParameter, "gpu-a is given twice"),
    (["gpu-b", "spare"], BadParameter, "gpu-b and spare are the same machine"),
    (["all"], BadParameter, "gpu-b and spare are the same machine"),
    ([], BadParameter, "give aliases or labels"),
]


@pytest.mark.parametrize(("asked", "error", "words"), WRONG)
def test_hosts_that_cannot_be_chosen(asked, error, words):
    """An unknown name, a host given twice, one machine under two names: refused before anything is contacted."""
    with pytest.raises(error, match=words):
        choose_hosts(asked, INVENTORY, "hosts.toml")


def test_events_fold_into_where_each_host_stands():
    """The first thing found on a host stays, records add up, the newest step and its sentence count."""
    later = SERVED.model_copy(update={"is_up": False})
    state = folded(
        plan(2),
        BEGUN,
        host("h1", HostStep.WAITING, text="its turn", found=SERVED),
        host("h1", HostStep.RUNNING, text="", record="r1", process_id=42),
        host("h1", None, text="launch"),
        host("h1", HostStep.FAILED, text="broke", state=State.CRITICAL, left=later),
        BEGUN,
        host("h1", HostStep.WAITING, text="again", found=later),
        host("h1", HostStep.RUNNING, record="r2"),
        host("nobody", HostStep.PASSED),
    )
    first = state.host("h1")
    assert (first.step, first.found, first.left, first.records) == (HostStep.RUNNING, SERVED, later, ("r1", "r2"))
    assert (first.is_due, first.begun_at) == (False, BEGAN + timedelta(seconds=1))
    assert first.process_id is None, "that of the first run is not the second one's"
    assert state.untouched == ("h2",)
    assert [progress.host for progress in state.under_way] == ["h1"]


PASSED = [host(f"h{n}", HostStep.PASSED, state=State.OK) for n in range(1, 9)]
FAILED = [host(f"h{n}", HostStep.FAILED, state=State.CRITICAL, text="broke") for n in range(1, 9)]
LOST = [host(f"h{n}", HostStep.UNKNOWN, state=State.UNKNOWN, text="no answer") for n in range(1, 9)]

NEXT = [
    ({}, [], (0, ("h1",)), ""),
    ({}, PASSED[:1], (1, ("h2", "h3")), ""),
    ({}, PASSED[:2], (1, ("h3",)), ""),
    ({}, PASSED[:3], (2, ("h4", "h5")), ""),
    ({}, PASSED, (-1, ()), ""),
    ({}, FAILED[:1], (-1, ()), "the canary h1 failed"),
    ({}, LOST[:1], (-1, ()), "the canary h1 came to no known end"),
    ({"max_failures": 3}, FAILED[:1], (-1, ()), "the canary h1 failed"),
    ({}, [*PASSED[:4], FAILED[4]], (-1, ()), "h5 failed"),
    ({"max_failures": 1}, [*PASSED[:4], FAILED[4]], (3, ("h6", "h7")), ""),
    ({"max_failures": 1}, [*PASSED[:3], FAILED[3], LOST[4]], (-1, ()), "h4 failed, h5 came to no known end, 1 allowed"),
    ({}, [*PASSED[:4], FAILED[4], BEGUN], (2, ("h5",)), ""),
    ({}, [FAILED[0], BEGUN], (0, ("h1",)), ""),
    ({}, [*PASSED[:1], ("asked", "", None, {"text": "stop by ana"})], (-1, ()), "asked to stop (stop by ana)"),
    ({}, [*PASSED[:1], ("asked", "", None, {"text": "pause by ana"})], (1, ("h2", "h3")), ""),
    ({}, [*PASSED[:3], host("h2", HostStep.UNKNOWN, is_due=True)], (1, ("h2",)), ""),
]


@pytest.mark.parametrize(("given", "told", "following", "why"), NEXT)
def test_what_comes_next(given, told, following, why):
    """The first wave with a host that has its turn to come; none after a failed canary, too many failures, a stop."""
    state = folded(plan(**given), BEGUN, *told)
    assert next_wave(state) == following
    assert why in why_no_more(state)
    assert bool(why_no_more(state)) == bool(why)


def test_asked_words_count_while_it_runs():
    """Pause and resume follow each other, a stop stays, and what has ended is past asking."""
    asked = [("asked", "", None, {"text": f"{word} by ana"}) for word in ("pause", "resume", "stop", "resume")]
    phases = [folded(plan(), BEGUN, *asked[:n]).phase for n in range(5)]
    assert phases == ["running", "paused", "running", "stopping", "stopping"]
    ended = folded(plan(), BEGUN, ("ended", "", None, {"state": State.OK, "text": "all"}), *asked)
    assert (ended.phase, ended.outcome) == ("ended", Outcome(state=State.OK, reason="all"))
    assert folded(plan(), BEGUN, ("ended", "", None, {"state": State.OK}), BEGUN).outcome is None
    assert new_state(plan()).phase == "new"


WARNED = host("h8", HostStep.PASSED, state=State.WARNING, text="tight")

OUTCOMES = [
    ({}, PASSED, State.OK, "all 8 hosts passed"),
    ({}, [*PASSED[:7], WARNED], State.WARNING, "all 8 hosts passed; h8 passed: tight"),
    (
        {},
        FAILED[:1],
        State.CRITICAL,
        "stopped: 0 of 8 hosts passed; h1 failed: broke; untouched: h2, h3, h4, h5, h6, h7, h8",
    ),
    (
        {},
        [*PASSED[:4], FAILED[4]],
        State.CRITICAL,
        "stopped: 4 of 8 hosts passed; h5 failed: broke; untouched: h6, h7, h8",
    ),
    (
        {},
        [*PASSED[:4], LOST[4]],
        State.UNKNOWN,
        "stopped: 4 of 8 hosts passed; h5 unknown: no answer; untouched: h6, h7, h8",
    ),
    (
        {"max_failures": 1},
        [*PASSED[:7], FAILED[7]],
        State.WARNING,
        "7 of 8 hosts passed; h8 failed: broke; 1 failed, as many",
    ),
    (
        {},
        [*PASSED[:7], ("asked", "", None, {"text": "stop by SIGTERM"})],
        State.UNKNOWN,
        "stopped, it was asked to stop (stop by SIGTERM): 7 of 8 hosts passed; untouched: h8",
    ),
]


@pytest.mark.parametrize(("given", "told", "state", "reason"), OUTCOMES)
def test_what_it_has_come_to(given, told, state, reason):
    """The outcome names the hosts that failed and those that nothing was done to; allowed failures are a warning."""
    outcome = judge_rollout(folded(plan(**given), BEGUN, *told))
    assert outcome.state is state
    assert reason in outcome.reason


UNDO_BEGUN = ("undo-begun", "", None, {"process_id": 8})
TOUCHED = [host(f"h{n}", HostStep.WAITING, found=SERVED) for n in (1, 2)]

UNDONE = [
    (
        [host("h2", HostStep.UNDONE), host("h1", HostStep.UNDONE)],
        State.OK,
        "2 hosts are as the rollout found them; 6 had",
    ),
    ([host("h2", HostStep.UNDONE), FAILED[0]], State.CRITICAL, "1 host is as it was found; h1 failed: broke"),
    ([host("h2", HostStep.UNDONE), LOST[0]], State.UNKNOWN, "1 host is as it was found; h1 unknown: no answer"),
]


@pytest.mark.parametrize(("told", "state", "reason"), UNDONE)
def test_what_undoing_has_come_to(told, state, reason):
    """Undone is only what is as it was found; the others are named, and an undone rollout can't go on."""
    folded_state = folded(plan(), BEGUN, *TOUCHED, UNDO_BEGUN, *told)
    assert folded_state.is_undone
    outcome = judge_undo(folded_state)
    assert outcome.state is state
    assert reason in outcome.reason


def record(outcome="ok", exit_code=None, **sections):
    """A record with an outcome and sections: name -> (state, value)."""
    kept = tuple(
        SectionRecord(name=name.replace("_", "-"), state=state, value=value, started_at=BEGAN)
        for name, (state, value) in sections.items()
    )
    made = RunRecord(runbook="90-deploy", parameters={}, started_at=BEGAN, sections=kept)
    if outcome is None:
        return made
    return made.finished(Outcome(state=State(outcome), reason=f"it is {outcome}"), BEGAN, exit_code=exit_code)


READY = ("ok", {"state": "ready"})

GATES = [
    (record(), HostStep.PASSED, "it is ok"),
    (record(launch=READY), HostStep.PASSED, "it is ok"),
    (record("warning", launch=READY), HostStep.PASSED, "it is warning"),
    (record(launch=("critical", {"state": "crashed"}), relaunch=READY), HostStep.PASSED, "it is ok"),
    (record("critical", launch=("critical", {"state": "crashed"})), HostStep.FAILED, "it is critical"),
    (record(launch=("ok", {"state": "starting"})), HostStep.FAILED, "never was ready"),
    (record("unknown", launch=READY), HostStep.UNKNOWN, "it is unknown"),
    (record("unknown", exit_code=4), HostStep.FAILED, "it is unknown"),
    (record(None), HostStep.UNKNOWN, "came to no outcome"),
    (record(launch=READY, canary=("ok", {"verdict": "same", "summary": "same"})), HostStep.PASSED, "it is ok"),
    (record(launch=READY, canary=("ok", {"verdict": "corrupt", "summary": "bad"})), HostStep.FAILED, "bad"),
    (record(launch=READY, canary=("ok", {"verdict": "unknown", "summary": "none"})), HostStep.UNKNOWN, "none"),
    (record("warning", compare=("warning", {"verdict": "worse", "summary": "12% less"})), HostStep.FAILED, "12% less"),
    (record(compare=("ok", {"verdict": "worse", "differences": ["another engine"]})), HostStep.PASSED, "it is ok"),
    (record(compare=("ok", {"verdict": "inconclusive", "summary": "noise"})), HostStep.PASSED, "it is ok"),
    (record(compare=("ok", {"verdict": None})), HostStep.PASSED, "it is ok"),
]


@pytest.mark.parametrize(("kept", "step", "words"), GATES)
def test_gates(kept, step, words):
    """A host passes by its record: outcome, ready, canary fingerprint, benchmark not worse; a warning passes."""
    found, _, said = step_of(judge_gates(kept))
    assert found is step
    assert words in said
