"""What SSH adds: who is trusted, what a failed connection says, and a link that dies in silence."""

import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from paramiko.ssh_exception import SSHException

from opslib.domain.host import HostSettings
from opslib.errors import BadParameter, HostKeyRefused, HostUnreachable, OpslibError, PrivilegeRefused
from opslib.hosts import connection
from opslib.hosts.ssh import ChannelPipe, SshHost
from tests.conftest import opened
from tests.loopback_sshd import free_port, keygen, loopback_sshd

HANGS_S = 60  # what is tested would otherwise not come back at all; no measure of how fast it is


def refusal(settings: HostSettings) -> OpslibError:
    """The error that a first command gets."""
    with opened(settings) as host, pytest.raises(OpslibError) as caught:
        host.run(["true"])
    return caught.value


def test_a_closed_port_says_so(loopback: HostSettings) -> None:
    """Connection refused: could not find out, and the port is named."""
    port = free_port()
    error = refusal(loopback.model_copy(update={"port": port}))
    assert isinstance(error, HostUnreachable)
    assert "refused" in error.message
    assert str(port) in error.message


def test_an_unknown_name_says_so(loopback: HostSettings) -> None:
    """A name that nobody knows: could not find out, and the address is to be checked."""
    error = refusal(loopback.model_copy(update={"address": "no-such-host.invalid"}))
    assert isinstance(error, HostUnreachable)
    assert "name is not known" in error.message


def test_silence_is_bounded(loopback: HostSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that accepts and says nothing is given up."""
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        began_at = time.monotonic()
        error = refusal(loopback.model_copy(update={"port": mute.getsockname()[1]}))
    assert isinstance(error, HostUnreachable)
    assert time.monotonic() - began_at < HANGS_S


def test_another_service_is_not_ssh(loopback: HostSettings) -> None:
    """A port where something else answers is no SSH."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            client, _ = other.accept()
            client.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            client.close()

        threading.Thread(target=answer, daemon=True).start()
        error = refusal(loopback.model_copy(update={"port": other.getsockname()[1]}))
    assert isinstance(error, HostUnreachable)
    assert "no SSH connection" in error.message


def test_a_refused_login_says_what_to_check(loopback: HostSettings, tmp_path: Path) -> None:
    """A key that the host doesn't accept is a refusal that names the login."""
    keygen(tmp_path / "stranger")
    error = refusal(loopback.model_copy(update={"identity_file": str(tmp_path / "stranger")}))
    assert isinstance(error, PrivilegeRefused)
    assert str(loopback.user) in error.message
    assert "identity_file" in error.hint


def test_a_key_under_a_passphrase_goes_to_the_agent(loopback: HostSettings, tmp_path: Path) -> None:
    """Nobody can type a passphrase here: the refusal says to use ssh-add."""
    protected = tmp_path / "protected"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(protected)], check=True)
    error = refusal(loopback.model_copy(update={"identity_file": str(protected)}))
    assert isinstance(error, PrivilegeRefused)
    assert "ssh-add" in error.hint


def test_a_missing_identity_file_is_named(loopback: HostSettings, tmp_path: Path) -> None:
    """An identity file that isn't there is a bad parameter, before anything is contacted."""
    error = refusal(loopback.model_copy(update={"identity_file": str(tmp_path / "absent")}))
    assert isinstance(error, BadParameter)
    assert "absent" in error.message


def test_the_accepting_command_is_right(loopback: HostSettings, tmp_path: Path) -> None:
    """The command that is offered for an unknown key, once run, makes the host known."""
    stranger = loopback.model_copy(update={"known_hosts_file": str(tmp_path / "known_hosts")})
    error = refusal(stranger)
    assert isinstance(error, HostKeyRefused)
    command = error.hint.rpartition("then `")[2].rstrip("`")
    subprocess.run(command, shell=True, check=True, capture_output=True)
    with opened(stranger) as host:
        assert host.run(["true"]).is_success


def test_nothing_is_asked_before_the_key_is_known(loopback: HostSettings, tmp_path: Path) -> None:
    """With an unknown host key no login is even tried."""
    log = Path(loopback.known_hosts_file or "").with_name("log")
    before = log.read_text()
    refusal(loopback.model_copy(update={"known_hosts_file": str(tmp_path / "none")}))
    time.sleep(0.3)
    assert "Accepted" not in log.read_text().removeprefix(before)


