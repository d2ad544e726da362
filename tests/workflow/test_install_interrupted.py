"""An installation that is cut short, after any step and in the middle of the bytes, leaves a whole unit behind."""

import threading
import time
from collections.abc import Sequence
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


def killer(debian, words: str) -> threading.Thread:
    """A loop of root's on the host that kills by -9 as soon as it sees the program that writes the new file."""
    script = f"for i in $(seq 600); do pgrep -x install >/dev/null && {{ {words}; exit; }}; sleep 0.01; done"
    thread = threading.Thread(target=debian.ssh, args=("sh", "-c", script))
    thread.start()
    return thread


@pytest.mark.realhost
@pytest.mark.parametrize(
    "words",
    ["pkill -KILL -x install", "pkill -KILL -u ops; pkill -KILL -x install"],
    ids=["writer", "session-and-writer"],
)
def test_a_write_killed_by_9_leaves_the_old_unit_working(debian, words: str) -> None:
    """On a real Debian: the writer is killed in the middle of the bytes; the old unit is in place, and restarts."""
    path = f"/etc/systemd/system/{UNIT}.service"
    old, new = "[Service]\nExecStart=/bin/sleep 600\n", "[Service]\nExecStart=/bin/sleep 601\n"
    with opened(debian.ops_settings) as host:
        assert apply_plan(host, plan_install(host, unit=UNIT, unit_text=old)).state == "ok"
        assert debian.ssh("systemctl", "restart", UNIT).returncode == 0
        plan = plan_install(host, unit=UNIT, unit_text=new + f"# {'y' * 2000}\n" * 4000)
        thread = killer(debian, words)
        time.sleep(1.0)  # until its connection stands
        with pytest.raises(OpslibError):
            apply_plan(host, plan)
        thread.join()
    assert debian.ssh("cat", path).stdout == old
    again = f"systemctl daemon-reload && systemctl restart {UNIT} && systemctl is-active {UNIT}"
    assert debian.ssh("sh", "-c", again).stdout == "active\n"
    with opened(debian.ops_settings) as host:
        assert apply_plan(host, plan_install(host, unit=UNIT, unit_text=new)).state == "ok"
    assert debian.ssh("cat", path).stdout == new
