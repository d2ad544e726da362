"""The rehearsal host from outside: a machine reached over SSH, as a plain `ssh` client sees it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from opslib.errors import UnknownName
from opslib.rehearsal import processes
from opslib.rehearsal.server import start_rehearsal

QUICK_UNIT = "[Service]\nExecStart=/usr/bin/env python3 -m http.server 8000 --bind {address}\n"


def ssh_vector(settings, *options):
    return [
        *("ssh", "-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-i", settings.identity_file),
        *("-o", f"UserKnownHostsFile={settings.known_hosts_file}", "-p", str(settings.port), *options),
        f"{settings.user}@{settings.address}",
    ]


def ssh(host, script, *, options=(), **keywords):
    vector = [*ssh_vector(host.settings, *options), script]
    keywords = {"stdin": subprocess.DEVNULL} | keywords if "input" not in keywords else keywords
    return subprocess.run(vector, capture_output=True, timeout=30, check=False, **keywords)


def text(host, script):
    result = ssh(host, script)
    return result.stdout.decode() + result.stderr.decode()


@pytest.fixture(scope="module")
def host():
    with start_rehearsal("healthy") as running:
        yield running


def test_starts_with_the_whole_checkpoint():
    """The default scenario's host is up with all 125 shards in place."""
    with start_rehearsal() as host:
        assert host.scenario == "sampler-oom"
        assert len(list(Path(host.settings.models_dir, "minimax-m2-230b-fp8").glob("*.safetensors"))) == 125


def test_unknown_scenario_starts_nothing():
    """A misspelt scenario is refused with the nearest name."""
    with pytest.raises(UnknownName, match="sampler-oom"):
        start_rehearsal("sampler-om")


def test_streams_are_binary_and_the_status_is_the_commands(host):
    """Standard input, output, error and exit status cross unchanged."""
    data = bytes(range(256)) * 4096
    result = ssh(host, "cat; printf '\\377' >&2; exit 7", input=data)
    assert (result.stdout, result.stderr, result.returncode) == (data, b"\xff", 7)


def test_death_by_signal_is_told(host):
    """A command that a signal ended is told as such (ssh shows 255)."""
    assert ssh(host, "kill -9 $$").returncode == 255


def test_session_environment_is_a_fresh_login(host):
    """A session sees the host's programs first, its own home, and nothing of the daemon's environment."""
    names = {line.partition("=")[0] for line in text(host, "env").splitlines()}
    assert names <= {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "PWD", "SHLVL", "_"),
        *("SSH_CLIENT", "SSH_CONNECTION", "OPSLIB_LOOPBACK", "OPSLIB_CGROUP", "OPSLIB_CLOCK"),
    }
    assert text(host, "pwd; command -v systemctl").split() == [f"{host.root}/home/ops", f"{host.root}/bin/systemctl"]


def test_command_outlives_its_channel(host, tmp_path):
    """When the connection ends the command goes on, as under sshd without a terminal; only its pipes are closed."""
    mark = tmp_path / "mark"
    process = subprocess.Popen([*ssh_vector(host.settings), f"sleep 0.6; echo on > {mark}"], stdin=subprocess.DEVNULL)
    time.sleep(0.3)
    process.kill()
    process.wait()
    assert not mark.exists()
    time.sleep(0.8)
    assert mark.read_text() == "on\n"


def ends_with_its_connection(host, command):
    """Whether a command's process is gone soon after its connection was lost."""
    process = subprocess.Popen([*ssh_vector(host.settings), f"echo $$; {command}"], stdout=subprocess.PIPE)
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while processes.is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not processes.is_alive(pid)


def test_writer_without_reader_gets_sigpipe(host):
    """A command that writes on after its connection ended dies of it; one that reads sees the end of its input."""
    assert ends_with_its_connection(host, "exec yes")


@pytest.mark.parametrize(("user", "option"), [("ops", "PubkeyAuthentication=no"), ("root", "PubkeyAuthentication=yes")])
def test_only_the_made_key_and_user_log_in(host, user, option):
    """Neither another way of logging in nor another user is let in."""
    settings = host.settings.model_copy(update={"user": user})
    result = subprocess.run([*ssh_vector(settings, "-o", option), "true"], capture_output=True, check=False)
    assert result.returncode == 255
    assert b"Permission denied (publickey)" in result.stderr


