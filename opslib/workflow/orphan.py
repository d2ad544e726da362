"""Left-over engines that hold a GPU: found with a proof, ended by a step of a plan, and nothing else touched."""

from collections.abc import Iterator
from contextlib import suppress

from opslib.domain.facts.gpu import GpuProcess
from opslib.domain.facts.processes import descends_from, parse_process_parents, process_parents_command
from opslib.domain.host import Host
from opslib.domain.orphan import Holder, judge_owner, read_cgroup_unit, read_started_ticks
from opslib.domain.plans import Plan, Step
from opslib.errors import OpslibError, Refused
from opslib.workflow.facts import gather_unit_status

_GRACE_S = 30
_INVOCATION = b"INVOCATION_ID="


def gather_holder(host: Host, pid: int, name: str) -> Holder:
    """What the kernel and systemd say about a process now; what can't be had stays empty. Nothing is changed."""
    unit = read_cgroup_unit(_read(host, f"/proc/{pid}/cgroup").decode("utf-8", "replace"))
    status = None
    with suppress(OpslibError):
        status = gather_unit_status(host, unit) if unit else None
    is_own = False
    if status and status.main_pid:
        parents = parse_process_parents(host.run(process_parents_command()).text)
        is_own = descends_from(pid, status.main_pid, parents)
    return Holder(
        pid=pid,
        name=name,
        command=_read(host, f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()[:400],
        started_ticks=read_started_ticks(_read(host, f"/proc/{pid}/stat").decode("utf-8", "replace")),
        cgroup_unit=unit,
        invocation_id=_invocation(_read(host, f"/proc/{pid}/environ")),
        unit_state=(status.active_state if status.is_installed else "not installed") if status else "",
        unit_invocation_id=status.invocation_id if status else "",
        is_of_main_process=is_own,
    )


def _read(host: Host, path: str) -> bytes:
    with suppress(OpslibError):
        return host.read_file(path, sudo=host.settings.has_sudo) or b""
    return b""


def _invocation(environ: bytes) -> str:
    """The one variable that is looked at; the rest of a process's environment may hold secrets."""
    words = (word for word in environ.split(b"\0") if word.startswith(_INVOCATION))
    return next(words, b"")[len(_INVOCATION) :].decode("ascii", "replace")


def find_orphans(host: Host, processes: tuple[GpuProcess, ...]) -> Iterator[tuple[Holder, str]]:
    """The left-over engines among the processes, each with its proof."""
    for pid, name in {process.pid: process.name for process in processes}.items():
        holder = gather_holder(host, pid, name)
        owner = judge_owner(holder)
        if owner.is_orphan:
            yield holder, owner.proof


def plan_end(host: Host, holder: Holder) -> Plan:
    """Asks the process to end (SIGTERM) and waits for it; raises Refused where it is another one by now, or owned."""
    now = gather_holder(host, holder.pid, holder.name)
    owner = judge_owner(now)
    if now.started_ticks != holder.started_ticks or not owner.is_orphan:
        raise Refused(f"process {holder.pid} is not ended: {owner.proof}", host=host.settings.alias)
    pid = str(holder.pid)
    step = Step(
        title=f"end {holder.name} (pid {pid}): {owner.proof}",
        command=("kill", "-s", "TERM", pid),
        check=("timeout", str(_GRACE_S), "tail", f"--pid={pid}", "-f", "/dev/null"),
        undo="none: a process that was ended stays ended",
    )
    return Plan(host=host.settings.alias, title=f"end {holder.name} (pid {pid})", steps=(step,))
