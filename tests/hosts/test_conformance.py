"""Whatever a host is, it keeps the same promises: on this machine, over sshd, in rehearsal, on a real Debian."""

import hashlib
import random
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opslib.domain.host import Host, HostSettings
from opslib.errors import (
    BadParameter,
    CommandTimedOut,
    HostKeyRefused,
    HostUnreachable,
    NoPythonOnHost,
    PrivilegeRefused,
    UnexpectedAnswer,
)
from opslib.hosts import pipes
from opslib.hosts.commands import CommandHost
from tests.conftest import HOST_KINDS, JUMP, opened
from tests.loopback_sshd import keygen

ECHO_ARGUMENTS = (
    "import os, sys; sys.stdout.buffer.write(b'\\0'.join(os.fsencode(argument) for argument in sys.argv[1:]))"
)
DIFFICULT_ARGUMENTS = (
    "",
    " ",
    "two words",
    "it's",
    '"double"',
    "$HOME `id` $(id) ${x}",
    "back\\slash\\n",
    "line\nbreak\r\n\ttab",
    '{"key": ["value", "it\'s", null], "nested": {"é": "ü"}}',
    "naïve 日本語 🚀",
    "-leading",
    "--",
    "*?[a-z]~!#;&|<>()",
    "a=b",
    "x" * 20_000,
)

over_a_link = pytest.mark.parametrize("any_settings", [*HOST_KINDS[1:], JUMP], indirect=True)
through_a_jump_too = pytest.mark.parametrize("any_settings", [*HOST_KINDS, JUMP], indirect=True)
# What waits long and is the same program everywhere is tried once on each kind of machine.
once_a_machine = pytest.mark.parametrize("any_settings", [HOST_KINDS[0], HOST_KINDS[2], HOST_KINDS[4]], indirect=True)
# asyncssh, which the rehearsal host is made of, takes only UTF-8 in a command.
with_any_bytes = pytest.mark.parametrize("any_settings", [*HOST_KINDS[:2], *HOST_KINDS[3:]], indirect=True)
on_a_whole_machine = pytest.mark.parametrize("any_settings", HOST_KINDS[3:], indirect=True)
without_rights = pytest.mark.parametrize("any_settings", HOST_KINDS[4:], indirect=True)


@pytest.fixture
def scratch(any_host: Host) -> Iterator[str]:
    """A directory of the host that goes away again."""
    path = any_host.run(["mktemp", "--directory"]).text.strip()
    yield path
    any_host.run(["rm", "--recursive", "--force", "--", path], sudo=True)


def marker() -> str:
    """A sleeping time that no other process has."""
    return f"{random.randint(3000, 9000)}.{random.randint(10**6, 10**7)}"


def is_asleep(host: Host, duration: str) -> bool:
    """Whether a `sleep` of that duration runs on the host (the brackets keep the question from finding itself)."""
    return host.run(["pgrep", "-f", f"[s]leep {duration}"]).is_success


def is_gone_soon(host: Host, duration: str, within_s: float = 5.0) -> bool:
    """Whether no `sleep` of that duration is left after at most `within_s`."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not is_asleep(host, duration):
            return True
        time.sleep(0.1)
    return False


HANGS_S = 60  # what is tested would otherwise not come back at all; no measure of how fast it is


def family(duration: str) -> list[str]:
    """A shell with a child, a grandchild in a session of its own, and one whose parent has gone."""
    return ["sh", "-c", f"echo up; setsid sleep {duration} & (setsid sleep {duration} &); sleep {duration}; :"]


@through_a_jump_too
def test_arguments_arrive_byte_for_byte(any_host: Host) -> None:
    """No quoting, encoding or shell changes an argument."""
    result = any_host.run([any_host.settings.python, "-c", ECHO_ARGUMENTS, *DIFFICULT_ARGUMENTS])
    assert result.stdout.split(b"\0") == [argument.encode() for argument in DIFFICULT_ARGUMENTS]


@with_any_bytes
def test_undecodable_file_names_survive(any_host: Host) -> None:
    """A file name that is no UTF-8, as os.listdir gives it, arrives as the bytes it stands for."""
    name = b"\xff\xfe.bin".decode("utf-8", "surrogateescape")
    assert any_host.run(["printf", "%s", name]).stdout == b"\xff\xfe.bin"


@through_a_jump_too
@pytest.mark.parametrize(
    "data", [b"", b"\0", bytes(range(256)), b"a\r\nb\n\x1a\x04", random.Random(7).randbytes(5_000_000)], ids=len
)
def test_input_comes_back_byte_for_byte(any_host: Host, data: bytes) -> None:
    """Standard input and output carry any bytes, megabytes at a time, and input ends."""
    assert any_host.run(["cat"], input=data).stdout == data


@through_a_jump_too
def test_both_outputs_flow_at_once(any_host: Host) -> None:
    """Megabytes on standard error don't block standard output, nor unread input either."""
    script = "head -c 3000000 /dev/zero >&2; head -c 3000000 /dev/zero; exit 5"
    result = any_host.run(["sh", "-c", script], input=bytes(4_000_000))
    assert (len(result.stdout), len(result.stderr), result.exit_status) == (3_000_000, 3_000_000, 5)


