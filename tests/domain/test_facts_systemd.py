"""What `systemctl show` says, read from real hosts' answers."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from opslib.domain.facts.systemd import parse_unit_show, show_unit_command, unit_name
from opslib.errors import BadParameter, UnexpectedAnswer

CASES = Path(__file__).parents[1] / "cases" / "systemd"


def read(name):
    return parse_unit_show((CASES / f"real-{name}.show.txt").read_text())


def test_a_running_unit_has_a_main_process_and_aware_utc_times():
    """Start time, invocation and main process are those of the one running start."""
    status = read("healthy")
    assert (status.unit, status.load_state, status.active_state) == ("vllm-tiny.service", "loaded", "active")
    assert status.exec_main_start_at == datetime(2026, 11, 29, 15, 28, 28, tzinfo=UTC)
    assert (status.main_pid, status.n_restarts, status.is_running) == (895, 0, True)
    assert status.invocation_id == "1fdedc9f4c9c4576bac3b8f0fc64702c"


def test_a_restarted_unit_reads_active_but_counts_its_restart():
    """A unit that is active again after a crash differs from health only by n_restarts and invocation_id."""
    status = read("port-in-use")
    assert (status.active_state, status.n_restarts) == ("active", 1)


def test_an_exit_is_told_in_words():
    """ExecMainCode is a waitid code: 1 is an exit status, 2 a signal."""
    assert read("exec-203").exit_words == "exited with status 203"
    killed = parse_unit_show("LoadState=loaded\nActiveState=failed\nExecMainCode=2\nExecMainStatus=9\n")
    assert killed.exit_words == "killed by signal 9"


def test_a_guard_that_runs_is_activating_without_a_main_process():
    """ExecStartPre runs in activating (start-pre), with no main start time."""
    status = read("start-pre-guard-timeout")
    assert (status.active_state, status.sub_state, status.exec_main_start_at) == ("activating", "start-pre", None)


def test_an_unknown_unit_is_read_from_its_load_state():
    """`systemctl show` exits 0 for unknown units: only LoadState tells."""
    status = parse_unit_show("Id=x.service\nLoadState=not-found\nActiveState=inactive\nSubState=dead\n")
    assert not status.is_installed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Failed to connect to bus",
        "LoadState=loaded\nActiveState=active\nExecMainStartTimestamp=Sun 2026-11-29 15:28:28 CET\n",
        "LoadState=loaded\nActiveState=active\nNRestarts=many\n",
    ],
)
def test_what_cannot_be_read_is_an_unexpected_answer(text):
    """A zone other than UTC is ambiguous, so it's never guessed at."""
    with pytest.raises(UnexpectedAnswer):
        parse_unit_show(text)


def test_the_question_asks_in_utc_and_names_the_unit_in_full():
    """TZ=UTC works for every systemd; a unit that begins with a dash is no option."""
    command = show_unit_command("vllm-minimax")
    assert command[:4] == ("env", "TZ=UTC", "systemctl", "show")
    assert command[-2:] == ("--", "vllm-minimax.service")
    assert unit_name("a.timer") == "a.timer"


@pytest.mark.parametrize("unit", ["vllm-*", "vllm?", "[ab]", "a b", "../a", "a\nb", "größe", "v@", "v@.service"])
def test_a_unit_is_one_unit(unit: str) -> None:
    """Systemctl takes a pattern for all units that match, and a template never runs: neither is sent to a host."""
    with pytest.raises(BadParameter):
        show_unit_command(unit)
    assert show_unit_command(r"a\x2db:c_d.e@f-1")[-1] == r"a\x2db:c_d.e@f-1.service"
