"""The real Debian host of the tests is what it says it is, and leaves nothing behind."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig import image
from tests.rig.cache import RigUnavailable, build_once
from tests.rig.debian import DebianHost, debian_host, install_standin
from tests.rig.skip import or_skip

RIG = Path(__file__).parent / "rig"
CRASHES_ONCE = """\
[Service]
ExecStart=/bin/sh -c 'test -e /var/tmp/crashed && exec sleep infinity; touch /var/tmp/crashed; kill -SEGV $$$$'
Restart=on-failure
RestartSec=100ms
"""


@pytest.fixture(scope="module")
def debian() -> Iterator[DebianHost]:
    with or_skip(debian_host("opslib-rig")) as host:
        yield host


def remains_of(link: str, directory: str) -> list[str]:
    """Processes, mounts, links, namespaces, control groups and files that bear a host's name."""
    found = [
        f"process {path.parent.name}"
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists() and directory.encode() in _read(path)
    ]
    found += [f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines() if directory in line]
    found += [str(path) for path in Path("/sys/class/net").glob(link)]
    found += [str(path) for path in Path("/run/netns").glob(link)]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{link}")]
    found += [str(path) for path in Path("/run/systemd/nspawn").glob(f"**/*{link}*")]
    return found + [directory for _ in range(Path(directory).exists())]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def wait_until(answers, timeout_s: float = 10.0):
    deadline = time.monotonic() + timeout_s
    while not (answer := answers()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return answer


@pytest.mark.realhost
def test_systemd_is_running(debian: DebianHost) -> None:
    """All of the guest's units came up under a systemd that is its process 1."""
    state = debian.ssh("systemctl", "is-system-running", "--wait")
    assert state.stdout.strip() == "running", debian.ssh("systemctl", "--failed", "--no-pager").stdout
    assert debian.ssh("cat", "/proc/1/comm").stdout == "systemd\n"


@pytest.mark.realhost
def test_journal_answers(debian: DebianHost) -> None:
    """The journal holds what a unit says, for root and for ops, as JSON; nosudo sees none of it."""
    debian.ssh("systemd-run", "--wait", "--quiet", "--unit=says", "echo", "said so")
    for user in ("root", "ops"):
        asked = debian.ssh("journalctl", "--unit=says", "--output=json", "--no-pager", user=user)
        assert '"MESSAGE":"said so"' in asked.stdout
    assert "said so" not in debian.ssh("journalctl", "--unit=says", "--no-pager", user="nosudo").stdout


@pytest.mark.realhost
def test_logins(debian: DebianHost) -> None:
    """Root is root, ops may sudo without a password, nosudo may not; each has a user manager."""
    assert debian.ssh("id", "-u").stdout == "0\n"
    assert debian.ssh("sudo", "-n", "id", "-u", user="ops").stdout == "0\n"
    refused = debian.ssh("sudo", "-n", "true", user="nosudo")
    assert refused.returncode == 1
    assert "password is required" in refused.stderr
    assert debian.ssh("systemd-run", "--user", "--scope", "--quiet", "true", user="nosudo").returncode == 0


@pytest.mark.realhost
def test_crash_is_restarted(debian: DebianHost) -> None:
    """A unit that dies by a signal runs again, and systemd has counted it."""
    debian.put_files({"/etc/systemd/system/crashes-once.service": (CRASHES_ONCE.encode(), 0o644)})
    debian.ssh("systemctl", "daemon-reload")
    debian.ssh("systemctl", "start", "crashes-once")

    def properties() -> str:
        asked = debian.ssh("systemctl", "show", "crashes-once", "--property=NRestarts,SubState,Result")
        return asked.stdout if "NRestarts=1" in asked.stdout and "SubState=running" in asked.stdout else ""

    assert "Result=success" in wait_until(properties)
    log = debian.ssh("journalctl", "--unit=crashes-once", "--no-pager").stdout
    assert "code=dumped, status=11/SEGV" in log or "code=killed, status=11/SEGV" in log


@pytest.mark.realhost
def test_restart_is_a_new_boot(debian: DebianHost) -> None:
    """After a restart or a power cut the boot id is new, and disk, keys and journal are the old ones."""

    def boot_id() -> str:
        return debian.ssh("cat", "/proc/sys/kernel/random/boot_id").stdout

    seen = [boot_id()]
    debian.put_files({"/srv/kept": (b"kept", 0o600)})
    for is_orderly in (True, False):
        debian.restart(is_orderly=is_orderly)
        seen.append(boot_id())
    assert len(set(seen)) == 3
    assert debian.ssh("cat", "/srv/kept").stdout == "kept"
    assert len(debian.ssh("journalctl", "--list-boots", "--no-pager", "--quiet").stdout.splitlines()) >= 3


@pytest.mark.realhost
def test_hosts_do_not_touch_each_other(debian: DebianHost, tmp_path: Path) -> None:
    """A second host boots beside the first; restarting its services and ending it leaves the first one's alone."""
    (tmp_path / "shown").write_text("read me")
    main_pid = ("systemctl", "show", "systemd-logind", "--property=MainPID", "--value")
    before = debian.ssh(*main_pid).stdout
    with debian_host("opslib-rig2", bind=[(tmp_path, "/opt/shown")]) as second:
        assert second.address != debian.address
        assert second.ssh("hostname").stdout == "opslib-rig2\n"
        assert second.ssh("cat", "/opt/shown/shown").stdout == "read me"
        assert second.ssh("touch", "/opt/shown/new").returncode != 0
        assert second.ssh("systemctl", "restart", "systemd-logind").returncode == 0
    assert debian.ssh(*main_pid).stdout == before
    assert debian.ssh("systemctl", "is-active", "systemd-logind").stdout == "active\n"


@pytest.mark.realhost
def test_network_cut(debian: DebianHost) -> None:
    """While the network is cut a connection gets no answer at all; afterwards it is served again."""
    with debian.network_cut(), pytest.raises(subprocess.TimeoutExpired):
        debian.ssh("true", timeout_s=0.5)
    assert wait_until(lambda: debian.ssh("true").returncode == 0)


@pytest.mark.realhost
def test_files_stay_on_the_guests_disk(debian: DebianHost) -> None:
    """A path that is a memory file system in the guest, or a link out of its root, is refused."""
    debian.local_path("/srv/out").symlink_to("/etc")
    for path in ("/run/x", "/tmp/x", "/srv/out/x"):
        with pytest.raises(ValueError, match="not on the host's disk"):
            debian.put_files({path: (b"", 0o644)})


@pytest.mark.realhost
def test_nothing_is_left(debian: DebianHost) -> None:
    """After an ordinary end and after an exception no process, mount, link, namespace, group or file remains."""
    for fault in (None, KeyError("a test failed")):
        try:
            with debian_host("opslib-rig2") as host:
                link, directory = host.link, str(host.root_dir.parent)
                assert len(remains_of(link, directory)) > 4
                if fault:
                    raise fault
        except KeyError:
            pass
        assert remains_of(link, directory) == []


@pytest.mark.realhost
def test_nothing_is_left_by_a_killed_test_run(debian: DebianHost) -> None:
    """Even a test process that is killed takes its host with it."""
    program = (
        "import os, signal\n"
        "from tests.rig.debian import debian_host\n"
        "with debian_host('opslib-rig2') as host:\n"
        "    print(host.link, host.root_dir.parent, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    link, directory = done.stdout.split()
    assert wait_until(lambda: not remains_of(link, directory)), remains_of(link, directory)


@pytest.mark.realhost
def test_standin_answers_on_the_host(debian: DebianHost) -> None:
    """The stand-in engine, its GPUs and a checkpoint of over 200 GB (sparse) are there as an operator would find them."""
    settings = install_standin(debian, "missing-shard")
    asked = debian.ssh("nvidia-smi", "--query-gpu=index,memory.total", "--format=csv,noheader,nounits")
    assert asked.stdout.splitlines()[7].startswith("7, "), asked.stderr
    assert debian.ssh("test", "-x", settings.vllm).returncode == 0
    listed = debian.ssh("ls", f"{settings.models_dir}/minimax-m2-230b-fp8").stdout
    assert listed.count(".safetensors\n") == 124
    size = debian.ssh("du", "--summarize", "--apparent-size", "--block-size=1G", settings.models_dir).stdout
    assert int(size.split()[0]) > 200


def test_skips_visibly_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be had is a skip with its reason, and a failure where CI=true."""

    @contextmanager
    def rig() -> Iterator[None]:
        raise RigUnavailable("no root")
        yield

    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no root"), or_skip(rig()):
        pass
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no root"), or_skip(rig()):
        pass


def test_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that want the same costly thing at once share one build; a build that fails leaves nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built: list[Path] = []

    def build(partial: Path) -> None:
        time.sleep(0.1)
        (partial / "thing").write_text("made")
        built.append(partial)

    threads = [threading.Thread(target=build_once, args=("costly", build)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert (build_once("costly", build) / "thing").read_text() == "made"

    def fail(partial: Path) -> None:
        (partial / "half").write_text("")
        raise RigUnavailable("no network")

    with pytest.raises(RigUnavailable):
        build_once("broken", fail)
    assert not (tmp_path / "opslib-test" / "broken").exists()


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the login is not root the reason is one readable line."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RigUnavailable, match="needs root"):
        image.base_image()


def test_system_deps_without_root_skips_visibly(tmp_path: Path) -> None:
    """Without root and without the programs, system-deps exits 0 and names what is skipped and why."""
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(RIG / "system-deps.sh")],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path)},
    )
    assert done.returncode == 0
    assert "will be skipped: not root (missing: mmdebstrap" in done.stdout