@pytest.mark.parametrize("status", [0, 1, 2, 77, 124, 137, 255])
def test_exit_status_is_a_result(any_host: Host, status: int) -> None:
    """A command may exit as it likes, even with the numbers that `timeout` uses."""
    assert any_host.run(["sh", "-c", f"exit {status}"]).exit_status == status


def test_errors_are_apart(any_host: Host) -> None:
    """Standard error doesn't mix into standard output."""
    result = any_host.run(["sh", "-c", "echo out; echo err >&2"])
    assert (result.text, result.error_text) == ("out\n", "err")


def test_a_killed_command_says_the_signal(any_host: Host) -> None:
    """A command that a signal ended has 128 and the signal's number as its exit status, as in a shell."""
    assert any_host.run(["sh", "-c", "kill -SEGV $$"]).exit_status == 139


def test_a_missing_program_is_127(any_host: Host) -> None:
    """No such program is an exit status, not an exception."""
    assert any_host.run(["opslib-no-such-program"]).exit_status == 127


@pytest.mark.parametrize(
    "argv", [[], [""], ["a\0b"], "ls -l", ["echo", "x" * 130_000], ["echo", "'" * 40_000]], ids=repr
)
def test_an_impossible_vector_is_refused(any_host: Host, argv: list[str]) -> None:
    """What no kernel could run is refused before anything is sent."""
    with pytest.raises(BadParameter):
        any_host.run(argv)


def test_answers_are_in_english(any_host: Host) -> None:
    """Messages are read by programs: the locale is C."""
    assert any_host.run(["sh", "-c", "echo $LC_ALL"]).text == "C\n"


@through_a_jump_too
@pytest.mark.parametrize("sudo", [False, True])
def test_a_timeout_ends_the_whole_tree(any_host: Host, sudo: bool) -> None:
    """When the time is up nothing of the command is left, not even in another session."""
    duration = marker()
    began_at = time.monotonic()
    with pytest.raises(CommandTimedOut) as caught:
        any_host.run(family(duration), timeout_s=0.5, sudo=sudo)
    assert time.monotonic() - began_at < HANGS_S
    assert any_host.settings.alias in str(caught.value)
    assert not is_asleep(any_host, duration)


@once_a_machine
def test_a_timeout_ends_what_ignores_sigterm(any_host: Host) -> None:
    """A command that ignores SIGTERM gets two seconds, then SIGKILL."""
    duration = marker()
    with pytest.raises(CommandTimedOut):
        any_host.run(["sh", "-c", f"trap '' TERM; sleep {duration}; sleep {duration}"], timeout_s=0.2)
    assert not is_asleep(any_host, duration)


@through_a_jump_too
@pytest.mark.parametrize("sudo", [False, True])
def test_lines_come_as_they_are_written(any_host: Host, sudo: bool) -> None:
    """A line is handed over when it is written, not when the command ends; closing ends the whole tree."""
    duration = marker()
    began_at = time.monotonic()
    with any_host.stream(family(duration), sudo=sudo) as lines:
        assert next(iter(lines)) == b"up"
        assert time.monotonic() - began_at < HANGS_S
        assert is_asleep(any_host, duration)
    assert is_gone_soon(any_host, duration)


