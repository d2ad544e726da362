"""A rollout over practice hosts, for real: a canary, waves, a fault in the middle, a resume, an undo."""

import pytest

from opslib.rehearsal.fleet import start_fleet
from opslib.workflow.lock import hold_lock
from tests.app.rollout_worlds import ANA
from tests.conftest import opened
from tests.fleets import (
    UNIT,
    Command,
    bring_shard,
    light_words,
    lose_shard,
    prepare,
    rollout,
    serving,
    steps,
    unit_texts,
)


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    """Records of this test alone."""
    monkeypatch.setenv("OPSLIB_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def test_a_canary_passes_and_the_next_host_is_locked(monkeypatch, capsys):
    """A real run on the canary; the next host is somebody else's, so the third stays untouched; undo brings all back."""
    with start_fleet(3) as fleet:
        prepare(fleet, monkeypatch)
        settings = [host.settings for host in fleet.hosts]
        with opened(settings[1]) as host, hold_lock(host, UNIT, ANA):
            told = rollout(capsys, "launch", "--hosts", "practice", "--wave", "1")
        assert (told["exit_code"], steps(told)["practice-1"]) == (2, "passed"), told
        assert "practice-2 failed: vllm-minimax is locked: ana on desk" in told["outcome"]["reason"]
        assert told["untouched"] == ["practice-3"]
        texts = unit_texts(settings)
        assert [name for name, text in texts.items() if text] == ["practice-1"]
        assert serving(settings[:1]) == {"practice-1": True}

        told = rollout(capsys, "--undo", "last")
        assert (told["exit_code"], steps(told)["practice-1"]) == (0, "undone"), told
        assert set(unit_texts(settings).values()) == {None}


ALL = range(1, 9)


def stopped_by_a_fault(fleet, number, monkeypatch, capsys):
    """A rollout over eight hosts that serve, which stops at the one that lacks a shard: settings, unit texts, its answer."""
    prepare(fleet, monkeypatch, serving=ALL)
    lose_shard(fleet, number)
    settings = [host.settings for host in fleet.hosts]
    before = unit_texts(settings)
    told = rollout(capsys, "deploy", "--hosts", "practice", "--min-serving", "6", *light_words())
    assert told["exit_code"] == 2, told
    assert told["untouched"] == [f"practice-{n}" for n in range(number + 1, 9)]
    return settings, before, told


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_eight_hosts_and_a_fault_on_the_canary(monkeypatch, capsys):
    """With a fault on the canary nothing else is touched: same unit texts, same starts, all of them serve on."""
    with start_fleet(8) as fleet:
        settings, before, told = stopped_by_a_fault(fleet, 1, monkeypatch, capsys)
        assert steps(told)["practice-1"] == "failed"
        assert unit_texts(settings) == before
        assert set(serving(settings[1:]).values()) == {True}
        assert (
            "nothing was changed, the unit of before does not serve" in told["hosts"][0]["text"]
        )  # it lacks the shard, too


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_eight_hosts_and_a_fault_on_the_fifth(monkeypatch, capsys):
    """The wave stops and names the untouched hosts; after the fix resume finishes; undo restores all unit texts."""
    with start_fleet(8) as fleet:
        settings, before, told = stopped_by_a_fault(fleet, 5, monkeypatch, capsys)
        assert {name for name, step in steps(told).items() if step == "passed"} == {
            f"practice-{n}" for n in range(1, 5)
        }
        after = unit_texts(settings)
        assert {name for name in before if after[name] != before[name]} == {f"practice-{n}" for n in range(1, 5)}
        assert set(serving(settings[:4] + settings[5:]).values()) == {True}

        bring_shard(fleet, 5)
        told = rollout(capsys, "--resume", told["rollout"])
        assert (told["exit_code"], set(steps(told).values())) == (0, {"passed"}), told
        after = unit_texts(settings)
        assert all(after[name] != before[name] for name in before)
        assert all(len(host["records"]) == (2 if host["host"] == "practice-5" else 1) for host in told["hosts"])

        told = rollout(capsys, "--undo", told["rollout"])
        assert (told["exit_code"], set(steps(told).values())) == (0, {"undone"}), told
        assert unit_texts(settings) == before
        assert set(serving(settings).values()) == {True}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_killed_rollout_goes_on_where_it_was(monkeypatch, capsys, runs):
    """Killed in the middle of a host's run: the run comes to its own end, resume counts it and does nothing twice."""
    with start_fleet(3) as fleet:
        prepare(fleet, monkeypatch, serving=[1, 2, 3])
        settings = [host.settings for host in fleet.hosts]
        before = unit_texts(settings)
        with Command(runs, "deploy", "--hosts", "practice", "--wave", "1", *light_words()) as command:
            assert command.wait_for("practice-2", "install")
            command.process.kill()
            command.process.wait()
        told = rollout(capsys, "--resume", "last")
        assert (told["exit_code"], set(steps(told).values())) == (0, {"passed"}), told
        assert [len(host["records"]) for host in told["hosts"]] == [1, 1, 1]
        assert not set(before.values()) & set(unit_texts(settings).values())
        assert rollout(capsys, "--resume", "last")["outcome"]["reason"] == "all 3 hosts passed"

        told = rollout(capsys, "--undo", "last")
        assert (told["exit_code"], set(steps(told).values())) == (0, {"undone"}), told
        assert unit_texts(settings) == before
        assert set(serving(settings).values()) == {True}
