"""Many hosts at once: names, order, time, and good and bad hosts in one table."""

import json
import threading

import pytest

from opslib.app.headless import run_headless
from opslib.app.sections.survey import ONLY_PRACTICE
from opslib.app.survey import chosen_aliases, survey_hosts
from opslib.domain.parameters import validate_parameters
from opslib.domain.states import State
from opslib.errors import Refused, UnknownName
from opslib.views.survey_matrix import WIDTH, hosts_table
from tests.domain.test_survey import reading
from tests.fakes import FakeHost, answered
from tests.loopback_sshd import free_port, keygen


class MeetingHost(FakeHost):
    """Answers once ten hosts are asked at the same time."""

    meeting = threading.Barrier(10)

    def run_program(self, main, arguments, *, timeout_s=60.0, sudo=False):
        self.meeting.wait(timeout=30)
        return answered((main,), json.dumps(reading()))


def test_aliases_are_checked_before_any_host_is_contacted(tmp_path, monkeypatch):
    """Names come from the inventory, plus `rehearsal`; one that is neither is refused with the nearest."""
    (tmp_path / "hosts.toml").write_text('[hosts.gpu-a]\naddress = "192.0.2.1"\n[hosts.gpu-b]\naddress = "192.0.2.2"\n')
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    assert chosen_aliases(()) == ("gpu-a", "gpu-b")
    assert chosen_aliases(("gpu-b", "gpu-b")) == ("gpu-b",)
    assert chosen_aliases((), is_all=True) == ("gpu-a", "gpu-b", "rehearsal")
    with pytest.raises(UnknownName, match="gpu-a"):
        chosen_aliases(("gpu-aa",))
    (tmp_path / "hosts.toml").write_text("")
    with pytest.raises(UnknownName, match="names no host"):  # whoever wrote one means hosts of their own
        chosen_aliases(())
    (tmp_path / "hosts.toml").write_text("[hosts.broken")
    assert chosen_aliases(("rehearsal",)) == ("rehearsal",)


def test_a_word_that_is_neither_host_nor_label_is_refused_with_both(tmp_path, monkeypatch):
    """The refusal names hosts and labels that there are, or the nearest of either."""
    (tmp_path / "hosts.toml").write_text('[hosts.a]\naddress = "192.0.2.1"\nlabels = ["prod"]\n')
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    with pytest.raises(UnknownName, match="neither a host nor a label 'nope'; known: a, prod"):
        chosen_aliases(["nope"])
    with pytest.raises(UnknownName, match=r"'prd'; did you mean prod\?"):
        chosen_aliases(["prd"])


def test_a_label_stands_for_its_hosts(tmp_path, monkeypatch):
    """All hosts that have it, in the inventory's order; a host of that name goes before it."""
    entries = (("gpu-a", "h100"), ("gpu-b", "h100"), ("gpu-c", "l40s"), ("l40s", "x"))
    text = "".join(f'[hosts.{alias}]\naddress = "192.0.2.1"\nlabels = ["{label}"]\n' for alias, label in entries)
    (tmp_path / "hosts.toml").write_text(text)
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    assert chosen_aliases(("h100",)) == ("gpu-a", "gpu-b")
    assert chosen_aliases(("gpu-b", "h100", "l40s")) == ("gpu-b", "gpu-a", "l40s")


