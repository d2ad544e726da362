"""A change that may cure a cause, of the unit or of one process, and whether it made things worse."""

from collections.abc import Sequence

from opslib.domain.diagnosis import Diagnosis
from opslib.domain.diagnosis_catalogue import Remedy
from opslib.domain.engine_log import list_phases
from opslib.domain.orphan import Holder
from opslib.domain.repair import changed_unit
from opslib.domain.states import Value


class Change(Value):
    """One change that may cure a cause: a flag or setting of the unit, or the end of a left-over process."""

    cause: str
    flag: str = ""
    value: str = ""
    setting: str = ""
    left_over: Holder | None = None  # the process that is ended
    reason: str
    cost: str
    check: str
    # Whether it changes what clients see or what the operator asked for: headless only where the allow-list names it.
    is_delicate: bool = False

    @property
    def words(self) -> str:
        """The change in short: "--max-num-seqs 256", "MemoryMax=infinity", "no --quantization", "end vllm (pid 7)"."""
        if self.left_over:
            return f"end {self.left_over.name} (pid {self.left_over.pid})"
        if self.setting:
            return f"{self.setting}={self.value}"
        return f"no {self.flag}" if self.value == "-" else f"{self.flag} {self.value}".rstrip()

    def unit_with(self, unit_text: str) -> str:
        """The unit's text with the change in it."""
        remedy = Remedy(text=self.reason, flag=self.flag, value=self.value, setting=self.setting)
        return changed_unit(remedy, unit_text) or unit_text


def change_of(remedies: Sequence[Remedy], cause: str) -> Change | None:
    """The first computed way out that is a change of the unit, None where there is none."""
    for remedy in remedies:
        if remedy.computed_by == "unit" and (remedy.flag or remedy.setting):
            return Change(
                cause=cause,
                flag=remedy.flag,
                value=remedy.value,
                setting=remedy.setting,
                reason=remedy.text,
                cost=remedy.cost,
                check=remedy.check,
                is_delicate=True,
            )
    return None


def is_worse(before: Diagnosis, after: Diagnosis) -> bool:
    """Whether a start got less far than the one that it should have cured.

    >>> nothing = Diagnosis(cause="unknown", confidence="low", summary="")
    >>> is_worse(nothing, nothing)
    False
    """
    old, new = _reached(before), _reached(after)
    return old is not None and new is not None and new < old


def _reached(diagnosis: Diagnosis) -> int | None:
    """The order of the phase that the last failed start came to, None where no line shows one."""
    orders = {phase.id: phase.order for phase in list_phases()}
    failed = [start.phase for start in diagnosis.invocations if start.ending == "failed"]
    return orders.get(failed[-1], 0) if failed else None
