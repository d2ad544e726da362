"""One look at a host before a launch: what was wanted, what was read, and the values that several checks need."""

from contextlib import suppress
from datetime import datetime

from opslib.domain.facts.gpu import Gpu
from opslib.domain.facts.gpu_health import DriverHealth, parse_gpu_health
from opslib.domain.preflight_reading import PreflightReading, Wanted
from opslib.domain.states import State, Value
from opslib.domain.survey import Clock, GpuHolder, SurveyCheck
from opslib.domain.survey_checks import measure_clock
from opslib.domain.survey_gpus import judge_gpus
from opslib.errors import UnexpectedAnswer

GIB = 2**30


class PreflightCheck(SurveyCheck):
    """One check of a preflight; `cause` is what the failure catalogue would call a launch that went on."""

    cause: str = ""


class Look(Value):
    """What the checks are asked about."""

    host: str
    wanted: Wanted
    reading: PreflightReading
    gpus: tuple[Gpu, ...] = ()
    holders: tuple[GpuHolder, ...] = ()
    gpu_check: SurveyCheck  # the survey's own
    health: DriverHealth | None = None
    clock: Clock
    is_rehearsal: bool = False
    is_user_scope: bool = False

    @property
    def chosen(self) -> tuple[Gpu, ...]:
        """The GPUs that the engine is to run on, as far as they are there."""
        return tuple(gpu for gpu in self.gpus if gpu.index in self.wanted.gpus)

    @property
    def own_units(self) -> frozenset[str]:
        """Names of the units that give back what they hold before the start."""
        names = (self.wanted.unit, *self.wanted.own_units)
        return frozenset(name.removesuffix(".service") for name in names if name)


def look_at(
    reading: PreflightReading,
    wanted: Wanted,
    *,
    host: str,
    received_at: datetime,
    duration_s: float,
    is_rehearsal: bool = False,
    is_user_scope: bool = False,
) -> Look:
    """A reading, received at `received_at` after `duration_s` (controller's clock), with what several checks need."""
    gpus, holders, gpu_check = judge_gpus(reading.survey)
    return Look(
        host=host,
        wanted=wanted,
        reading=reading,
        gpus=gpus,
        holders=holders,
        gpu_check=gpu_check,
        health=_health(reading),
        clock=measure_clock(reading.survey, received_at=received_at, duration_s=duration_s),
        is_rehearsal=is_rehearsal,
        is_user_scope=is_user_scope,
    )


def _health(reading: PreflightReading) -> DriverHealth | None:
    answer = reading.survey.answer("gpu_detail")
    if answer.exit_status != 0:
        return None
    with suppress(UnexpectedAnswer):
        return parse_gpu_health(answer.text)
    return None


def ok(summary: str, *evidence: str) -> PreflightCheck:
    """Good, or not applicable: the sentence says which."""
    return PreflightCheck(name="", state=State.OK, summary=summary, evidence=evidence)


def unknown(summary: str, next_step: str = "") -> PreflightCheck:
    """It could not be found out."""
    return PreflightCheck(name="", state=State.UNKNOWN, summary=summary, next_step=next_step)


def warning(summary: str, next_step: str, *evidence: str, cause: str = "") -> PreflightCheck:
    """It may go wrong, or be worse than it could be."""
    return PreflightCheck(
        name="", state=State.WARNING, summary=summary, next_step=next_step, evidence=evidence, cause=cause
    )


def critical(summary: str, next_step: str, *evidence: str, cause: str = "") -> PreflightCheck:
    """The launch would fail."""
    return PreflightCheck(
        name="", state=State.CRITICAL, summary=summary, next_step=next_step, evidence=evidence, cause=cause
    )
