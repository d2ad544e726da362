"""The planner's way out on the verdict card: from the unit's real flags, the checkpoint and the start's figures."""

from contextlib import suppress

from opslib.app.run import Run
from opslib.domain.diagnosis import Diagnosis
from opslib.domain.diagnosis_catalogue import Remedy
from opslib.domain.engine_figures import read_figures
from opslib.domain.memory_observed import observe_launch
from opslib.domain.repair import with_diff
from opslib.domain.share_remedy import propose_share_remedy
from opslib.domain.unit_file import UnitFile, parse_unit_file
from opslib.errors import OpslibError
from opslib.workflow.install import read_unit_text, unit_path
from opslib.workflow.investigate import Evidence
from opslib.workflow.plan import plan_for_host
from opslib.workflow.verify import verify_checkpoint


def with_memory_way_out(run: Run, diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """The verdict with the computed change before the general ones; itself where the planner can't tell."""
    if not diagnosis.cause.startswith("gpu-memory/"):
        return diagnosis
    with suppress(OpslibError, ValueError):
        if remedy := _computed(run, diagnosis.cause, evidence):
            return diagnosis.model_copy(update={"remedies": (remedy, *diagnosis.remedies)})
    return diagnosis


def _computed(run: Run, cause: str, evidence: Evidence) -> Remedy | None:
    unit_text = read_unit_text(run.host, evidence.unit) or ""
    unit = parse_unit_file(unit_text)
    words, gpus = unit.serve_arguments, _gpus(unit)
    if not words or not words[0].startswith("/") or not gpus:
        return None
    figures = read_figures(entry.message for entry in evidence.journal if entry.invocation_id == evidence.invocation_id)
    report = run.answers.get("checkpoint") or verify_checkpoint(run.host, words[0])
    plan = plan_for_host(run.host, report, words[1:], gpus=gpus, engine_version=figures.version)
    found = plan.remedy(cause, observe_launch(figures))
    if found is None:
        total = min(gpu.memory_usable_bytes for gpu in plan.gpus)
        found = propose_share_remedy(cause, plan.flags.gpu_memory_utilization, figures, gpu_total_bytes=total)
    if found is None:
        return None
    value = found.value or ""
    text = f"{f'{found.flag} {value}'.rstrip()}: {found.reason}"
    remedy = Remedy(text=text, flag=found.flag, value=value, cost=found.cost, check=found.check, computed_by="planner")
    return with_diff(remedy, unit_text, unit_path(run.host, evidence.unit))


def _gpus(unit: UnitFile) -> list[int]:
    """The GPUs that the unit's environment names, by index."""
    words = unit.environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return [int(word) for word in words if word.strip().isdecimal()]
