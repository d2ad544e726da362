"""What a computed way out needs to know of the host, and its plan: the unit's text changed, nothing else."""

from opslib.domain.diagnosis import Diagnosis
from opslib.domain.host import Host
from opslib.domain.plans import Plan
from opslib.domain.repair import RepairFacts, compute_repairs, read_cache_path
from opslib.domain.states import State, Value
from opslib.domain.unit_change import Change
from opslib.errors import OpslibError
from opslib.workflow.facts import gather_listeners
from opslib.workflow.install import ApplyReport, StepResult, plan_file, read_unit_text, undo, unit_path
from opslib.workflow.investigate import Evidence
from opslib.workflow.orphan import find_orphans, plan_end
from opslib.workflow.unit_files import gather_unit_files

_PORTS_TRIED = 20


class RollBack(Value):
    """How a change was taken back: each command, and whether the unit reads as it did before."""

    state: State
    summary: str
    steps: tuple[StepResult, ...] = ()


def with_repairs(host: Host, diagnosis: Diagnosis, evidence: Evidence, *, port: int | None = None) -> Diagnosis:
    """The verdict with the ways out that can be computed for it on this host before those of the catalogue."""
    facts = gather_repair_facts(host, diagnosis, evidence, port=port)
    computed = compute_repairs(diagnosis, facts)
    return diagnosis.model_copy(update={"remedies": (*computed, *diagnosis.remedies)}) if computed else diagnosis


def gather_repair_facts(host: Host, diagnosis: Diagnosis, evidence: Evidence, *, port: int | None) -> RepairFacts:
    """What the computation rests on; what can't be had stays empty."""
    try:
        text = read_unit_text(host, evidence.unit) or ""
        free = find_free_port(host, port) if port and diagnosis.cause == "configuration/port-in-use" else None
    except OpslibError:
        text, free = "", None
    known = [at for at in evidence.listeners if at.pid is not None]
    return RepairFacts(
        unit=evidence.unit,
        unit_text=text,
        unit_path=unit_path(host, evidence.unit),
        port=port,
        free_port=free,
        holder=" ".join(f"{at.process_name} (pid {at.pid}) keeps {at.port}." for at in known[:1]),
        model_path=_model_path(text),
        cache_path=read_cache_path(entry.message for entry in evidence.journal),
    )


def _model_path(unit_text: str) -> str:
    """The checkpoint's directory as the unit names it, "" where it names none."""
    words = unit_text.replace("\\\n", " ").split()
    after = words[words.index("serve") + 1 :] if "serve" in words else []
    return after[0] if after and after[0].startswith("/") else ""


def find_free_port(host: Host, port: int) -> int | None:
    """The next port above `port` that nobody listens on, None where the next twenty are all taken."""
    above = range(port + 1, min(port + 1 + _PORTS_TRIED, 65536))
    return next((other for other in above if not gather_listeners(host, other)), None)


def propose_end(host: Host, cause: str, evidence: Evidence) -> Change | None:
    """The end of the first left-over engine among those that hold a GPU, None where none is proven to be one."""
    for holder, proof in find_orphans(host, evidence.foreign_gpu_processes):
        return Change(
            cause=cause,
            left_over=holder,
            reason=f"no live unit owns it: {proof}",
            cost="what that process still did is lost",
            check=f"process {holder.pid} is gone, and the start finds its memory free",
            is_delicate=True,
        )
    return None


def plan_change(host: Host, unit: str, change: Change) -> Plan:
    """What has to be done so that the unit's ruling file holds the change, or the left-over process is gone.

    Raises UnknownName without a unit, Refused for an engine in a container and where the process turns out to be owned.
    """
    if change.left_over:
        return plan_end(host, change.left_over)
    part = gather_unit_files(host, unit).changed(change.unit_with, key=change.setting or "ExecStart")
    return plan_file(host, unit, part.path, part.text)


def roll_back(host: Host, unit: str, report: ApplyReport, before: str) -> RollBack:
    """Brings back the unit file's backup and proves that it reads as `before`; touches nothing else."""
    steps = undo(host, report)
    is_back = read_unit_text(host, unit) == before
    failed = next((step for step in steps if step.state is not State.OK), None)
    if is_back and failed is None:
        return RollBack(state=State.OK, summary="rolled back: the unit reads as before", steps=steps)
    why = f"{failed.title}: {failed.detail}" if failed else "the unit reads otherwise than before"
    return RollBack(state=State.CRITICAL, summary=f"the roll-back failed: {why}", steps=steps)
