"""`opslib sudoers`: a file that is enough for a deploy, and for nothing else."""

import json
import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from opslib.app.headless import run_headless
from opslib.cli.main import call
from opslib.domain.host import Host, HostSettings
from opslib.domain.sudoers import PROGRAMS, allowances, sudoers_text
from opslib.errors import BadParameter, PrivilegeRefused
from opslib.workflow.install import apply_plan, plan_install, undo
from tests.conftest import opened
from tests.rig.scenario import scenario_host
from tests.rig.skip import or_skip
from tests.workflow.test_lifecycle_hosts import hurry

SETTINGS = HostSettings(alias="gpu-a", address="192.0.2.1", user="ops")
PATHS = {program: f"/usr/bin/{program}" for program in PROGRAMS}
UNIT = "vllm-minimax"


def made(**changes: object) -> str:
    """The file for one unit."""
    return sudoers_text(SETTINGS.model_copy(update=changes), "ops", [UNIT], [8000], PATHS)


def test_no_command_ends_in_a_wildcard_that_takes_more() -> None:
    """A name that differs each time is a pattern of fixed length: no `*` or `?` is in the file, nor a program of ours."""
    rules = "\n".join(line for line in made().splitlines() if not line.startswith("#"))
    assert not re.search(r"[*?]", rules)
    assert "python" not in rules
    assert re.search(r"^ops ALL=\(root\) TIMEOUT=60 NOPASSWD: OPSLIB_", rules, re.MULTILINE)
    assert all(line.lstrip().startswith("/usr/bin/") for line in rules.splitlines() if line.startswith("    "))


def test_it_says_what_it_cannot_do() -> None:
    """The file says how it is installed, and that who may write a unit file has to be trusted."""
    head = made()[:900]
    for piece in ("visudo --check", "systemd-journal", 'sudo = "listed"', "trust the login"):
        assert piece in head


@pytest.mark.parametrize("name", ["a b", "x;y", "a,b", "-", "ops:x", "", "größe"])
def test_a_name_that_sudoers_cannot_hold_is_refused(name: str) -> None:
    """A login or path with a sign that sudoers would read otherwise is refused."""
    if name != "-":
        with pytest.raises(BadParameter):
            made(unit_dir=f"/etc/{name}" if name else "")
    with pytest.raises(BadParameter):
        sudoers_text(SETTINGS, name, [UNIT], [8000], PATHS)


def is_listed(argv: tuple[str, ...]) -> bool:
    """Whether the file would allow it: sudo compares the arguments as one text."""
    given = " ".join(argv[1:])
    listed = allowances(SETTINGS, [UNIT], [8000])
    return any(one.program == argv[0] and fnmatchcase(given, " ".join(one.arguments)) for one in listed)


def test_patterns_take_what_they_are_for() -> None:
    """The names that the kit makes match; a longer one, another unit and other options don't."""
    beside = f"/etc/systemd/system/.{UNIT}.service.0123abcd.new"
    assert is_listed(("install", "--mode=0644", "--", "/dev/stdin", beside))
    assert not is_listed(("install", "--mode=4755", "--", "/dev/stdin", beside))
    assert not is_listed(("install", "--mode=0644", "--", "/dev/stdin", f"{beside} /etc/passwd"))
    assert not is_listed(("systemctl", "--no-block", "restart", "--", "sshd.service"))
    assert not is_listed(("cat", "--", "/etc/shadow"))


def test_a_host_without_sudo_needs_none(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch) -> None:
    """A host of scope "user" needs no sudoers file: exit code 4."""
    (tmp_path / "hosts.toml").write_text('[hosts.a]\naddress = "local"\nuser = "ops"\nscope = "user"\n')
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    assert call(["sudoers", "a"]) == 4
    assert "needs no sudo" in capsys.readouterr().err


def test_the_rehearsal_host_has_one_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The rehearsal host's own directories and programs are in its file."""
    assert call(["sudoers", "rehearsal:healthy", "--user", "ops", "--json"]) == 0
    text = json.loads(capsys.readouterr().out)["sudoers"]
    assert re.search(r"/bin/systemctl --no-block start -- vllm-minimax\.service", text)