@through_a_jump_too
def test_a_stream_ends_with_its_command(any_host: Host) -> None:
    """All lines arrive, of any length and any bytes, the last one also without a newline."""
    with any_host.stream(["printf", "a\\n\\n\\377\\000b\\n%0200000d\\nlast", "7"]) as lines:
        got = list(lines)
    assert got == [b"a", b"", b"\xff\0b", b"7".rjust(200_000, b"0"), b"last"]


def test_a_stream_can_be_closed_from_another_thread(any_host: Host) -> None:
    """Closing wakes whoever waits for the next line, and may be done twice."""
    duration = marker()
    with any_host.stream(["sleep", duration]) as lines:
        threading.Timer(0.5, lines.close).start()
        assert list(lines) == []
        lines.close()
    assert is_gone_soon(any_host, duration)


def test_a_stream_nobody_reads_can_be_closed(any_host: Host) -> None:
    """A command that is blocked because nobody reads its output ends as well."""
    duration = marker()
    with any_host.stream(["sh", "-c", f"sleep {duration} & cat /dev/zero"]):
        time.sleep(0.5)
    assert is_gone_soon(any_host, duration)


@over_a_link
@pytest.mark.parametrize("sudo", [False, True])
def test_link_loss_ends_the_stream_on_the_host(any_settings: HostSettings, any_host: Host, sudo: bool) -> None:
    """When the connection breaks, the stream says so and its tree ends on the host."""
    duration = marker()
    with opened(any_settings) as doomed, doomed.stream(family(duration), sudo=sudo) as lines:
        reading = iter(lines)
        assert next(reading) == b"up"
        break_connection(doomed)
        with pytest.raises(HostUnreachable):
            list(reading)
    assert is_gone_soon(any_host, duration)


@pytest.mark.parametrize("sudo", [False, True])
def test_a_silent_link_ends_the_stream_on_the_host(any_host: Host, monkeypatch: pytest.MonkeyPatch, sudo: bool) -> None:
    """A program that hears no heartbeat for a while takes the link for dead (a pulled cable closes nothing)."""
    monkeypatch.setattr("opslib.hosts.commands.LINK_TIMEOUT_S", 0.6)
    duration = marker()
    with any_host.stream(family(duration), sudo=sudo) as lines:
        assert next(iter(lines)) == b"up"
        assert is_gone_soon(any_host, duration)


