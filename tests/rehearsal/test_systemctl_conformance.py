"""What a real systemd 252 answered, asked again of the rehearsal host (and, where there is one, of a real host)."""

import base64
import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from opslib.rehearsal.server import start_rehearsal
from tests.rig.debian import debian_host
from tests.rig.skip import or_skip

CASES = tomllib.loads((Path(__file__).parents[1] / "cases/systemd/cases.toml").read_text("utf-8"))
Answers = dict[str, Future[list[str]]]


def asked(run: Callable[[str], str], unit_dir: str, hostname: str) -> Iterator[Answers]:
    with ThreadPoolExecutor(1) as pool:
        yield {name: pool.submit(answer, run, unit_dir, hostname, name) for name in CASES}


def answer(run: Callable[[str], str], unit_dir: str, hostname: str, name: str) -> list[str]:
    case = CASES[name]
    unit_text = base64.b64encode(case["unit"].encode()).decode()
    write = f"echo {unit_text} | base64 -d > $D/$U.service; systemctl daemon-reload; sleep 0.05\n"
    script = f"exec 2>&1; D={unit_dir}; U=u-{name}\n" + (write if case["unit"] else "") + case["script"]
    return normal(run(script).replace(unit_dir, "D").replace(hostname, "HOST"), is_sorted=case.get("sorted", False))


def normal(text: str, *, is_sorted: bool) -> list[str]:
    text = re.sub(r"\b[0-9a-f]{32}\b", "ID", text)
    text = re.sub(r"pid=[1-9]\d*", "pid=N", text)
    text = re.sub(r"\w{3} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME", text)
    return sorted(text.splitlines()) if is_sorted else text.splitlines()


@pytest.fixture(scope="module")
def rehearsal_answers() -> Iterator[Answers]:
    with start_rehearsal("healthy") as host:
        settings = host.settings
        login = [
            *("ssh", "-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-i", settings.identity_file),
            *("-o", f"UserKnownHostsFile={settings.known_hosts_file}", "-p", str(settings.port)),
            f"{settings.user}@{settings.address}",
        ]

        def run(script: str) -> str:
            result = subprocess.run(
                [*login, "sudo -n sh"], input=script, capture_output=True, text=True, timeout=60, check=False
            )
            return result.stdout

        yield from asked(run, settings.unit_dir, os.uname().nodename)


@pytest.fixture(scope="module")
def real_answers() -> Iterator[Answers]:
    with or_skip(debian_host("opslib-sysd")) as real:
        yield from asked(
            lambda script: real.ssh("sh", "-c", script, timeout_s=60).stdout, "/etc/systemd/system", real.name
        )


@pytest.mark.parametrize("name", CASES)
def test_rehearsal(rehearsal_answers: Answers, name: str):
    """The rehearsal host answers what the real systemd answered (the case's `rule` says it in words)."""
    assert rehearsal_answers[name].result() == expected(name)


BY_A_CHILD = ("Failed at step ", "Failed to locate executable ", "Changing to the requested working directory failed")


@pytest.mark.realhost
@pytest.mark.parametrize("name", CASES)
def test_real(real_answers: Answers, name: str):
    """The recorded answers are those of a real systemd.

    But for what a child of systemd says before it becomes the program, and is gone: journald may not know whose it is.
    """
    answer = real_answers[name].result()
    unheard = [line for line in expected(name) if line not in answer and any(words in line for words in BY_A_CHILD)]
    assert sorted([*answer, *unheard]) == sorted(expected(name))


def expected(name: str) -> list[str]:
    return normal(CASES[name]["answer"], is_sorted=CASES[name].get("sorted", False))