@pytest.fixture(scope="module")
def listed() -> Iterator[tuple[HostSettings, HostSettings]]:
    """A real Debian with a login `deploy` that has exactly the printed file; its settings, and root's."""
    with or_skip(scenario_host("sampler-oom")) as ops:
        root = ops.model_copy(update={"user": "root"})
        with opened(root) as host:
            install_file(host, ops)
        hurry(root)
        yield ops.model_copy(update={"user": "deploy", "sudo": "listed"}), root


def install_file(host: Host, ops: HostSettings) -> None:
    """Make the login, with the file as `opslib sudoers` prints it for it."""
    paths = {program: host.run(["sh", "-c", f"command -v {program}"]).text.strip() for program in PROGRAMS}
    text = sudoers_text(ops, "deploy", [UNIT], [8000], paths)
    script = (
        "useradd --create-home --shell /bin/bash --groups systemd-journal deploy && "
        "install -d -m 700 -o deploy /home/deploy/.ssh && "
        "install -m 600 -o deploy /home/ops/.ssh/authorized_keys /home/deploy/.ssh/ && "
        "visudo --check --strict --file=- && mkdir -p /etc/sudoers.d"
    )
    checked = host.run(["sh", "-c", script], input=text.encode())
    assert checked.is_success, checked.error_text
    host.write_file("/etc/sudoers.d/opslib-deploy", text.encode(), mode=0o440)


@pytest.mark.realhost
def test_the_file_is_enough_for_a_deploy(listed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login with exactly this file deploys, crashes, is remedied and serves; then it undoes, rolls back and stops."""
    settings, _ = listed
    fields = settings.model_dump(exclude={"alias"}, exclude_none=True, exclude_defaults=True)
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    (tmp_path / "hosts.toml").write_text("[hosts.listed]\n" + "\n".join(lines) + "\n")
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    result = run_headless("90-deploy", {"host": "listed", "consent": "given"}, runs_dir=tmp_path / "runs")
    assert result.exit_code in {0, 1}, result.outcome  # on a busy machine the benchmark's figures are marked
    with opened(settings) as host:
        changed = plan_install(
            host, unit=UNIT, unit_text="[Service]\nExecStart=/bin/true\n", secrets={"HF_TOKEN": "none"}
        )
        report = apply_plan(host, changed)
        assert (report.state, all(step.state == "ok" for step in undo(host, report))) == ("ok", True), report
    assert call(["rollback", "listed", UNIT, "--yes", "--runs-dir", str(tmp_path / "runs")]) == 0
    assert call(["status", "listed", UNIT]) == 0
    assert call(["stop", "listed", UNIT, "--yes"]) == 0


FORBIDDEN = (
    "cat /etc/shadow",
    "cat -- /etc/shadow",
    "cat -- /etc/systemd/system/vllm-minimax.service /etc/shadow",
    "sh -c id",
    "systemctl restart ssh.service",
    "systemctl --no-block start -- vllm-minimax.service ssh.service",
    "systemctl edit vllm-minimax.service",
    "install --mode=0644 -- /dev/stdin /etc/passwd",
    "install --mode=0644 -- /dev/stdin /etc/systemd/system/.vllm-minimax.service.01234567.new /etc/x.new",
    "mv --force --no-target-directory -- /etc/passwd /etc/systemd/system/vllm-minimax.service",
    "ss -K",
    "python3 -c 1",
)


@pytest.mark.realhost
@pytest.mark.parametrize("words", FORBIDDEN)
def test_the_file_is_enough_for_nothing_else(listed, words: str) -> None:
    """Anything that is not listed to the letter is refused by the host's own sudo."""
    settings, _ = listed
    with opened(settings) as host, pytest.raises(PrivilegeRefused, match="sudo refused"):
        host.run(shlex.split(words), input=b"", sudo=True)


@pytest.mark.realhost
def test_a_program_is_never_run_with_listed_rights(listed) -> None:
    """Where only commands are listed, a program with sudo is refused without asking the host."""
    settings, _ = listed
    with opened(settings) as host:
        with pytest.raises(PrivilegeRefused, match="in no sudoers list"):
            host.run_program("identity", {}, sudo=True)
        with pytest.raises(PrivilegeRefused, match="journal"):
            host.stream_program("watch", {}, sudo=True)
        assert host.run_program("identity", {}).is_success
