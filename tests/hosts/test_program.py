"""Programs are sent whole, and nothing but what they need."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opslib.domain.host import HostSettings
from opslib.errors import BadParameter, NoPythonOnHost
from opslib.hosts import program
from opslib.hosts.local import LocalHost
from opslib.hosts.program import BOOT, needed_modules, program_input, program_vector

PROGRAMS = sorted(
    path.stem
    for path in (Path(__file__).parents[2] / "opslib" / "onhost").glob("*.py")
    if "\ndef main(" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_finds_its_modules(name: str) -> None:
    """The modules that are sent with a program can all be imported from standard input alone."""
    given = program_input(name, {})
    bundle = json.loads(given[10:])
    bundle["main"] = "probe"
    bundle["modules"]["probe"] = "def main(arguments):\n    print('reached')\n    return 3\n"
    body = json.dumps(bundle).encode()
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BOOT],
        input=b"%010d" % len(body) + body,
        capture_output=True,
        check=False,
        cwd="/",
    )
    # Standard input has ended, so the program may be told that its link is lost before it answers.
    assert done.returncode in (3, 75), done.stderr.decode()


def test_modules_come_after_what_they_import() -> None:
    """A module is sent after the modules that it imports."""
    assert needed_modules("supervise") == ("boot", "supervise")


@pytest.mark.parametrize("name", ["absent", "../errors", ""])
def test_there_is_no_such_program(name: str) -> None:
    """Only modules of the on-host package can be sent."""
    with pytest.raises(BadParameter):
        program_input(name, {})


def test_the_vector_is_always_the_same() -> None:
    """All programs share one argument vector, far below the length that a kernel takes."""
    assert program_vector("python3") == ["python3", "-I", "-c", BOOT]
    assert len(BOOT) < 2000


def test_an_old_python_says_which_it_is(tmp_path: Path) -> None:
    """A host whose Python is older than 3.8 is refused with its version, not with a syntax error."""
    old = tmp_path / "python"
    code = "import sys; sys.version_info = (3, 6, 15); exec(sys.argv[1])"
    old.write_text(f"#!/bin/sh\nexec {sys.executable} -I -c '{code}' \"$3\"\n")
    old.chmod(0o755)
    host = LocalHost(HostSettings(alias="here", address="local", python=str(old)))
    with pytest.raises(NoPythonOnHost, match=r"this is 3\.6"):
        host.run_program("identity", {})


@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        ("return 0", 0, ""),
        ("return 2", 2, ""),
        ("return None", 0, ""),
        ("raise SystemExit(4)", 4, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('no')", 70, "no"),
        ("raise ValueError('why')", 70, "ValueError: why"),
    ],
)
def test_how_a_program_ends(monkeypatch: pytest.MonkeyPatch, source: str, status: int, said: str) -> None:
    """A program's return value is its exit status; an exception is 70 with its traceback on standard error."""
    sources = {"boot": program._source("boot"), "probe": f"def main(arguments):\n    {source}\n"}
    monkeypatch.setattr(program, "needed_modules", lambda _: ("boot", "probe"))
    monkeypatch.setattr(program, "_source", sources.__getitem__)
    result = LocalHost(HostSettings(alias="here", address="local")).run_program("probe", {})
    assert result.exit_status == status
    assert said in result.error_text
