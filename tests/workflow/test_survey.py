"""Looking over hosts: round trips, refusals, practice and real machines, and all of them in one table."""

import json
import time
from pathlib import Path

import pytest

from opslib.domain.states import State
from opslib.domain.vllm_unit import render_vllm_unit
from opslib.errors import BadParameter, HostKeyRefused, HostUnreachable, PrivilegeRefused, UnexpectedAnswer
from opslib.hosts.recording import RecordingHost
from opslib.views.survey import attention, gpus_table
from opslib.workflow.survey import ask_survey, check_unit, survey_host
from tests.conftest import opened
from tests.domain.test_survey import reading
from tests.fakes import FakeHost, answered

MODEL = "minimax-m2-230b-fp8"


class Host(FakeHost):
    """A fake that counts its round trips, and refuses sudo where it is told to."""

    def __init__(self, text, *, refusal=None, **settings):
        super().__init__(**settings)
        self.text = text
        self.refusal = refusal
        self.asked = []

    def run_program(self, main, arguments, *, timeout_s=60.0, sudo=False):
        self.asked.append(sudo)
        if sudo and self.refusal:
            raise self.refusal
        return answered((main,), self.text)


def test_one_round_trip_is_enough():
    """A host that allows sudo is asked once."""
    host = Host(json.dumps(reading()))
    survey = survey_host(host)
    assert host.asked == [True]
    assert survey.host == "fake"
    assert survey.units[0].unit == "vllm-minimax"


def test_refused_sudo_costs_a_second_round_trip():
    """Without sudo the same is asked as the login; what may be missing is unknown, and said."""
    host = Host(json.dumps(reading()), refusal=PrivilegeRefused("sudo refused: a password is required"))
    survey = survey_host(host)
    assert host.asked == [True, False]
    assert [check.name for check in survey.checks if check.state is State.UNKNOWN] == ["rights"]


@pytest.mark.parametrize("sudo", ["listed", False])
def test_a_host_that_is_meant_to_do_without_sudo_is_asked_once(sudo):
    """Where the inventory says that programs get no sudo, one round trip is enough and nothing is amiss."""
    host = Host(json.dumps(reading()), refusal=PrivilegeRefused("sudo refused"), sudo=sudo)
    survey = survey_host(host)
    assert host.asked == [False]
    assert "rights" not in [check.name for check in survey.checks]


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (HostUnreachable("nothing answered (10.0.0.1 port 22: timed out)", hint="is the host up?"), "could not find out: nothing answered"),
        (HostKeyRefused("the host key of h has CHANGED: it is a, known is b", hint="find out why"), "refused: the host key of h has CHANGED"),
        (PrivilegeRefused("the login ops at h port 22 was refused (x)", hint="check user"), "refused: the login ops at h port 22 was refused"),
    ],
)  # fmt: skip
def test_a_host_that_cannot_be_asked_is_a_row(error, summary):
    """Not reached or refused is unknown, with the reason and what to do, never an exception and never failed."""
    survey = survey_host(Host("", refusal=error))
    assert (survey.state, survey.summary, survey.next_step) == (State.UNKNOWN, summary, error.hint)


def test_garbage_is_a_row_too():
    """A program that ended with something else is unknown."""
    assert survey_host(Host("Killed")).state is State.UNKNOWN
    with pytest.raises(UnexpectedAnswer):
        ask_survey(Host("Killed"))


def test_the_rehearsal_host_is_looked_over(rehearsal_host, tmp_path):
    """Eight free GPUs, no engine unit yet, kernel lines readable, the stand-in's version known: in one round trip."""
    survey, sent = watched_survey(rehearsal_host, tmp_path)
    assert sent == ["survey"]
    assert survey.state is State.OK, attention([survey]).text
    assert survey.summary == "no engine unit, 8 free GPUs"
    assert (survey.driver_version, survey.engine_version) == ("580.95.05", "0.15.1")
    assert survey.systemd_version == "252"
    assert next(check for check in survey.checks if check.name == "kernel").summary.startswith("no Xid")


def start_unit(host, unit, *flags):
    """Install and start an engine's unit on a host with the stand-in."""
    settings = host.settings
    argv = [
        "--port",
        "8000",
        "--tensor-parallel-size",
        "4",
        "--gpu-memory-utilization",
        "0.95",
        "--max-model-len",
        "131072",
        *flags,
    ]
    text = render_vllm_unit(
        unit=unit, vllm=settings.vllm, model_path=f"{settings.models_dir}/{MODEL}", flags=argv, gpus=[0, 1, 2, 3]
    )
    host.write_file(f"{settings.unit_dir}/{unit}.service", text.encode(), sudo=True)
    for words in (["daemon-reload"], ["start", "--no-block", "--", unit]):
        assert host.run(["systemctl", *words], sudo=True).is_success


def watched_survey(host, tmp_path):
    """What the survey found, and the names of the programs and commands that it sent for that."""
    host.run(("true",))  # connected
    transcript = tmp_path / "transcript.jsonl"
    survey = survey_host(RecordingHost(host, transcript))
    sent = [json.loads(line) for line in transcript.read_text().splitlines()]
    return survey, [entry.get("program") or entry["argv"] for entry in sent]


