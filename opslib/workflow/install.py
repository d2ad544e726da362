"""Install a unit: plan the change, apply it step by step, prove each step by asking again, undo it."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files

from opslib.domain.facts.scope import in_scope
from opslib.domain.facts.systemd import parse_unit_show, show_unit_command, unit_name
from opslib.domain.host import Host, WriteReceipt
from opslib.domain.plans import FileChange, Plan, Step
from opslib.domain.states import State, Value
from opslib.domain.unit_file import unified_diff
from opslib.domain.vllm_unit import GuardSettings, render_environment_file, render_vllm_unit
from opslib.errors import Refused
from opslib.workflow.facts import gather_identity, gather_unit_status
from opslib.workflow.shim import shim_command, shim_path, shim_text

RELOAD = ("systemctl", "daemon-reload")


class StepResult(Value):
    """What one step did, and whether asking again confirmed it."""

    title: str
    state: State
    detail: str = ""


class ApplyReport(Value):
    """What a plan did: each step, the receipts of written files, and what an operator would type to undo it."""

    host: str
    state: State
    steps: tuple[StepResult, ...] = ()
    receipts: tuple[WriteReceipt, ...] = ()
    undo: tuple[str, ...] = ()


def guard_path(host: Host) -> str:
    """Where the GPU guard lies on a host."""
    return f"{host.settings.state_dir}/gpu_guard.py"


def unit_path(host: Host, unit: str) -> str:
    """Where a unit's file lies on a host."""
    return f"{host.settings.unit_dir}/{unit_name(unit)}"


def unit_text_for(
    host: Host,
    *,
    unit: str,
    model_path: str,
    flags: Sequence[str],
    gpus: Sequence[int] = (),
    required_free_gib: float = 0.0,
    wait_s: int = 300,
    environment: Mapping[str, str] | None = None,
    has_secrets: bool = False,
    notify_stall_s: int | None = None,
    model_bytes: int = 0,
) -> str:
    """The unit that the kit would install on this host for these flags, with its guard where there are GPUs.

    `notify_stall_s`: the notify shim runs the engine, and its start may stand still for so long; None: no shim.
    """
    settings = host.settings
    guard = GuardSettings(
        python=settings.python, path=guard_path(host), required_free_gib=required_free_gib, wait_s=wait_s
    )
    return render_vllm_unit(
        unit=unit,
        vllm=settings.vllm,
        model_path=model_path,
        flags=flags,
        gpus=gpus,
        guard=guard if gpus else None,
        environment={**settings.environment, **(environment or {})},
        environment_file=environment_path(host, unit) if has_secrets else None,
        notify=() if notify_stall_s is None else shim_command(host, stall_s=notify_stall_s),
        model_bytes=model_bytes,
    )


def environment_path(host: Host, unit: str) -> str:
    """Where a unit's secret environment lies on a host, readable by root alone."""
    return f"{host.settings.state_dir}/{unit_name(unit).removesuffix('.service')}.env"


def read_unit_text(host: Host, unit: str) -> str | None:
    """The installed unit file's text, None where there is none."""
    content = host.read_file(unit_path(host, unit), sudo=host.settings.has_sudo)
    return None if content is None else content.decode("utf-8", "surrogateescape")


def plan_install(host: Host, *, unit: str, unit_text: str, secrets: Mapping[str, str] | None = None) -> Plan:
    """What has to change on the host so that `unit` reads `unit_text`; empty when it already does.

    GPU guard and notify shim are part of it where the unit names them, and so is the file of the `secrets` (environment
    variables).
    Raises Refused where the login's own units would end with its last session.
    """
    steps: list[Step] = []
    if host.settings.scope == "user":
        require_linger(host)
        steps += _directory_steps(host, host.settings.unit_dir)
    guard, shim = guard_path(host) in unit_text, shim_path(host) in unit_text
    if secrets or guard or shim:
        steps += _directory_steps(host, host.settings.state_dir)
    if guard:
        content = files("opslib.onhost").joinpath("gpu_guard.py").read_text("utf-8")
        steps += _program_steps(host, "the GPU guard", guard_path(host), content)
    if shim:
        steps += _program_steps(host, "the notify shim", shim_path(host), shim_text())
    if secrets:
        steps += _secret_steps(host, unit, secrets)
    written = plan_file(host, unit, unit_path(host, unit), unit_text)
    return Plan(host=host.settings.alias, title=f"install {unit_name(unit)}", steps=(*steps, *written.steps))


def plan_file(host: Host, unit: str, path: str, text: str) -> Plan:
    """What has to change so that one file of `unit` reads `text`, and systemd knows it."""
    steps: list[Step] = []
    content = host.read_file(path, sudo=host.settings.has_sudo)
    old = None if content is None else content.decode("utf-8", "surrogateescape")
    if old != text:
        steps += _directory_steps(host, path.rpartition("/")[0]) if path.endswith(".conf") else []  # drop-ins
        change = FileChange(path=path, content=text, diff=unified_diff(old, text, path))
        verb = "install" if old is None else "change"
        steps.append(Step(title=f"{verb} {path}", file=change, undo=_undo_words(host, path, is_new=old is None)))
    if old != text or gather_unit_status(host, unit).need_daemon_reload:
        show = show_unit_command(unit)
        steps.append(
            Step(title="let systemd read its unit files", command=RELOAD, check=show, undo=_typed(host, RELOAD))
        )
    return Plan(host=host.settings.alias, title=f"change {unit_name(unit)}", steps=tuple(steps))