def test_other_key_is_refused(host, tmp_path):
    """A key that the host does not know is refused."""
    key = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    settings = host.settings.model_copy(update={"identity_file": str(key)})
    result = subprocess.run([*ssh_vector(settings), "true"], capture_output=True, check=False)
    assert b"Permission denied" in result.stderr


def test_host_key_is_pinned(host, tmp_path):
    """The known_hosts file has the one key of this host; without it the host is unknown."""
    assert Path(host.settings.known_hosts_file).read_text().startswith(f"[127.0.0.1]:{host.settings.port} ssh-ed25519 ")
    settings = host.settings.model_copy(update={"known_hosts_file": str(tmp_path / "empty")})
    result = subprocess.run([*ssh_vector(settings), "true"], capture_output=True, check=False)
    assert b"Host key verification failed" in result.stderr


def test_sudo_refuses_when_told_to(host):
    """Sudo runs commands, and refuses as a real one does while the switch is set."""
    switch = host.root / "etc/sudo-refused"
    assert text(host, "sudo -n -- echo yes") == "yes\n"
    assert text(host, "sudo -n -- nosuch; echo $?") == "1\nsudo: nosuch: command not found\n"
    switch.touch()
    try:
        assert text(host, "sudo -n -- echo yes; echo $?") == "1\nsudo: a password is required\n"
    finally:
        switch.unlink()


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("systemctl --host=a show x", "--host"),
        ("systemctl edit x", "edit"),
        ("journalctl --vacuum-time=1s", "--vacuum-time"),
        ("sudo -n -E true", "-E"),
        ("ss -tanp", "-tanp"),
    ],
)
def test_what_the_kit_does_not_use_is_refused(host, command, option):
    """An option that no real host was asked with is refused, so that nothing unproven creeps in."""
    assert text(host, f"{command}; echo $?") == f"1\nrehearsal host: option {option} is not one that this kit uses\n"


def put_unit(host, name, content):
    Path(host.settings.unit_dir, f"{name}.service").write_text(content)
    assert text(host, f"sudo -n systemctl daemon-reload && sudo -n systemctl start {name}") == ""


def wait_for_port(host, port=8000):
    for _ in range(100):
        if "127.0.0.1" in text(host, f"ss -H -ltnp sport = :{port}"):
            return
        time.sleep(0.05)
    raise AssertionError("nothing listens")


def test_two_hosts_have_a_port_8000_each(host):
    """Each host has a loopback address of its own, so the same port is free on every host; ss shows only its own."""
    with start_rehearsal("healthy") as other:
        assert other.loopback != host.loopback
        for machine in (host, other):
            put_unit(machine, "web", QUICK_UNIT.format(address=machine.loopback))
            wait_for_port(machine)
        pids = [text(machine, "systemctl show web -p MainPID --value").strip() for machine in (host, other)]
        for machine, pid in zip((host, other), pids, strict=True):
            assert f"pid={pid}," in text(machine, "ss -H -ltnp")
            assert text(machine, "ss -H -ltnp sport = :8000").count("LISTEN") == 1
        assert text(host, "sudo -n systemctl stop web; ss -H -ltnp") == ""


def test_forwarding_reaches_the_hosts_loopback_only(host):
    """A forward to 127.0.0.1 reaches the host's own loopback; any other destination is prohibited."""
    put_unit(host, "web2", QUICK_UNIT.format(address=host.loopback).replace("8000", "8001"))
    wait_for_port(host, 8001)
    local = 20000 + os.getpid() % 20000
    vector = ssh_vector(host.settings, "-N", "-L", f"{local}:127.0.0.1:8001", "-L", f"{local + 1}:192.0.2.1:80")
    process = subprocess.Popen(vector, stderr=subprocess.PIPE)
    try:
        for _ in range(50):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{local}/", timeout=2) as answer:
                    assert answer.status == 200
                break
            except OSError:
                time.sleep(0.05)
        else:
            raise AssertionError("the forward does not answer")
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{local + 1}/", timeout=2)
    finally:
        process.terminate()
        assert b"administratively prohibited" in process.communicate()[1]
        text(host, "sudo -n systemctl stop web2")


