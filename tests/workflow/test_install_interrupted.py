"""An installation that is cut short, after any step and in the middle of the bytes, leaves a whole unit behind."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from opslib.domain.host import CommandResult, HostSettings
from opslib.errors import HostUnreachable, OpslibError
from opslib.hosts.local import LocalHost
from opslib.workflow.install import apply_plan, plan_install
from tests.conftest import opened
from tests.fakes import answered

OLD = "[Unit]\nDescription=Old\n[Service]\nExecStart=/bin/sleep 600\n"
NEW = OLD.replace("Old", "New") + "Environment=FILLING=" + "x" * 3000 + "\n"
SHOW = "LoadState=loaded\nActiveState=inactive\nSubState=dead\nNeedDaemonReload=no\n"
UNIT = "opslib-cut"


class DyingHost(LocalHost):
    """Coreutils of this machine below a directory, with a link that dies at one command: before it, or within it."""

    def __init__(self, directory: Path, dies_at: int | None = None, how: str = "before", n_bytes: int = 0) -> None:
        settings = {"unit_dir": f"{directory}/units", "state_dir": f"{directory}/state", "sudo": False}
        super().__init__(HostSettings.model_validate({"alias": "cut", "address": "local", **settings}))
        self.dies_at, self.how, self.n_bytes = dies_at, how, n_bytes
        self.argvs: list[tuple[str, ...]] = []
        self.is_dead = False

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,  # noqa: A002
        timeout_s: float = 30.0,
        sudo: bool = False,
    ) -> CommandResult:
        is_last = len(self.argvs) == self.dies_at
        self.argvs.append(tuple(argv))
        if self.is_dead or (is_last and self.how == "before"):
            self.is_dead = True
            raise HostUnreachable("the link is gone")
        given = input[: self.n_bytes] if is_last and self.how == "within" and input else input
        if "systemctl" in argv:
            result = answered(argv, SHOW if "show" in argv else "")
        else:
            result = super().run(argv, input=given, timeout_s=timeout_s, sudo=sudo)
        if is_last:
            self.is_dead = True
            raise HostUnreachable("the link is gone")
        return result


def fresh(directory: Path) -> Path:
    """A host that has the old unit and its old environment."""
    for name in ("units", "state"):
        (directory / name).mkdir(parents=True)
    assert apply(DyingHost(directory), OLD, "old")
    return directory


def apply(host: DyingHost, text: str, secret: str) -> bool:
    """Whether the installation came to its end."""
    try:
        plan = plan_install(host, unit=UNIT, unit_text=text, secrets={"HF_TOKEN": secret})
        return apply_plan(host, plan).state == "ok"
    except OpslibError:
        return False


def assert_whole(directory: Path) -> None:
    """Every file that systemd or a rollback would read is one of the two versions, to the byte."""
    unit, environment = directory / f"units/{UNIT}.service", directory / f"state/{UNIT}.env"
    assert unit.read_text() in {OLD, NEW}
    assert environment.read_text() in {'HF_TOKEN="old"\n', 'HF_TOKEN="new"\n'}
    assert environment.stat().st_mode & 0o777 == 0o600
    kept = list(directory.rglob("*.bak"))
    assert {path.read_text() for path in kept} <= {OLD, 'HF_TOKEN="old"\n'}
    assert {path.name for path in (directory / "units").iterdir() if path.suffix == ".service"} == {unit.name}


@pytest.fixture(scope="module")
def n_commands(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many commands a whole installation takes."""
    host = DyingHost(fresh(tmp_path_factory.mktemp("whole")))
    assert apply(host, NEW, "new")
    return len(host.argvs)


def test_a_link_that_dies_before_any_command_leaves_a_whole_unit(n_commands: int, tmp_path: Path) -> None:
    """Old or new, never a piece; and the same installation, asked for again, comes to its end."""
    assert n_commands > 12
    for number in range(n_commands):
        directory = fresh(tmp_path / str(number))
        assert not apply(DyingHost(directory, number), NEW, "new")
        assert_whole(directory)
        assert apply(DyingHost(directory), NEW, "new")
        assert (directory / f"units/{UNIT}.service").read_text() == NEW


def test_a_link_that_dies_within_the_bytes_leaves_the_old_unit(n_commands: int, tmp_path: Path) -> None:
    """However many bytes of the new file arrived, the old one stays in place."""
    probe = DyingHost(fresh(tmp_path / "probe"))
    assert apply(probe, NEW, "new")
    writes = [number for number, argv in enumerate(probe.argvs) if argv[0] == "install"]
    assert len(writes) == 2
    size = len(NEW.encode())
    for n_bytes in (0, 1, size // 3, size - 1):
        directory = fresh(tmp_path / str(n_bytes))
        assert not apply(DyingHost(directory, writes[1], "within", n_bytes), NEW, "new")
        assert_whole(directory)
        assert (directory / f"units/{UNIT}.service").read_text() == OLD


def killed_after(seconds: float, kill: Callable[[], object]) -> threading.Timer:
    """Kills later, in a thread."""
    timer = threading.Timer(seconds, kill)
    timer.start()
    return timer


@pytest.mark.realhost
def test_a_session_killed_at_any_time_leaves_the_old_unit_working(debian) -> None:
    """On a real Debian: every process of the login killed by -9 in the middle; the unit still restarts, and runs whole."""
    texts = [f"[Service]\nExecStart=/bin/sleep 60{n}\n# {'y' * 2000}\n" for n in range(2)]
    with opened(debian.ops_settings) as host:
        assert apply_plan(host, plan_install(host, unit=UNIT, unit_text=texts[0])).state == "ok"
        assert debian.ssh("systemctl", "start", UNIT).returncode == 0
    n_cut = 0
    for number in range(4):
        with opened(debian.ops_settings) as host:
            plan = plan_install(host, unit=UNIT, unit_text=texts[(number + 1) % 2])
            kill = killed_after(0.1 + 0.25 * number, lambda: debian.ssh("pkill", "-KILL", "-u", "ops"))
            try:
                apply_plan(host, plan)
            except OpslibError:
                n_cut += 1
            kill.join()
        text = debian.ssh("cat", f"/etc/systemd/system/{UNIT}.service").stdout
        assert text in texts
        assert debian.ssh("systemctl", "is-active", UNIT).stdout == "active\n"
        done = debian.ssh(
            "sh", "-c", f"systemctl daemon-reload && systemctl restart {UNIT} && systemctl is-active {UNIT}"
        )
        assert done.stdout == "active\n", done.stderr
        kept = debian.ssh(
            "sh", "-c", f"md5sum /etc/systemd/system/{UNIT}.service* | cut -c1-32 | sort -u | wc -l"
        ).stdout
        assert int(kept) <= 2
        time.sleep(0.05)
    assert n_cut >= 1