@once_a_machine
def test_a_heartbeat_keeps_the_stream(any_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without a line stays open as long as its reader is there."""
    monkeypatch.setattr("opslib.hosts.commands.LINK_TIMEOUT_S", 0.6)
    monkeypatch.setattr(pipes, "HEARTBEAT_S", 0.1)
    with any_host.stream(["sh", "-c", "sleep 1.2; echo late"]) as lines:
        assert list(lines) == [b"late"]


@over_a_link
def test_a_lost_connection_is_replaced(any_settings: HostSettings) -> None:
    """A connection that died between two commands is opened again, once, and nobody notices."""
    with opened(any_settings) as host:
        assert host.run(["true"]).is_success
        break_connection(host)
        assert host.run(["true"]).is_success


@over_a_link
def test_a_command_is_never_repeated(any_settings: HostSettings, any_host: Host, scratch: str) -> None:
    """A command whose answer was lost is not sent again: the error says that its end is not known."""
    with opened(any_settings) as doomed:
        doomed.run(["true"])
        threading.Timer(0.7, break_connection, [doomed]).start()
        with pytest.raises(HostUnreachable, match="not known"):
            doomed.run(["sh", "-c", f"echo once >> {scratch}/count; sleep 2"])
    assert any_host.read_file(f"{scratch}/count") == b"once\n"


def break_connection(host: Host) -> None:
    """Cut the TCP connection under a host, without a farewell."""
    while not isinstance(host, CommandHost):
        host = host._host
    host._connection.transport.sock.close()


@through_a_jump_too
def test_programs_answer(any_host: Host) -> None:
    """A module of onhost runs on the host's own Python with its arguments."""
    result = any_host.run_program("identity", {})
    assert result.is_success
    assert b'"boot_id"' in result.stdout


def test_a_program_may_take_its_time(any_host: Host) -> None:
    """A program is ended when its time is up, with what it started."""
    duration = marker()
    with pytest.raises(CommandTimedOut):
        any_host.run_program("supervise", {"argv": family(duration)}, timeout_s=0.6)
    assert not is_asleep(any_host, duration)


@once_a_machine
def test_a_heartbeat_keeps_a_long_program(any_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that works for longer than a link may be silent isn't ended while somebody waits for it."""
    monkeypatch.setattr("opslib.hosts.commands.LINK_TIMEOUT_S", 0.6)
    monkeypatch.setattr(pipes, "HEARTBEAT_S", 0.1)
    assert any_host.run_program("supervise", {"argv": ["sleep", "1.2"]}).exit_status == 0


def test_an_unknown_program_is_refused(any_host: Host) -> None:
    """A misspelt program is refused before anything is sent."""
    with pytest.raises(BadParameter, match="no on-host program"):
        any_host.run_program("identitty", {})


def test_a_host_without_python_says_so(any_settings: HostSettings) -> None:
    """Without a Python on the host, programs are refused with what to do about it; commands still run."""
    with opened(any_settings.model_copy(update={"python": "/opt/no/python3"})) as host:
        with pytest.raises(NoPythonOnHost, match="install Python"):
            host.run_program("identity", {})
        with pytest.raises(NoPythonOnHost), host.stream(["true"]) as lines:
            list(lines)
        assert host.run(["true"]).is_success


def test_a_stream_of_a_missing_program_just_ends(any_host: Host) -> None:
    """A missing program on a host with Python is not taken for a missing Python."""
    with any_host.stream(["opslib-no-such-program"]) as lines:
        assert list(lines) == []


@through_a_jump_too
def test_files_are_written_and_read(any_host: Host, scratch: str) -> None:
    """Any bytes go into a file with the mode that was asked for, whatever its name; a missing one reads as None."""
    path, content = f"{scratch}/naïve 'name' $x.env", bytes(range(256)) * 300
    assert any_host.read_file(path) is None
    receipt = any_host.write_file(path, content, mode=0o640)
    assert (receipt.is_changed, receipt.backup_path) == (True, None)
    assert receipt.sha256 == hashlib.sha256(content).hexdigest()
    assert any_host.read_file(path) == content
    assert any_host.run(["stat", "--format=%a", "--", path]).text == "640\n"
    assert any_host.run(["ls", "-A", scratch]).text.count("\n") == 1


def test_replacing_keeps_the_previous_content(any_host: Host, scratch: str) -> None:
    """What was there before lies beside the file, under a name with the UTC time."""
    path = f"{scratch}/unit"
    any_host.write_file(path, b"one")
    receipt = any_host.write_file(path, b"two")
    assert receipt.backup_path
    assert receipt.backup_path.startswith(f"{path}.20")
    assert receipt.backup_path.endswith("Z.bak")
    assert any_host.read_file(receipt.backup_path) == b"one"
    assert any_host.read_file(path) == b"two"


def test_unchanged_content_writes_nothing(any_host: Host, scratch: str) -> None:
    """The same content and mode leave the file alone, to its inode; another mode is a change."""
    path = f"{scratch}/unit"
    any_host.write_file(path, b"same")
    inode = any_host.run(["stat", "--format=%i", path]).text
    receipt = any_host.write_file(path, b"same")
    assert (receipt.is_changed, receipt.backup_path) == (False, None)
    assert any_host.run(["stat", "--format=%i", path]).text == inode
    assert any_host.write_file(path, b"same", mode=0o600).is_changed


def test_a_reader_never_sees_half_a_file(any_host: Host, scratch: str) -> None:
    """A file is replaced by a finished one: its inode changes, and an open reader keeps the old content."""
    path = f"{scratch}/big"
    any_host.write_file(path, b"a" * 1_000_000)
    with ThreadPoolExecutor() as pool:
        script = f'for i in 1 2 3 4 5 6 7 8; do tr -d ab < "{path}" | wc -c; wc -c < "{path}"; done'
        reading = pool.submit(any_host.run, ["sh", "-c", script])
        any_host.write_file(path, b"b" * 1_000_000)
    assert set(reading.result().text.split()) == {"0", "1000000"}


@on_a_whole_machine
def test_a_privileged_write_keeps_or_sets_the_owner(any_host: Host, scratch: str) -> None:
    """With sudo the owner is the one that was asked for; without one the previous owner stays."""
    path = f"{scratch}/owned"
    any_host.write_file(path, b"one", owner="nobody:nogroup", sudo=True)
    any_host.write_file(path, b"two", sudo=True)
    assert any_host.run(["stat", "--format=%U:%G", path], sudo=True).text == "nobody:nogroup\n"


def test_a_missing_directory_is_named(any_host: Host, scratch: str) -> None:
    """A file cannot be written into a directory that doesn't exist, and the error says just that."""
    with pytest.raises(BadParameter, match="directory does not exist"):
        any_host.write_file(f"{scratch}/absent/file", b"x")
    with pytest.raises(BadParameter, match="absolute"):
        any_host.write_file("relative/file", b"x")


def test_a_directory_is_no_file(any_host: Host, scratch: str) -> None:
    """Reading or replacing a directory is an error, and the directory stays."""
    with pytest.raises(UnexpectedAnswer, match="directory"):
        any_host.read_file(scratch)
    with pytest.raises(UnexpectedAnswer):
        any_host.write_file(scratch, b"x")


@without_rights
def test_files_without_rights_are_refused(any_host: Host) -> None:
    """A login without the rights is refused with a word on sudo, and sudo then works."""
    with pytest.raises(PrivilegeRefused, match="sudo"):
        any_host.read_file("/etc/shadow")
    with pytest.raises(PrivilegeRefused, match="sudo"):
        any_host.write_file("/etc/opslib-forbidden", b"x")
    assert any_host.read_file("/etc/shadow", sudo=True)


@through_a_jump_too
def test_commands_run_at_once(any_host: Host) -> None:
    """Many threads share one host, more of them than sshd permits sessions."""
    began_at = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda n: any_host.run(["sh", "-c", f"sleep 0.5; echo {n}"]), range(16)))
    assert [result.text for result in results] == [f"{n}\n" for n in range(16)]
    assert time.monotonic() - began_at < 16 * 0.5, "one after the other"


