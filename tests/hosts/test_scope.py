"""The login's own systemd: units, journal and files of a user without any rights, on a real Debian."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from opslib.domain.facts.journal import journal_command, newest_entry_command, parse_journal
from opslib.domain.facts.scope import arguments_in_scope, in_scope
from opslib.domain.facts.systemd import show_unit_command
from opslib.domain.host import Host, HostSettings
from opslib.domain.launch import JournalSeen
from opslib.domain.survey_reading import survey_program
from opslib.errors import BadParameter, Refused
from opslib.hosts.inventory import load_inventory
from opslib.workflow.install import apply_plan, plan_install, read_unit_text, undo, unit_path
from opslib.workflow.investigate import investigate, wait_until_ended
from opslib.workflow.launch import note_start, pause, show_unit, start_unit, stop_unit, watch_launch
from opslib.workflow.survey import survey_host
from tests.conftest import opened

UNIT = "own-service"
SERVES = (
    "[Unit]\nDescription=Own service\n[Service]\nType=exec\nRestart=on-failure\nRestartSec=1\n"
    "ExecStart=/bin/sh -c 'sleep 1; exec python3 -m http.server {port} --bind 127.0.0.1 --directory /tmp'\n"
)
CRASHES = (
    "[Service]\nType=exec\nExecStart=/bin/sh -c 'echo \"(APIServer pid=7) ERROR 11-29 12:00:00 [x.py:1] OSError: "
    "[Errno 98] error while attempting to bind on address (0.0.0.0, 8000): address already in use\"; sleep 0.3; exit 1'\n"
)


def test_only_systemd_and_its_journal_have_a_scope() -> None:
    """Systemctl speaks to the user manager, journalctl asks for its units by their own fields; nothing else changes."""
    shown = in_scope(show_unit_command("x"), "user")
    assert shown[:4] == ("env", "TZ=UTC", "systemctl", "--user")
    assert in_scope(journal_command("x", follow=True), "user")[-1] == "--user-unit=x.service"
    assert in_scope(journal_command("x", invocation_id="ab"), "user")[-3:] == (
        "_SYSTEMD_INVOCATION_ID=ab",
        "+",
        "USER_INVOCATION_ID=ab",
    )
    for argv in (("cat", "--", "/x"), newest_entry_command(), ("env",), ()):
        assert in_scope(argv, "user") == tuple(argv)
    assert in_scope(show_unit_command("x"), "system") == show_unit_command("x")


def test_vectors_inside_programs_have_it_too() -> None:
    """The programs that watch and survey are told vectors of the same scope."""
    settings = HostSettings(alias="a", address="b", user="ops", scope="user")
    name, arguments = survey_program(settings)
    commands = arguments_in_scope(name, arguments, "user")["commands"]
    assert "--user" in commands["show"]
    assert "--user" in commands["list_units"]
    assert arguments_in_scope(name, arguments, "system") == arguments


def test_the_inventory_knows_the_scope(tmp_path: Path) -> None:
    """The login's scope uses no sudo and has its directories in the login's home; what contradicts that is refused."""
    path = tmp_path / "hosts.toml"
    path.write_text('[hosts.a]\naddress = "a"\nuser = "ops"\nscope = "user"\n')
    settings = load_inventory(path).settings("a")
    assert (settings.unit_dir, settings.has_sudo) == ("/home/ops/.config/systemd/user", False)
    assert settings.state_dir == "/home/ops/.local/state/opslib"
    for wrong in ('user = "ops"\nsudo = true', 'user = "ops"\nsudo = "listed"', "", 'unit_dir = "/x"'):
        path.write_text(f'[hosts.a]\naddress = "a"\nscope = "user"\n{wrong}\n')
        with pytest.raises(BadParameter, match=r"hosts.a"):
            load_inventory(path)
    with pytest.raises(ValidationError):
        HostSettings(alias="a", address="a", scope="machine")


@pytest.fixture(scope="module")
def own(debian: Any) -> Iterator[Host]:
    """`ops` on a real Debian with nothing but its own systemd, which outlives its sessions."""
    assert debian.ssh("loginctl", "enable-linger", "ops").returncode == 0
    plain = debian.ops_settings.model_dump(exclude={"sudo", "unit_dir", "state_dir", "scope"})
    with opened(HostSettings.model_validate({**plain, "scope": "user"})) as host:
        yield host
        host.run(["systemctl", "stop", f"{UNIT}.service"])


def started_id(host: Host, unit: str) -> str:
    """Start the unit; the id of this start, which systemd has only once it began."""
    before = start_unit(host, unit).before.invocation_id
    while (invocation_id := show_unit(host, unit).invocation_id) in ("", before):
        pause(0.05)
    return invocation_id


def install(host: Host, text: str) -> object:
    report = apply_plan(host, plan_install(host, unit=UNIT, unit_text=text))
    assert report.state == "ok", report
    return report


@pytest.mark.realhost
def test_a_unit_of_the_login_is_installed_started_watched_and_stopped(own: Host) -> None:
    """Install, start, watch until it answers, stop, undo: in the login's home, its own manager and without sudo."""
    report = install(own, SERVES.format(port=8123))
    assert unit_path(own, UNIT).startswith("/home/ops/.config/systemd/user/")
    start = start_unit(own, UNIT)
    updates = list(watch_launch(own, UNIT, port=8123, timeout_s=20, start=start, health_path="/", has_gpus=False))
    assert updates[-1].status.state == "ready", updates[-1]
    assert any(isinstance(update.event, JournalSeen) for update in updates)
    assert show_unit(own, UNIT).fragment_path == unit_path(own, UNIT)
    assert stop_unit(own, UNIT).active_state == "inactive"
    assert all(step.state == "ok" for step in undo(own, report))
    assert read_unit_text(own, UNIT) is None
    assert not any(words.startswith("sudo") for words in report.undo)


