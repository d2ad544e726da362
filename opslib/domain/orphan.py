"""Whether a process that holds a GPU is an engine that no live unit owns, and the proof."""

import re

from opslib.domain.states import Value

_ENGINE = re.compile(r"VLLM::|\bvllm\b|sglang|llama-server|text-generation|ray::")
_LIVE = frozenset({"active", "activating", "reloading", "deactivating"})
_UNIT = re.compile(r"/(?P<unit>[^/\n]+\.service)(?:/[^\n]*)?$", re.MULTILINE)


class Holder(Value):
    """A process as the kernel shows it; `invocation_id` is the start that its environment names, "" where unknown."""

    pid: int
    name: str
    command: str = ""
    started_ticks: str = ""  # tells it from a later process with the same number
    cgroup_unit: str = ""
    invocation_id: str = ""
    # of the unit that its control group names:
    unit_state: str = ""
    unit_invocation_id: str = ""
    is_of_main_process: bool = False


class Ownership(Value):
    """Whether nobody owns a process, and why that is known."""

    is_orphan: bool
    proof: str


def read_cgroup_unit(text: str) -> str:
    """The unit that `/proc/PID/cgroup` names, "" for none.

    >>> read_cgroup_unit("0::/system.slice/vllm.service")
    'vllm.service'
    """
    found = _UNIT.search(text)
    return found["unit"] if found else ""


def read_started_ticks(stat: str) -> str:
    """Field 22 of `/proc/PID/stat` (the name before may hold spaces and brackets); "" where it can't be read.

    >>> read_started_ticks("7 (a b) S " + " ".join(str(n) for n in range(4, 30)))
    '22'
    """
    fields = stat.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def judge_owner(holder: Holder) -> Ownership:
    """An engine is an orphan where the unit of its control group is dead, or runs another start; in doubt it is owned.

    >>> dead = Holder(pid=7, name="VLLM::EngineCor", started_ticks="1", cgroup_unit="vllm.service", unit_state="failed")
    >>> judge_owner(dead).is_orphan
    True
    """
    is_orphan, why = _judged(holder)
    return Ownership(is_orphan=is_orphan, proof=f"{holder.name} (pid {holder.pid}) {why}")


def _judged(holder: Holder) -> tuple[bool, str]:
    unit, ids = holder.cgroup_unit, (holder.invocation_id, holder.unit_invocation_id)
    if reason := _outside(holder):
        return False, reason
    if holder.unit_state and holder.unit_state not in _LIVE:
        return True, f"is of {unit}, which is {holder.unit_state}"
    if all(ids) and ids[0] != ids[1]:
        return True, f"is of {unit}'s start {ids[0][:8]}, and that unit now runs start {ids[1][:8]}"
    return False, f"belongs to {unit}, which is {holder.unit_state or 'unknown'}"


def _outside(holder: Holder) -> str:
    """Why a process isn't looked at further; "" where it is."""
    if not _ENGINE.search(f"{holder.name} {holder.command}"):
        return "is no engine"
    if not holder.started_ticks:
        return "could not be looked at"
    if not holder.cgroup_unit:
        return "was started by hand or by something that isn't a unit"
    if holder.is_of_main_process:
        return f"is the running process of {holder.cgroup_unit}, or was started by it"
    return ""