SERVE = (
    "import http.server,sys\n"
    "class Answer(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.end_headers(); self.wfile.write(b'x' * 2000000)\n"
    "    def log_message(self, *_): pass\n"
    "server = http.server.ThreadingHTTPServer(('', 0), Answer)\n"  # the rehearsal host has a loopback address of its own
    "print(server.server_port, flush=True)\n"
    "server.serve_forever()\n"
)


@through_a_jump_too
def test_a_port_is_forwarded(any_host: Host) -> None:
    """A port of the host's loopback is reached from here, by many connections at once."""
    with any_host.stream([any_host.settings.python, "-c", SERVE]) as lines:
        remote_port = int(next(iter(lines)))
        with any_host.forward_port(remote_port) as port, ThreadPoolExecutor(8) as pool:

            def size(_: int) -> int:
                return len(urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20).read())

            assert list(pool.map(size, range(8))) == [2_000_000] * 8


def test_a_forwarded_port_without_a_listener_refuses(any_host: Host) -> None:
    """When nothing listens on the host, a connection through the forwarded port ends at once."""
    with any_host.forward_port(9) as port, pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=15)


@over_a_link
@pytest.mark.parametrize("change", ["unknown", "changed"])
def test_an_untrusted_key_runs_nothing(
    any_settings: HostSettings, any_host: Host, scratch: str, tmp_path: Path, change: str
) -> None:
    """A host key that is unknown or has changed is refused, with its fingerprint and the command that accepts it."""
    known = tmp_path / "known_hosts"
    known.touch()
    if change == "changed":
        keygen(tmp_path / "other")
        name = Path(any_settings.known_hosts_file or "").read_text().split()[0]
        known.write_text(f"{name} {(tmp_path / 'other.pub').read_text()}")
    stranger = any_settings.model_copy(update={"known_hosts_file": str(known)})
    with opened(stranger) as host, pytest.raises(HostKeyRefused, match="SHA256:") as caught:
        host.run(["touch", f"{scratch}/ran"])
    assert ("ssh-keygen -R" in caught.value.hint) == (change == "changed")
    assert "ssh-keyscan" in caught.value.hint
    assert any_host.read_file(f"{scratch}/ran") is None
    assert caught.value.exit_code == 4