def test_port_is_held_by_the_scenarios_program():
    """In port-in-use another program listens on 8000 before the deploy begins, and ss names it."""
    with start_rehearsal("port-in-use") as host:
        assert '(("metrics-proxy",pid=' in text(host, "ss -H -ltnp sport = :8000")


def test_missing_shard_is_missing():
    """In missing-shard the file is gone from the checkpoint that the index still names."""
    with start_rehearsal("missing-shard") as host:
        checkpoint = Path(host.settings.models_dir, "minimax-m2-230b-fp8")
        assert len(list(checkpoint.glob("*.safetensors"))) == 124


def test_closing_ends_everything():
    """With the host end its units, the commands of its sessions and its directory."""
    host = start_rehearsal("healthy")
    put_unit(host, "u", "[Service]\nExecStart=/bin/sh -c 'setsid sleep 99 & sleep 99'\n")
    text(host, "setsid sleep 99 >/dev/null 2>&1 &")
    running = processes.members_below(f"rehearsal-{host.process_id}")
    assert len(running) == 4
    host.close()
    host.close()
    assert [pid for pid in running if processes.is_alive(pid)] == []
    assert not host.root.exists()


def test_host_outlives_the_thread_that_started_it():
    """A thread that starts a host may end; the host is its process's."""
    started = []
    thread = threading.Thread(target=lambda: started.append(start_rehearsal("healthy")))
    thread.start()
    thread.join()
    time.sleep(0.3)
    with started[0] as host:
        assert text(host, "echo there") == "there\n"


def test_interrupt_is_not_for_the_host(host):
    """An interrupt of the process group that started the host does not reach it (Ctrl-C, Kernel > Interrupt)."""
    assert os.getpgid(host.process_id) != os.getpgid(0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_host_ends_with_whoever_started_it(number):
    """When the starting process dies, even by SIGKILL, nothing of the host is left."""
    program = (
        "import time\nfrom opslib.rehearsal.server import start_rehearsal\n"
        "host = start_rehearsal('healthy')\nprint(host.process_id, host.root, flush=True)\ntime.sleep(60)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pid, root = starter.stdout.readline().split()
    starter.send_signal(number)
    starter.wait()
    starter.stdout.close()
    for _ in range(400):
        if not processes.is_alive(int(pid)) and not Path(root).exists():
            break
        time.sleep(0.03)
    assert not processes.is_alive(int(pid))
    assert not Path(root).exists()


def test_given_root_is_kept(tmp_path):
    """A root directory that was given is kept, with the journal in it."""
    with start_rehearsal("healthy", root=tmp_path / "root") as host:
        put_unit(host, "u", "[Service]\nExecStart=/bin/echo hello\n")
        time.sleep(0.2)
    lines = (tmp_path / "root/var/log/journal.jsonl").read_text().splitlines()
    assert "hello" in {json.loads(line)["MESSAGE"] for line in lines}


def test_follow_ends_with_its_connection(host):
    """`journalctl -f` of a connection that was lost does not stay behind."""
    assert ends_with_its_connection(host, "exec journalctl -f")


def test_follow_ends_quietly_with_the_daemon(capfd):
    """Whoever still follows the journal when the host is closed is let go without a word on the operator's terminal."""
    with start_rehearsal("healthy") as closing:
        vector = [*ssh_vector(closing.settings), "exec journalctl -f"]
        with subprocess.Popen(vector, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as follower:
            follower.stdout.readline()
            closing.close()
            follower.communicate()
    assert capfd.readouterr() == ("", "")


def test_drills_reach_the_host(host):
    """A drill writes kernel lines and sends signals, as the world outside would."""
    host.drill("kernel-line", "3", "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.")
    assert "fallen off the bus" in text(host, "journalctl -k -p err -o cat")
    put_unit(host, "victim", "[Service]\nExecStart=/bin/sleep 99\n")
    host.drill("kill", "SIGKILL", text(host, "systemctl show victim -p MainPID --value").strip())
    time.sleep(0.2)
    assert text(host, "systemctl show victim -p Result") == "Result=signal\n"