def jump_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: HostSettings, jump: HostSettings
) -> HostSettings:
    """A home whose ~/.ssh/config reaches `inner` through `jump`, and settings that name only `inner`."""
    ssh = tmp_path / "home" / ".ssh"
    ssh.mkdir(parents=True)
    (ssh / "config").write_text(
        f"Host inner\n  HostName 127.0.0.1\n  Port {target.port}\n  User {target.user}\n"
        f"  IdentityFile {target.identity_file}\n  ProxyJump jump\n"
        f"Host jump\n  HostName 127.0.0.1\n  Port {jump.port}\n  User {jump.user}\n  IdentityFile {jump.identity_file}\n"
    )
    known = [Path(settings.known_hosts_file or "").read_text() for settings in (target, jump)]
    (ssh / "known_hosts").write_text("".join(known))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return HostSettings(alias="inner", address="inner")


def test_jump_hosts_of_the_configuration_are_used(
    loopback: HostSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """~/.ssh/config is honoured, with HostName, Port, User, IdentityFile and ProxyJump; forwarding works through it."""
    (tmp_path / "jump").mkdir()
    with loopback_sshd(tmp_path / "jump") as jump:
        settings = jump_home(tmp_path, monkeypatch, loopback, jump)
        with opened(settings) as host:
            port_seen = host.run(["sh", "-c", "echo $SSH_CONNECTION"]).text.split()[3]
            assert port_seen == str(loopback.port)
    assert "Accepted publickey" in (tmp_path / "jump" / "log").read_text()


def test_a_jump_host_must_be_known_too(loopback: HostSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A jump host with an unknown key is refused like any other."""
    (tmp_path / "jump").mkdir()
    with loopback_sshd(tmp_path / "jump") as jump:
        settings = jump_home(tmp_path, monkeypatch, loopback, jump)
        shutil.copy(loopback.known_hosts_file or "", tmp_path / "home" / ".ssh" / "known_hosts")
        error = refusal(settings)
    assert isinstance(error, HostKeyRefused)
    assert str(jump.port) in error.message


def test_a_host_that_permits_no_session_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the host opens no channel, the setting to look at is named."""
    monkeypatch.setattr("opslib.hosts.ssh._SESSION_WAIT_S", 0.5)
    with loopback_sshd(tmp_path, "MaxSessions 0") as settings:
        error = refusal(settings)
    assert isinstance(error, HostUnreachable)
    assert "MaxSessions" in error.hint


@pytest.mark.realhost
def test_a_login_without_sudo_is_refused(debian: Any) -> None:
    """`sudo -n` that says no is a refusal with what to do, for commands, programs and streams."""
    with opened(debian.nosudo_settings) as host:
        with pytest.raises(PrivilegeRefused, match="NOPASSWD"):
            host.run(["true"], sudo=True)
        with pytest.raises(PrivilegeRefused, match="NOPASSWD"):
            host.run_program("identity", {}, sudo=True)
        with pytest.raises(PrivilegeRefused, match="NOPASSWD"), host.stream(["true"], sudo=True) as lines:
            list(lines)
        with pytest.raises(PrivilegeRefused, match="NOPASSWD"):
            host.write_file("/etc/opslib-forbidden", b"x", sudo=True)


@pytest.mark.realhost
def test_a_pulled_cable_is_noticed_at_both_ends(debian: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When packets vanish, the reader hears of it, the host ends the command, and the next command reconnects."""
    monkeypatch.setattr(connection, "KEEPALIVE_S", 1)
    monkeypatch.setattr(connection, "_UNACKNOWLEDGED_MS", 1500)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 2)
    monkeypatch.setattr("opslib.hosts.commands.LINK_TIMEOUT_S", 3.0)
    host = SshHost(debian.settings)
    with host.stream(["sh", "-c", "echo up; setsid sleep 4321.5 & sleep 4321.5"]) as lines:
        reading = iter(lines)
        assert next(reading) == b"up"
        with debian.network_cut():
            began_at = time.monotonic()
            with pytest.raises(HostUnreachable):
                list(reading)
            assert time.monotonic() - began_at < HANGS_S
            with pytest.raises(HostUnreachable):
                host.run(["true"])
            time.sleep(max(0.0, began_at + 6 - time.monotonic()))
    assert not host.run(["pgrep", "-f", "[s]leep 4321.5"]).is_success
    host.close()


@pytest.mark.realhost
def test_a_command_on_a_dead_link_is_given_up(debian: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command whose answer cannot come is given up soon after its time, as not known; the host ends it by itself."""
    monkeypatch.setattr("opslib.hosts.commands._LINK_MARGIN_S", 1.0)
    monkeypatch.setattr("opslib.hosts.ssh.CONNECT_TIMEOUT_S", 2)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 2)
    with opened(debian.settings) as host:
        host.run(["true"])
        with debian.network_cut():
            began_at = time.monotonic()
            with pytest.raises(HostUnreachable):
                host.run(["sleep", "4321.75"], timeout_s=1)
            assert time.monotonic() - began_at < HANGS_S
        with ThreadPoolExecutor() as pool:
            running = pool.submit(host.run, ["sleep", "4321.75"], timeout_s=2)
            time.sleep(0.7)
            began_at = time.monotonic()
            with debian.network_cut(), pytest.raises(HostUnreachable, match="no answer"):
                running.result()
            assert time.monotonic() - began_at < HANGS_S
    with opened(debian.settings) as host:
        assert not host.run(["pgrep", "-f", "[s]leep 4321.75"]).is_success


@pytest.mark.realhost
@pytest.mark.parametrize("error", [EOFError(), SSHException("Channel closed."), BrokenPipeError()])
@pytest.mark.parametrize(("call", "arguments"), [("write", (b"x",)), ("end_input", ())])
def test_a_transport_that_dies_under_a_message_is_a_broken_pipe(
    error: Exception, call: str, arguments: tuple[bytes, ...]
) -> None:
    """Whatever paramiko says of a dead transport, those who feed a command see one kind of error."""
    channel = Mock(**{"sendall.side_effect": error, "shutdown_write.side_effect": error, "close.side_effect": error})
    pipe = ChannelPipe(channel, Mock())
    with pytest.raises(BrokenPipeError):
        getattr(pipe, call)(*arguments)
    pipe.close()
    channel.close.assert_called_once_with()


def test_a_host_that_restarts_is_reached_again(debian: Any) -> None:
    """After the host was restarted the same object goes on, with a new connection."""
    host = SshHost(debian.settings)
    before = host.run(["cat", "/proc/sys/kernel/random/boot_id"])
    debian.restart()
    assert host.run(["true"]).is_success
    assert before.is_success
    host.close()


@pytest.mark.realhost
def test_each_hop_has_its_pinned_key(jump: HostSettings, tmp_path: Path) -> None:
    """Through a jump host both keys are checked: with only one of them known, the other host is refused by its name."""
    lines = Path(jump.known_hosts_file or "").read_text().splitlines(keepends=True)
    known = tmp_path / "known_hosts"
    settings = jump.model_copy(update={"known_hosts_file": str(known)})
    for pinned, refused in ((lines[0], jump.address), (lines[1], str(jump.proxy_jump).rpartition(":")[2])):
        known.write_text(pinned)
        error = refusal(settings)
        assert isinstance(error, HostKeyRefused)
        assert refused in error.message
    known.write_text("".join(lines))
    with opened(settings) as host:
        assert host.run(["hostname"]).text.strip() == jump.alias


@pytest.mark.realhost
def test_the_hop_that_fails_is_named(jump: HostSettings) -> None:
    """When the jump host doesn't answer the error says so, not that the host behind it is down."""
    port = free_port()
    error = refusal(jump.model_copy(update={"proxy_jump": f"nobody@127.0.0.1:{port}"}))
    assert isinstance(error, HostUnreachable)
    assert str(port) in error.message
    error = refusal(jump.model_copy(update={"port": 9}))
    assert isinstance(error, HostUnreachable)
    assert "jump host could not reach it" in error.message
    assert jump.address in error.message