def test_all_stands_for_every_host_of_the_inventory(tmp_path, monkeypatch):
    """`hosts=["all"]` is the inventory as it is now; a hosts.toml that is broken, empty or absent is refused."""
    path = tmp_path / "hosts.toml"
    monkeypatch.setenv("OPSLIB_HOSTS", str(path))
    path.write_text('[hosts.gpu-a]\naddress = "192.0.2.1"\n[hosts.gpu-b]\naddress = "192.0.2.2"\n')
    assert chosen_aliases(("all",)) == ("gpu-a", "gpu-b")
    assert chosen_aliases(("gpu-b", "all", "rehearsal")) == ("gpu-b", "gpu-a", "rehearsal")
    assert validate_parameters("00-survey-hosts", {"hosts": ["all"]}).recorded_host == "all-hosts"
    for text, said in (("", "names no host"), ("[hosts.gpu-a", "is no TOML"), ("[hosts.a]\naddress = 1", "address")):
        path.write_text(text)
        with pytest.raises(Refused, match=said):
            run_headless("00-survey-hosts", {"hosts": ["all"]}, runs_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_run_says_when_only_the_rehearsal_host_was_asked(tmp_path, monkeypatch, rehearsal):
    """The default asks nobody real, and its outcome says so; with `all` it is about the inventory's hosts."""
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    write_inventory(tmp_path / "hosts.toml", {"practice": rehearsal.settings})
    default = run_headless("00-survey-hosts", {}, runs_dir=tmp_path / "runs").record
    assert default.outcome.reason.endswith(ONLY_PRACTICE)
    assert default.sections[0].summary.endswith(ONLY_PRACTICE)
    everything = run_headless("00-survey-hosts", {"hosts": ["all"]}, runs_dir=tmp_path / "runs").record
    assert list(everything.answered) == ["practice"]
    assert ONLY_PRACTICE not in everything.outcome.reason


@pytest.fixture
def inventory(tmp_path, monkeypatch, loopback, rehearsal):
    """An inventory of a host that answers, one on a closed port, one whose key has changed, and a practice host."""
    keygen(tmp_path / "other")
    where, public = f"[127.0.0.1]:{loopback.port}", (tmp_path / "other.pub").read_text()
    (tmp_path / "known_hosts").write_text(f"{where} {public}")
    hosts = {
        "practice": rehearsal.settings,
        "answers": loopback,
        "closed": loopback.model_copy(update={"port": free_port()}),
        "changed": loopback.model_copy(update={"known_hosts_file": str(tmp_path / "known_hosts")}),
    }
    write_inventory(tmp_path / "hosts.toml", hosts)
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    return hosts


def write_inventory(path, hosts):
    lines = []
    for alias, settings in hosts.items():
        entry = settings.model_dump(exclude_defaults=True, exclude={"alias"}, mode="json")
        lines += [f"[hosts.{alias}]", *(f"{name} = {json.dumps(value)}" for name, value in entry.items())]
    path.write_text("\n".join(lines) + "\n")


def test_good_and_bad_hosts_stand_in_one_table_at_once(inventory):
    """Practice host, a host, a closed port and a changed key: four rows in order, each with its reason."""
    surveys = survey_hosts(tuple(inventory))
    by_host = {survey.host: survey for survey in surveys}
    assert tuple(by_host) == tuple(inventory)
    assert by_host["practice"].state is State.OK
    assert by_host["answers"].is_reached
    assert (by_host["closed"].state, by_host["closed"].summary) == (
        State.UNKNOWN,
        "could not find out: the connection was refused",
    )
    assert by_host["changed"].summary.endswith("has CHANGED")
    assert "ssh-keygen -R" in by_host["changed"].next_step
    text = hosts_table(surveys).text
    assert all(len(line) <= WIDTH for line in text.splitlines())
    assert text.count("? unknown") >= 2


def test_hosts_are_asked_side_by_side(monkeypatch):
    """All hosts are asked at the same time, and each is told as it comes."""
    import opslib.app.many as module

    monkeypatch.setattr(module, "open_bound_host", lambda alias: MeetingHost(alias=alias))
    told = []
    surveys = survey_hosts([f"h{n}" for n in range(10)] * 2, on_survey=told.append)
    assert [survey.host for survey in surveys] == [f"h{n}" for n in range(10)]
    assert {survey.host for survey in told} == {survey.host for survey in surveys}


def test_a_host_that_cannot_be_opened_does_not_stop_the_others(tmp_path, monkeypatch, rehearsal):
    """An identity file that isn't there is a row that says so."""
    broken = rehearsal.settings.model_copy(update={"identity_file": "/no/such/key", "is_rehearsal": False})
    write_inventory(tmp_path / "hosts.toml", {"broken": broken, "practice": rehearsal.settings})
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    broken, practice = survey_hosts(["broken", "practice"])
    assert broken.summary.startswith("refused: identity_file")
    assert practice.is_reached


@pytest.mark.realhost
def test_a_real_host_stands_in_the_same_table(inventory, debian, tmp_path):
    """Rehearsal host, real host, an unreachable one and one with a changed key: one table."""
    known = tmp_path / "changed_hosts"
    public = (tmp_path / "other.pub").read_text()
    known.write_text(f"{debian.settings.address} {public}")
    hosts = {
        "practice": inventory["practice"],
        "real": debian.ops_settings,
        "closed": inventory["closed"],
        "changed": debian.settings.model_copy(update={"known_hosts_file": str(known)}),
    }
    write_inventory(tmp_path / "hosts.toml", hosts)
    surveys = survey_hosts(tuple(hosts))
    assert [survey.is_reached for survey in surveys] == [True, True, False, False], hosts_table(surveys).text
    assert [survey.state for survey in surveys[2:]] == [State.UNKNOWN] * 2
    assert surveys[3].summary.endswith("has CHANGED")
