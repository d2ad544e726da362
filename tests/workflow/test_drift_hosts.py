"""Differences planted on one of three hosts: each is found and named, with what would align it, and none is invented."""

import hashlib
import subprocess
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from opslib.domain.drift import compare_hosts
from opslib.domain.drift_reading import own_places
from opslib.domain.host import HostSettings
from opslib.domain.vllm_unit import render_vllm_unit
from opslib.hosts import open_host
from opslib.onhost.digest_receipts import Receipts, marks_of
from opslib.rehearsal.server import start_rehearsal
from opslib.workflow.drift import ask_facts
from tests.rig.skip import or_skip

PLANTS = tomllib.loads((Path(__file__).parents[1] / "cases" / "drift" / "plants.toml").read_text())
UNIT, MODEL, SECRET = "vllm-minimax", "minimax-m2-230b-fp8", "hf_canary_of_all"
FLAGS = ("--port", "8000", "--tensor-parallel-size", "4", "--max-num-seqs", "256", "--max-model-len", "131072")
SALT = "0123456789abcdef"
RESTARTED = ("environment-name", "environment-value")  # before what a restart would undo
TOGETHER = (
    *(*RESTARTED, "unit-file", "comments-are-no-difference", "file-newer-than-its-process"),
    *("spelling-is-no-difference", "limits-of-the-process", "engine-version", "engine-python", "driver", "gpu-count"),
    *("kernel", "weights-content", "chat-template"),
)
PRACTICE = (
    TOGETHER,
    ("effective-argv",),
    ("process-older-than-its-unit",),
    ("unit-missing",),
    ("unit-state", "model-digest"),
)
REAL = (  # their checkpoint has no receipts
    (
        *("environment-value", "effective-argv", "unit-file", "limits-of-the-process", "engine-version", "driver"),
        *("kernel", "chat-template"),
    ),
    ("unit-missing",),
)


@dataclass
class Machine:
    """One host of three, and how its files are reached from here."""

    settings: HostSettings
    here: Callable[[str], Path]  # where a path of it lies on this machine
    sh: Callable[[str], None]  # runs a script there, as root


def install(machine, *, has_receipts):
    """A unit with an environment file, started; receipts of the weights as a verification leaves them."""
    settings = machine.settings
    env_file = f"{settings.state_dir}/{UNIT}.env"
    machine.here(settings.state_dir).mkdir(parents=True, exist_ok=True)
    machine.here(env_file).write_text(f'HF_TOKEN="{SECRET}"\nVLLM_HOST_IP={settings.address}\n')
    text = render_vllm_unit(
        unit=UNIT, vllm=settings.vllm, model_path=f"{settings.models_dir}/{MODEL}", flags=FLAGS, gpus=[0, 1, 2, 3],
        environment_file=env_file,
    )  # fmt: skip
    machine.here(f"{settings.unit_dir}/{UNIT}.service").write_text(text)
    if has_receipts:
        root = f"{settings.models_dir}/{MODEL}"
        folder = machine.here(settings.state_dir) / "verified"
        folder.mkdir(exist_ok=True)
        receipts = Receipts(str(folder), root)
        for path in sorted(machine.here(root).glob("*.safetensors")):
            digest = {"sha256": hashlib.sha256(path.name.encode()).hexdigest()}
            receipts.keep(path.name, marks_of(path.stat()), digest, time.time() + 60)
    script(machine, f"systemctl daemon-reload; systemctl start {UNIT}")


def script(machine, *texts):
    """Run scripts there; they have to succeed."""
    settings = machine.settings
    values = {
        "UNIT": UNIT,
        "UNIT_FILE": f"{settings.unit_dir}/{UNIT}.service",
        "ENV_FILE": f"{settings.state_dir}/{UNIT}.env",
        "MODEL": f"{settings.models_dir}/{MODEL}",
        "ENGINE": settings.vllm.removesuffix("/bin/vllm"),
        "RECEIPTS": f"{settings.state_dir}/verified/*.jsonl",
        "SHIM": f"{settings.state_dir}/python-of-another-kernel",
    }
    head = "".join(f"{name}='{value}'\n" for name, value in values.items() if name != "RECEIPTS")
    head += f"RECEIPTS=$(echo {values['RECEIPTS']})\n"
    head += f"pid() {{ systemctl show --property=MainPID --value -- {UNIT}; }}\nset -e\n"
    machine.sh(head + "\n".join(f"({text})" for text in texts))


def practice_machine(host, number):
    def sh(text):
        path = f"{host.root}/bin:/usr/local/bin:/usr/bin:/bin"
        subprocess.run(["sh", "-c", text], check=True, env={"PATH": path}, capture_output=True, text=True, timeout=60)

    return Machine(host.settings.model_copy(update={"alias": f"h{number}"}), Path, sh)


