"""Installing a unit: planned, applied, proven, undone."""

import pytest

from opslib.errors import UnknownName
from opslib.workflow.install import (
    apply_plan,
    guard_path,
    plan_install,
    undo,
    unit_path,
    unit_text_for,
)
from opslib.workflow.unit_files import plan_flag
from tests.fakes import FakeHost, answered

SHOW = ("env", "TZ=UTC", "systemctl", "show")
LOADED = "LoadState=loaded\nActiveState=inactive\nNeedDaemonReload=no\n"


def a_host(show=LOADED, **answers):
    host = FakeHost(
        {("test", "-d"): answered(exit_status=1), ("mkdir",): "", ("systemctl", "daemon-reload"): "", SHOW: show}
    )
    made = answered()

    def test_directory(argv):
        return (
            made if ("mkdir", "--parents", "--mode=0755", argv[-1]) in host.commands else answered(argv, exit_status=1)
        )

    host.answers[("test", "-d")] = test_directory
    for program in ("mv", "rm"):
        host.answers[(program,)] = lambda argv: move(host, argv)
    return host


def move(host, argv):
    if argv[0] == "rm":
        host.files.pop(argv[-1])
    else:
        host.files[argv[-1]] = host.files.pop(argv[-2])
    return answered(argv)


def text_for(host, *flags):
    return unit_text_for(
        host,
        unit="vllm-minimax",
        model_path="/srv/models/x",
        flags=["--port", "8000", *flags],
        gpus=[0, 1],
        required_free_gib=90.2,
    )


def test_a_fresh_host_gets_directory_guard_unit_and_a_reload():
    """In this order, each with its diff or command, its check and its undo; nothing is done yet."""
    host = a_host()
    plan = plan_install(host, unit="vllm-minimax", unit_text=text_for(host))
    assert [step.title for step in plan.steps] == [
        "create /var/lib/opslib",
        "write the GPU guard /var/lib/opslib/gpu_guard.py",
        "install /etc/systemd/system/vllm-minimax.service",
        "let systemd read its unit files",
    ]
    assert "+++ /etc/systemd/system/vllm-minimax.service" in plan.diff
    assert all(step.undo for step in plan.steps)
    assert host.files == {}


def test_what_was_applied_is_there_and_a_second_plan_is_empty():
    """Applying twice changes nothing the second time."""
    host, told = a_host(), []
    plan = plan_install(host, unit="vllm-minimax", unit_text=text_for(host))
    report = apply_plan(host, plan, on_step=told.append)
    assert (report.state, len(told)) == ("ok", 4)
    assert host.modes[guard_path(host)] == 0o755
    assert host.files[unit_path(host, "vllm-minimax")].decode() == text_for(host)
    assert plan_install(host, unit="vllm-minimax", unit_text=text_for(host)).steps == ()


def test_a_remedy_is_a_one_line_change_that_undo_takes_back():
    """The diff adds one flag; undo brings the backup back and lets systemd read it."""
    host = a_host()
    apply_plan(host, plan_install(host, unit="vllm-minimax", unit_text=text_for(host)))
    before = dict(host.files)
    host.answers[SHOW] = f"{LOADED}FragmentPath={unit_path(host, 'vllm-minimax')}\n"
    plan = plan_flag(host, "vllm-minimax", "--max-num-seqs", "256")
    added = [line for line in plan.diff.splitlines() if line.startswith("+ ")]
    assert added == ["+    --max-num-seqs 256 \\"] or added == ["+    --max-num-seqs 256"]
    report = apply_plan(host, plan)
    path = unit_path(host, "vllm-minimax")
    assert report.undo == (
        f"sudo mv --no-target-directory {report.receipts[0].backup_path} {path}",
        "sudo systemctl daemon-reload",
    )
    assert all(result.state == "ok" for result in undo(host, report))
    assert host.files == before


def test_undoing_a_first_installation_removes_the_files():
    """Nothing of the kit is left in the unit directory."""
    host = a_host()
    report = apply_plan(host, plan_install(host, unit="vllm-minimax", unit_text=text_for(host)))
    undo(host, report)
    assert host.files == {}


def test_a_step_that_does_not_hold_stops_the_plan():
    """A unit that systemd does not load after a reload is found by asking again."""
    host = a_host(show="LoadState=bad-setting\nActiveState=inactive\n")
    report = apply_plan(host, plan_install(host, unit="vllm-minimax", unit_text=text_for(host)))
    assert (report.state, report.steps[-1].detail) == ("critical", "systemd says LoadState=bad-setting")


def test_a_command_that_fails_stops_before_the_next_step():
    """No unit is written where its guard's directory could not be made."""
    host = a_host()
    host.answers[("mkdir",)] = answered(exit_status=1, stderr="mkdir: read-only file system")
    report = apply_plan(host, plan_install(host, unit="vllm-minimax", unit_text=text_for(host)))
    assert (report.state, len(report.steps), host.files) == ("critical", 1, {})
    assert "read-only file system" in report.steps[0].detail


def test_a_reload_that_is_due_is_planned_alone():
    """The file is right, but systemd hasn't read it."""
    host = a_host(show=LOADED.replace("=no", "=yes"))
    host.files[unit_path(host, "u")] = b"[Service]\nExecStart=/bin/true\n"
    plan = plan_install(host, unit="u", unit_text="[Service]\nExecStart=/bin/true\n")
    assert [step.command for step in plan.steps] == [("systemctl", "daemon-reload")]


def test_a_flag_of_a_unit_that_is_not_there_is_refused():
    """There's nothing to change."""
    with pytest.raises(UnknownName, match="knows no unit"):
        plan_flag(a_host(show="LoadState=not-found\nActiveState=inactive\n"), "u", "--port", "1")


def test_without_gpus_no_guard_is_written():
    """A CPU engine's unit names none."""
    host = a_host()
    text = unit_text_for(host, unit="u", model_path="/m", flags=[], environment={"VLLM_CPU_KVCACHE_SPACE": "1"})
    plan = plan_install(host, unit="u", unit_text=text)
    assert [step.title.split()[0] for step in plan.steps] == ["install", "let"]
    assert "Environment=VLLM_CPU_KVCACHE_SPACE=1" in text


def test_a_secret_goes_to_a_file_of_its_own_and_into_no_diff():
    """A secret variable is written with mode 0600 beside the unit, and no diff or title shows its value."""
    host = a_host()
    text = unit_text_for(host, unit="vllm-a", model_path="/srv/models/a", flags=[], has_secrets=True)
    plan = plan_install(host, unit="vllm-a", unit_text=text, secrets={"HF_TOKEN": "s3cr3t-value"})
    step = next(step for step in plan.steps if step.file and step.file.path.endswith("/vllm-a.env"))
    assert step.file.mode == 0o600
    assert step.file.content == 'HF_TOKEN="s3cr3t-value"\n'
    assert "EnvironmentFile=/var/lib/opslib/vllm-a.env" in text
    assert "s3cr3t-value" not in plan.diff + text + "".join(step.title + step.undo for step in plan.steps)