def wait_for(ask, is_there, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    seen = []
    while time.monotonic() < deadline:
        answer = ask()
        seen.append(answer)
        if is_there(answer):
            return answer, seen
        time.sleep(0.3)
    raise AssertionError([answer.summary for answer in seen[-5:]])


def test_a_launch_is_told_honestly_to_its_end(rehearsal_host_of):
    """Installed, starting, ready: each look says what is true, and holders, model, port and version are known at the end."""
    host = rehearsal_host_of("healthy")
    start_unit(host, "vllm-minimax")
    first = survey_host(host)
    assert first.units[0].summary.startswith("vllm-minimax starting for")
    assert first.state is State.WARNING
    survey, _ = wait_for(lambda: survey_host(host), lambda survey: survey.state is State.OK)
    unit = survey.units[0]
    assert (unit.engine, unit.port, unit.engine_version, unit.health_status_code) == ("vllm", 8000, "0.15.1", 200)
    assert unit.model.endswith(MODEL)
    assert [(held.gpu_index, held.unit) for held in survey.holders] == [(n, "vllm-minimax") for n in range(4)]
    assert "VLLM::Worker_TP0" in gpus_table([survey]).text
    check = check_unit(host, "vllm-minimax")
    assert check.state is State.OK
    assert check.token.ttft_ms > 0


def test_a_crash_is_never_called_active(rehearsal_host_of):
    """While the unit crashes and is restarted no look calls it ok, and the crash is critical with the runbook that continues."""
    host = rehearsal_host_of("sampler-oom")
    start_unit(host, "vllm-minimax")
    survey, seen = wait_for(lambda: survey_host(host), lambda survey: survey.units[0].status.n_restarts > 0)
    assert not [answer.summary for answer in seen if answer.state is State.OK]
    assert survey.state is State.CRITICAL
    assert "restart" in survey.units[0].summary
    assert survey.next_step.startswith("opslib run investigate-crash -p host=")
    assert check_unit(host, "vllm-minimax").token is None


@pytest.fixture
def rehearsal_host_of():
    """Practice hosts by scenario, each its own."""
    from opslib.rehearsal.server import start_rehearsal

    ends = []

    def start(scenario):
        running = start_rehearsal(scenario)
        ends.append(running.close)
        manager = opened(running.settings)
        host = manager.__enter__()
        ends.append(lambda: manager.__exit__(None, None, None))
        return host

    yield start
    for end in reversed(ends):
        end()


def test_a_hanging_nvidia_smi_is_a_finding_over_ssh(rehearsal_host_of, monkeypatch):
    """The survey comes back when the time for nvidia-smi is up, with a suspicion and with everything else."""
    monkeypatch.setattr("opslib.domain.survey_reading.GPU_TIMEOUT_S", 1.0)
    host = rehearsal_host_of("healthy")
    tool = Path(host.settings.unit_dir.partition("/etc/")[0]) / "bin/nvidia-smi"
    tool.unlink()
    tool.write_text("#!/bin/sh\ntrap '' TERM INT\nsleep 60\n")
    tool.chmod(0o755)
    survey = survey_host(host)
    assert survey.state is State.CRITICAL
    assert survey.summary == "GPUs: nvidia-smi hangs (no answer within 1 s): suspected gpu-hardware/hang"
    assert survey.duration_s < 50, "the survey waited for nvidia-smi, which sleeps a minute"
    assert survey.systemd_version == "252"


def test_memory_held_by_a_stranger_is_told(rehearsal_host_of):
    """A forgotten process on a GPU is a warning with its size, its name and its pid, before anything is launched."""
    survey = survey_host(rehearsal_host_of("gpu-memory-held"))
    assert survey.state is State.WARNING
    assert survey.summary.startswith("GPU 2: 40.0 GiB held by hold-gpu-memory (pid ")


@pytest.mark.realhost
def test_a_real_host_is_looked_over(debian, tmp_path):
    """Real systemd, journald and /proc over real SSH, whatever other tests installed there: in one round trip."""
    with opened(debian.settings) as host:
        survey, sent = watched_survey(host, tmp_path)
    assert sent == ["survey"]
    states = {check.name: check.state for check in survey.checks}
    for topic in ("disk /", "disk models", "shared memory", "memory", "clock", "journal"):
        assert states[topic] is State.OK, attention([survey]).text
    assert survey.knows_units
    assert survey.systemd_version == "252"


@pytest.mark.realhost
def test_a_login_without_sudo_sees_less_and_says_so(debian):
    """Two round trips, and what may be missing is unknown."""
    with opened(debian.nosudo_settings) as host:
        survey = survey_host(host)
    assert survey.state is State.UNKNOWN
    assert "rights" in [check.name for check in survey.checks if check.state is State.UNKNOWN]


@pytest.mark.realhost
def test_a_unit_on_a_real_systemd(debian):
    """The stand-in engine under a real systemd: holders belong to the unit by its control group, a kill is a crash."""
    from tests.rig.debian import install_standin

    settings = install_standin(debian, "healthy")
    with opened(settings) as host:
        start_unit(host, "vllm-survey")
        try:
            survey, _ = wait_for(
                lambda: survey_host(host, ["vllm-survey"]), lambda survey: survey.units[0].state is State.OK
            )
            assert {held.unit for held in survey.holders} == {"vllm-survey"}
            pid = survey.units[0].status.main_pid
            host.run(["kill", "-9", str(pid)], sudo=True)
            survey, _ = wait_for(
                lambda: survey_host(host, ["vllm-survey"]), lambda survey: survey.units[0].status.n_restarts > 0
            )
            assert survey.units[0].state is State.CRITICAL
            assert survey.units[0].summary.startswith("vllm-survey crashed")
        finally:
            host.run(["systemctl", "stop", "--", "vllm-survey"], sudo=True, timeout_s=90)
            host.run(["rm", "--", f"{settings.unit_dir}/vllm-survey.service"], sudo=True)


def test_a_check_without_a_port_is_refused():
    """A unit that runs no known engine has no port to ask."""
    document = reading()
    document["units"][0] |= {"engine": "", "port": None, "health": None, "version": None}
    with pytest.raises(BadParameter, match="its port is not"):
        check_unit(Host(json.dumps(document)), "vllm-minimax")
