"""What a preflight's reading comes to: each check's cases as data, each with the sentence that an operator reads."""

import json
import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opslib.domain.facts.gpu_health import parse_gpu_health
from opslib.domain.preflight import CHECKS, PROVEN_BY_START, judge_preflight
from opslib.domain.preflight_look import look_at
from opslib.domain.preflight_reading import Wanted, parse_preflight
from opslib.domain.states import State
from opslib.errors import UnexpectedAnswer

FOLDER = Path(__file__).parents[1] / "cases" / "preflight"
CASES = tomllib.loads((FOLDER / "cases.toml").read_text())["case"]
NEVER_UNKNOWN = {"clock", "lock"}  # whoever answers has a clock; a lock that can't be read is nobody's


def changed(case):
    """The base reading with what the case says."""
    document = json.loads((FOLDER / "base.json").read_text())
    for path in case.get("remove", ()):
        above, name = place(document, path)
        del above[name]
    for path, value in case.get("set", {}).items():
        above, name = place(document, path)
        above[name] = None if value is False and name in {"engine", "places"} else value
    for path, old, new in case.get("replace", ()):
        above, name = place(document, path)
        assert old in above[name]
        n_times = -1 if old.startswith("clocks") else 1
        above[name] = above[name].replace(old, new, n_times)
    if holder := case.get("holder"):
        hold(document, **holder)
    return document


def place(document, path):
    *above, name = path.split(".")
    for step in above:
        document = document[step]
    return document, name


def hold(document, *, gpu, mib, pid, name, user, unit="", **owner):
    """Let a process hold memory of a GPU for five hours."""
    survey = document["survey"]
    rows = survey["answers"]["gpus"]["text"].splitlines()
    rows[gpu] = rows[gpu].replace("97249, 0, 97249", f"97249, {mib}, {97249 - mib}")
    survey["answers"]["gpus"]["text"] = "\n".join(rows)
    document["samples"] = [survey["answers"]["gpus"]["text"]]
    uuid = rows[gpu].split(", ")[2]
    survey["answers"]["gpu_processes"]["text"] = f"{uuid}, {pid}, {mib}, {name}\n"
    process = {"pid": pid, "name": name, "user": user, "unit": unit, "started_at": survey["ended_at"] - 5 * 3600}
    survey["processes"] = [process]
    document["owners"] = [{"pid": pid, "name": name, "started_ticks": "1", "cgroup_unit": unit, **owner}]


def judge(case):
    document = changed(case)
    reading = parse_preflight(json.dumps(document))
    wanted = {"unit": "vllm-minimax", "port": 8000, "gpus": (0, 1), "guard_wait_s": 300, **case.get("wanted", {})}
    wanted["model_path"] = "/srv/models/minimax-m2-230b-fp8"
    received_at = datetime.fromtimestamp(document["survey"]["ended_at"] + 0.1 - case.get("ahead_s", 0), tz=UTC)
    look = look_at(
        reading,
        Wanted.model_validate(wanted),
        host="gpu-a",
        received_at=received_at,
        duration_s=1.2,
        is_rehearsal=case.get("is_rehearsal", False),
        is_user_scope=case.get("is_user_scope", False),
    )
    return judge_preflight(look, asked_at=received_at, duration_s=1.2)


@pytest.mark.parametrize("case", CASES, ids=[f"{c['check']}-{c['state']}-{c.get('name', '')}" for c in CASES])
def test_case(case):
    """The check has the state and says the sentence; what is bad names what to do, and where it is not known why."""
    check = next(check for check in judge(case).checks if check.name == case["check"])
    assert (check.state.value, bool(re.search(case["words"], check.summary))) == (case["state"], True), check
    if check.state in (State.WARNING, State.CRITICAL):
        assert check.next_step
    assert case.get("next_step", "") in check.next_step


def test_every_check_has_its_cases():
    """Each check is good somewhere, bad somewhere, and unknown somewhere where it can be."""
    for name in CHECKS:
        states = {case["state"] for case in CASES if case["check"] == name}
        assert "ok" in states
        assert states & {"warning", "critical"}
        assert "unknown" in states or name in NEVER_UNKNOWN


def test_a_healthy_host_raises_no_alarm():
    """On the base reading every check is good, and the report says so."""
    report = judge({})
    assert {check.name: check.state.value for check in report.checks if check.state is not State.OK} == {}
    assert (report.state, report.summary) == (State.OK, "16 of 16 checks are good")


def test_what_is_not_known_is_told_and_decides_nothing():
    """An unknown check leaves the report good, and is named; a warning leaves it a warning beside an unknown."""
    report = judge({"set": {"engine.flags": []}, "wanted": {"flags": ["--port", "8000"]}})
    assert (report.state, report.summary) == (State.OK, "15 of 16 checks are good; not known: flags")
    both = judge({"set": {"engine.cuda": "", "places.cache.free_bytes": 10**9}})
    assert both.state is State.WARNING


def test_a_start_disproves_what_it_can():
    """Once the engine serves, its own memory, port, flags and model are no warning any more; a clock still is."""
    held = judge({"holder": {"gpu": 1, "mib": 40960, "pid": 77, "name": "python3", "user": "lena"}})
    assert (held.state, held.after_start()) == (State.WARNING, State.OK)
    assert judge({"ahead_s": 90}).after_start() is State.WARNING
    assert set(CHECKS) >= PROVEN_BY_START


@pytest.mark.parametrize(
    "text", ["", "no xml", "<a", '<!DOCTYPE a [<!ENTITY b "c">]><nvidia_smi_log>&b;</nvidia_smi_log>']
)
def test_a_strange_answer_about_gpus_is_refused(text):
    """What isn't nvidia-smi's XML, or declares entities, is no answer."""
    with pytest.raises(UnexpectedAnswer):
        parse_gpu_health(text)


def test_an_old_card_without_ecc_is_well():
    """A card whose driver says N/A everywhere has no finding; double-bit errors of old drivers are counted."""
    gpu = "<gpu><uuid>GPU-1</uuid><ecc_errors><volatile><double_bit><total>N/A</total></double_bit></volatile></ecc_errors></gpu>"
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>'
    found = parse_gpu_health(f"{head}{gpu}</nvidia_smi_log>").gpus[0]
    assert (found.n_uncorrected, found.recovery_action, found.slowdowns) == (0, "", ())
    assert parse_gpu_health(f"{head}{gpu.replace('N/A', '2')}</nvidia_smi_log>").gpus[0].n_uncorrected == 2


def test_an_answer_that_cannot_be_read_says_so():
    """Anything but the program's document is an unexpected answer."""
    with pytest.raises(UnexpectedAnswer, match="can't be read"):
        parse_preflight("Segmentation fault")