@pytest.mark.realhost
def test_a_crash_of_the_login_s_unit_is_diagnosed_from_its_own_journal(own: Host) -> None:
    """The journal of one start has the program's lines and the user manager's own, and the verdict is the same."""
    install(own, CRASHES)
    invocation_id = started_id(own, UNIT)
    wait_until_ended(own, UNIT, invocation_id)
    found = investigate(own, UNIT, invocation_id, port=8000, has_gpus=False)
    assert found.diagnosis.cause == "configuration/port-in-use", found
    assert {entry.unit for entry in found.evidence.journal} == {f"{UNIT}.service"}
    assert {entry.invocation_id for entry in found.evidence.journal} == {invocation_id}
    assert any(entry.identifier == "systemd" for entry in found.evidence.journal)
    assert found.evidence.status.result == "exit-code"


@pytest.mark.realhost
def test_a_crash_is_restarted_by_the_user_manager(own: Host) -> None:
    """Killed, the unit is started again by the login's manager: NRestarts and a new invocation tell."""
    install(own, SERVES.format(port=8124))
    before = note_start(own, UNIT)
    assert before.verb == "start"
    started_id(own, UNIT)
    first = show_unit(own, UNIT)
    own.run(["kill", "-KILL", str(first.main_pid)])
    for update in watch_launch(own, UNIT, port=8124, timeout_s=20, health_path="/", has_gpus=False):
        if update.status.state.is_final:
            break
    again = show_unit(own, UNIT)
    assert (again.n_restarts, again.invocation_id != first.invocation_id) == (1, True)
    text = own.run(journal_command(UNIT, after_cursor=before.cursor)).text
    assert {entry.unit for entry in parse_journal(text)} == {f"{UNIT}.service"}


@pytest.mark.realhost
def test_a_survey_sees_the_login_s_units(own: Host) -> None:
    """A survey asks the login's manager, and says nothing of missing sudo."""
    install(own, SERVES.format(port=8125))
    survey = survey_host(own, [UNIT])
    assert [unit.status.load_state for unit in survey.units] == ["loaded"]
    assert survey.units[0].status.fragment_path == unit_path(own, UNIT)


@pytest.mark.realhost
def test_units_that_end_with_the_session_are_refused(debian: Any, own: Host) -> None:
    """Without lingering a deploy would end when the connection does: refused beforehand, with root's one command."""
    debian.ssh("loginctl", "disable-linger", "ops")
    try:
        with pytest.raises(Refused, match=r"Linger=no.*loginctl enable-linger ops"):
            plan_install(own, unit="another", unit_text=CRASHES)
    finally:
        debian.ssh("loginctl", "enable-linger", "ops")