def real_machine(debian, number):
    from tests.rig.debian import install_standin

    settings = install_standin(debian, "healthy").model_copy(update={"alias": f"h{number}"})

    def sh(text):
        done = debian.ssh("sh", "-c", text, timeout_s=60)
        assert done.returncode == 0, done.stderr

    return Machine(settings, debian.local_path, sh)


@pytest.fixture(scope="module")
def practice():
    """Three practice hosts that are alike."""
    with ExitStack() as stack, ThreadPoolExecutor(3) as pool:
        hosts = list(pool.map(lambda _: stack.enter_context(start_rehearsal("healthy")), range(3)))
        machines = [practice_machine(host, number) for number, host in enumerate(hosts, 1)]
        list(pool.map(lambda machine: install(machine, has_receipts=True), machines))
        yield machines


@pytest.fixture(scope="module")
def real():
    """Three real Debian hosts that are alike."""
    from tests.rig.debian import debian_host

    with ExitStack() as stack, ThreadPoolExecutor(3) as pool:
        guests = [stack.enter_context(or_skip(debian_host(f"opslib-drift{n}"))) for n in (1, 2, 3)]
        machines = list(pool.map(real_machine, guests, (1, 2, 3)))
        list(pool.map(lambda machine: install(machine, has_receipts=False), machines))
        yield machines


def look(machines, *, python=""):
    """The comparison of all three; `python` is the third one's."""
    settings = [machine.settings for machine in machines]
    settings[2] = settings[2].model_copy(update={"python": python} if python else {})

    def ask(of):
        host = open_host(of)
        try:
            return ask_facts(host, salt=SALT, own=own_places(of, settings))
        finally:
            host.close()

    with ThreadPoolExecutor(3) as pool:
        return compare_hosts(list(pool.map(ask, settings)))


def check(machines, *names):
    """Plant, look, undo: exactly what the table says is found, in whatever order."""
    plants = [PLANTS[name] for name in names]
    try:
        script(machines[2], *(plant.get("plant", ":") for plant in plants))
        shim = f"{machines[2].settings.state_dir}/python-of-another-kernel"
        report = look(machines, python=shim if any(plant.get("has_shim") for plant in plants) else "")
    finally:
        script(machines[2], *(plant["undo"] for plant in reversed(plants)))
    found = [
        [drift.area, drift.name, drift.groups[0].value, drift.groups[-1].value, drift.align["h3"]]
        for drift in report.drifts
    ]
    wanted = [row for plant in plants for row in plant["expected"]]
    assert sorted(row[:2] for row in found) == sorted(row[:2] for row in wanted), found
    for told, expected in zip(sorted(found), sorted(wanted), strict=True):
        pairs = zip(told, expected, strict=True)
        assert all(fnmatchcase(each, pattern.replace("[", "[[]")) for each, pattern in pairs), told
    assert all(drift.groups[0].hosts == ("h3",) and drift.has_majority for drift in report.drifts)
    assert [each.name for each in report.unknown] == [name for plant in plants for name in plant.get("unknown", [])]
    assert report.state.exit_code == (1 if wanted else 0)
    assert "hf_canary" not in report.model_dump_json()


def test_hosts_that_are_alike_have_no_drift(practice):
    """Three hosts that were set up alike: nothing differs, nothing is unknown, and much was compared."""
    report = look(practice)
    assert (report.state.exit_code, report.drifts, report.unknown) == (0, (), ())
    assert report.n_facts > 50
    assert not report.notes


@pytest.mark.parametrize("names", PRACTICE, ids=lambda names: names[-1])
def test_planted_differences_are_found_and_named(practice, names):
    """What was planted is found where it was, with its value, the others' value and a command; no more is found."""
    check(practice, *names)


def test_every_plant_is_looked_for():
    """No row of the table is left out."""
    assert {name for names in PRACTICE for name in names} == set(PLANTS)
    assert sum(bool(plant["expected"]) for plant in PLANTS.values()) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS)
def test_each_planted_difference_by_itself(practice, name):
    """The same one by one: nothing is found only because something else was planted beside it."""
    check(practice, name)


@pytest.mark.realhost
def test_on_real_hosts_planted_differences_are_found(real):
    """Three Debian hosts under a real systemd: alike at first, then each of these differences and nothing else."""
    first = look(real)
    assert (first.drifts, first.unknown) == ((), ())
    assert first.n_facts > 50
    assert "no host has receipts" in first.notes[0]
    for names in REAL:
        check(real, *names)
    blind = [*real[:2], Machine(real[2].settings.model_copy(update={"user": "nosudo"}), real[2].here, real[2].sh)]
    report = look(blind)  # a login that may not read the process's variables, nor the environment file
    assert (report.drifts, report.state.exit_code) == ((), 3)
    assert {(each.host, each.name) for each in report.unknown} >= {("h3", "variables")}