def require_linger(host: Host) -> None:
    """Refuses a login whose user manager, and all that it runs, ends with its last session (loginctl(1))."""
    user = gather_identity(host).user
    if "Linger=no" in host.run(("loginctl", "show-user", "--property=Linger", "--", user)).text:
        raise Refused(
            f"units of {user} would end with its last session (Linger=no)",
            host=host.settings.alias,
            hint=f"once, as root: loginctl enable-linger {user}",
        )


def _directory_steps(host: Host, directory: str) -> list[Step]:
    if host.run(("test", "-d", directory)).is_success:
        return []
    make, check = ("mkdir", "--parents", "--mode=0755", directory), ("test", "-d", directory)
    return [Step(title=f"create {directory}", command=make, check=check, undo=_typed(host, ("rmdir", directory)))]


def _secret_steps(host: Host, unit: str, secrets: Mapping[str, str]) -> list[Step]:
    """The environment file; its diff names the variables and never shows a value."""
    path, content = environment_path(host, unit), render_environment_file(secrets)
    if host.read_file(path, sudo=host.settings.has_sudo) == content.encode():
        return []
    diff = "".join([f"+++ {path} (mode 0600)\n", *(f"+{name}=[not shown]\n" for name in secrets)])
    change = FileChange(path=path, content=content, mode=0o600, diff=diff)
    return [Step(title=f"write {path} ({', '.join(secrets)})", file=change, undo=_typed(host, ("rm", path)))]


def _program_steps(host: Host, name: str, path: str, content: str) -> list[Step]:
    old = host.read_file(path, sudo=host.settings.has_sudo)
    if old == content.encode():
        return []
    before = None if old is None else old.decode("utf-8", "replace")
    change = FileChange(path=path, content=content, mode=0o755, diff=unified_diff(before, content, path))
    return [Step(title=f"write {name} {path}", file=change, undo=_undo_words(host, path, is_new=old is None))]


def _undo_words(host: Host, path: str, *, is_new: bool) -> str:
    words = _typed(host, ("rm", path) if is_new else ("mv", "BACKUP", path))
    return words if is_new else f"{words} (the backup is named when it's made)"


def _typed(host: Host, command: Sequence[str]) -> str:
    words = shlex.join(in_scope(command, host.settings.scope))
    return words if host.settings.scope == "user" else f"sudo {words}"


def apply_plan(host: Host, plan: Plan, *, on_step: Callable[[StepResult], None] | None = None) -> ApplyReport:
    """Do the plan's steps in order, ask again after each, and stop at the first that doesn't hold (state critical).

    Errors of `opslib.errors` pass through; what was done until then is in the backups beside the files.
    """
    results: list[StepResult] = []
    receipts: list[WriteReceipt] = []
    for step in plan.steps:
        result, receipt = _apply(host, step)
        results.append(result)
        receipts += [receipt] if receipt else []
        if on_step:
            on_step(result)
        if result.state is not State.OK:
            break
    state = results[-1].state if results else State.OK
    undo = undo_commands(receipts)
    return ApplyReport(
        host=plan.host,
        state=state,
        steps=tuple(results),
        receipts=tuple(receipts),
        undo=tuple(_typed(host, command) for command in undo),
    )


def _apply(host: Host, step: Step) -> tuple[StepResult, WriteReceipt | None]:
    sudo = step.sudo and host.settings.has_sudo
    if step.file:
        content = step.file.content.encode("utf-8", "surrogateescape")
        receipt = host.write_file(step.file.path, content, mode=step.file.mode, owner=step.file.owner, sudo=sudo)
        is_there = host.read_file(step.file.path, sudo=sudo) == content
        detail = f"sha256 {receipt.sha256[:12]}" if is_there else "reading it again gives other bytes"
        return StepResult(title=step.title, state=State.OK if is_there else State.CRITICAL, detail=detail), receipt
    if step.command:
        result = host.run(step.command, sudo=sudo)
        if not result.is_success:
            detail = f"exit status {result.exit_status}: {result.error_text}"
            return StepResult(title=step.title, state=State.CRITICAL, detail=detail), None
    problem = _checked(host, step.check) if step.check else ""
    return StepResult(title=step.title, state=State.CRITICAL if problem else State.OK, detail=problem), None


def _checked(host: Host, check: tuple[str, ...]) -> str:
    """What asking again finds wrong; "" when the step holds."""
    result = host.run(check)
    if not result.is_success:
        return f"`{' '.join(check)}` exited with {result.exit_status}"
    if "show" not in check:
        return ""
    status = parse_unit_show(result.text)
    if status.load_state != "loaded":
        return f"systemd says LoadState={status.load_state}"
    return "systemd says that it needs a daemon-reload" if status.need_daemon_reload else ""


def undo_commands(receipts: Sequence[WriteReceipt]) -> tuple[tuple[str, ...], ...]:
    """The commands that bring back what was there before, last change first."""
    commands = [
        ("mv", "--no-target-directory", receipt.backup_path, receipt.path)
        if receipt.backup_path
        else ("rm", "--force", receipt.path)
        for receipt in reversed(receipts)
        if receipt.is_changed
    ]
    return (*commands, RELOAD) if commands else ()


def undo(host: Host, report: ApplyReport) -> tuple[StepResult, ...]:
    """Bring back what an applied plan changed; stops at the first command that fails."""
    results: list[StepResult] = []
    for command in undo_commands(report.receipts):
        result = host.run(command, sudo=host.settings.has_sudo)
        state = State.OK if result.is_success else State.CRITICAL
        results.append(StepResult(title=_typed(host, command), state=state, detail=result.error_text))
        if not result.is_success:
            break
    return tuple(results)
