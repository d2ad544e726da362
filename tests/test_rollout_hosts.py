"""A rollout over three real hosts, each in its own network namespace: one is cut off for a minute, one is rebooted."""

import time
from contextlib import ExitStack

import pytest

from opslib.rehearsal.fleet import inventory_text
from tests.conftest import not_here
from tests.fleets import Command, light_words, rollout, serve_old, serving, steps, unit_texts
from tests.rig.debian import RigUnavailable, debian_host, install_standin
from tests.workflow.test_lifecycle_hosts import hurry

pytestmark = [pytest.mark.slow, pytest.mark.realhost, pytest.mark.timeout(1500)]
ALIASES = ("gpu-1", "gpu-2", "gpu-3")
CUT_S = 60.0


@pytest.fixture
def machines(tmp_path, monkeypatch):
    """Three real hosts with the stand-in engine, on which an earlier deploy serves; commands know them as gpu-1 to 3."""
    with ExitStack() as stack:
        try:
            found = [stack.enter_context(debian_host(f"opslib-{alias}")) for alias in ALIASES]
        except RigUnavailable as error:
            not_here(f"no real Debian host: {error}")
        settings = []
        for alias, debian in zip(ALIASES, found, strict=True):
            vllm = install_standin(debian, "healthy").vllm
            known = {"alias": alias, "vllm": vllm, "labels": ("prod",)}
            settings.append(debian.ops_settings.model_copy(update=known))
        (tmp_path / "hosts.toml").write_text(inventory_text(settings))
        for name, value in (("OPSLIB_HOSTS", "hosts.toml"), ("OPSLIB_RUNS", "runs"), ("OPSLIB_LOCKS", "locks")):
            monkeypatch.setenv(name, str(tmp_path / value))
        for each in settings:
            hurry(each)
            serve_old(each)
        yield found, settings


def test_a_host_that_is_cut_off_and_one_that_is_rebooted(machines, tmp_path, capsys):
    """What a lost host came to is asked, not assumed; resume finishes, and undo restores all three by unit texts."""
    debians, settings = machines
    runs_dir = tmp_path / "runs"
    before = unit_texts(settings)
    assert set(serving(settings).values()) == {True}

    words = ["--wave", "1", "--pause", "0", "--yes", "-p", "ready_timeout_s=90", *light_words()]
    with Command(runs_dir, "deploy", "--hosts", "prod", *words) as command:
        assert command.wait_for("gpu-2", "launch")
        with debians[1].network_cut():
            time.sleep(CUT_S)
        is_reached = command.wait_for("gpu-3", "launch")
        if is_reached:  # its run has outlasted the minute
            debians[2].restart(is_orderly=False)
        told = command.end()
    if not is_reached:
        print("cut off:", told["exit_code"], told["outcome"])
        assert (told["exit_code"], steps(told)["gpu-2"], told["untouched"]) == (3, "unknown", ["gpu-3"]), told
        assert unit_texts(settings[2:]) == {"gpu-3": before["gpu-3"]}
        with Command(runs_dir, "--resume", told["rollout"]) as command:
            assert command.wait_for("gpu-3", "launch")
            debians[2].restart(is_orderly=False)
            told = command.end()
    print("rebooted:", told["exit_code"], told["outcome"])
    assert {steps(told)[alias] for alias in ALIASES[:2]} == {"passed"}
    assert steps(told)["gpu-3"] in ("failed", "unknown"), told
    told = rollout(capsys, "--resume", told["rollout"])
    assert (told["exit_code"], set(steps(told).values())) == (0, {"passed"}), told
    after = unit_texts(settings)
    assert all(after[alias] != before[alias] for alias in ALIASES)
    assert set(serving(settings).values()) == {True}

    told = rollout(capsys, "--undo", told["rollout"], "--yes")
    assert (told["exit_code"], set(steps(told).values())) == (0, {"undone"}), told
    assert unit_texts(settings) == before
    assert set(serving(settings).values()) == {True}
