"""One look at one unit: what it comes to, whether it runs what its files say, and what it holds."""

from opslib.domain.host import Host
from opslib.domain.states import CheckResult, State, Value, worst
from opslib.domain.survey import EngineUnit
from opslib.errors import UnexpectedAnswer
from opslib.workflow.answering import check_flags
from opslib.workflow.release import gather_hold
from opslib.workflow.survey import ask_survey
from opslib.workflow.unit_files import gather_unit_files


class UnitLook(Value):
    """A unit as it is: the survey's verdict, its arguments against its files, its GPU memory, its files."""

    seen: EngineUnit
    flags: CheckResult | None = None  # None where no process runs
    gpu_memory: str = ""
    files: tuple[str, ...] = ()
    container: str = ""

    @property
    def state(self) -> State:
        """The worse of the survey's verdict and of the arguments; other arguments than the files' are a warning."""
        is_other = self.flags is not None and self.flags.state is not State.OK
        return worst((self.seen.state, State.WARNING if is_other else State.OK))

    @property
    def arguments(self) -> str:
        """Whether the process has the unit's arguments, in words."""
        return self.flags.summary if self.flags else "no process runs"

    @property
    def summary(self) -> str:
        """The verdict, and the arguments where they differ."""
        is_other = self.flags is not None and self.flags.state is not State.OK
        return f"{self.seen.summary}; {self.arguments}" if is_other else self.seen.summary


def look_at_unit(host: Host, unit: str) -> UnitLook:
    """How the unit is doing; raises UnknownName where systemd knows no such unit."""
    files = gather_unit_files(host, unit)
    survey = ask_survey(host, (unit,), is_units_only=True)
    if not survey.units:
        raise UnexpectedAnswer(survey.checks[0].summary, host=host.settings.alias)
    seen, hold = survey.units[0], gather_hold(host, unit)
    held = ", ".join(f"GPU {index}: {size / 2**30:.1f} GiB" for index, size in sorted(hold.held_bytes.items()))
    return UnitLook(
        seen=seen,
        flags=check_flags(host, files) if seen.status.is_running else None,
        gpu_memory=held or "none that nvidia-smi names",
        files=tuple(part.path for part in files.parts),
        container=files.container.words if files.container else "",
    )
