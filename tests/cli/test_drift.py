"""`opslib drift`: whom it compares, what it prints, and its exit codes."""

import json

import pytest

import opslib.app.drift as app_drift
from opslib.cli.main import call
from opslib.domain.drift_facts import Area, HostFacts

UNIT = "vllm-x"


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    """An inventory of three hosts, two of them with a label; what each is like is chosen by the test."""
    entries = [("gpu-a", "h100"), ("gpu-b", "h100"), ("gpu-c", "l40s")]
    text = "".join(f'[hosts.{alias}]\naddress = "192.0.2.1"\nlabels = ["{label}"]\n' for alias, label in entries)
    (tmp_path / "hosts.toml").write_text(text)
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    values = dict.fromkeys(("gpu-a", "gpu-b", "gpu-c"), "5")
    asked = []

    def gather(aliases, units):
        asked.append((tuple(aliases), tuple(units)))
        return tuple(facts(alias, values[alias]) for alias in aliases)

    monkeypatch.setattr(app_drift, "gather_facts", gather)
    return values, asked


def facts(alias, value):
    if value is None:
        return HostFacts(host=alias, problem="nothing answered")
    area = Area(values={"[Service] RestartSec": value})
    return HostFacts(host=alias, areas={(UNIT, "settings"): area}, units=(UNIT,))


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({}, 0, "3 hosts are alike"),
        ({"gpu-b": "30"}, 1, "gpu-b: vllm-x [Service] RestartSec: 30; the other 2: 5"),
        ({"gpu-b": None}, 3, "gpu-b: everything: nothing answered"),
        ({"gpu-b": None, "gpu-c": "30"}, 1, "no majority"),
    ],
)
def test_the_exit_code_says_what_was_found(hosts, capsys, changed, code, words):
    """0 alike, 1 drift, 3 where something isn't known and nothing differs."""
    hosts[0].update(changed)
    assert call(["drift"]) == code
    out = capsys.readouterr()
    assert words in out.out
    assert "3 hosts compared in" in out.err


def test_a_label_or_names_say_whom_to_compare(hosts, capsys):
    """A label stands for its hosts; names may be repeated or joined by commas; a unit may be chosen."""
    for words in (["--hosts", "h100"], ["--hosts", "gpu-a,gpu-b"], ["--hosts", "gpu-a", "--hosts", "gpu-b"]):
        assert call(["drift", *words, "--unit", UNIT]) == 0
    assert hosts[1] == [(("gpu-a", "gpu-b"), (UNIT,))] * 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hosts", "gpu-a"], "one host differs from nobody"),
        (["--hosts", "gpu-aa"], "gpu-a"),
        (["--unit", "vllm-y"], "no host knows the unit vllm-y"),
    ],
)
def test_what_cannot_be_compared_is_refused(hosts, capsys, words, said):
    """One host, an unknown name, a unit that nobody has: one line, exit code 4."""
    assert call(["drift", *words]) == 4
    assert said in capsys.readouterr().err


def test_json_is_one_document(hosts, capsys):
    """--json: state, time, groups, commands and what isn't known."""
    hosts[0].update({"gpu-c": "30"})
    assert call(["drift", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["state"], document["hosts"]) == ("warning", ["gpu-a", "gpu-b", "gpu-c"])
    (drift,) = document["drifts"]
    assert drift["groups"][0] == {"value": "30", "hosts": ["gpu-c"]}
    assert drift["align"] == {"gpu-c": "opslib run 90-deploy -f FILE -p host=gpu-c -p unit=vllm-x"}
    assert document["compared_at"].endswith("+00:00")
