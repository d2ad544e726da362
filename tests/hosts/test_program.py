"""Programs are sent whole, and nothing but what they need."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opslib.errors import BadParameter
from opslib.hosts.program import BOOT, needed_modules, program_input, program_vector

PROGRAMS = sorted(
    path.stem
    for path in (Path(__file__).parents[2] / "opslib" / "onhost").glob("*.py")
    if "\ndef main(" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_finds_its_modules(program: str) -> None:
    """The modules that are sent with a program can all be imported from standard input alone."""
    given = program_input(program, {})
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
