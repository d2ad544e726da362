"""The sections of the runbooks; a notebook imports them from here."""

from opslib.app.form import parameter_form
from opslib.app.run import begin_run
from opslib.app.sections.benchmark import benchmark
from opslib.app.sections.canary import canary
from opslib.app.sections.compare import compare
from opslib.app.sections.crash import investigate, relaunch, remedy
from opslib.app.sections.install import confirm, install, plan_unit
from opslib.app.sections.launch import launch
from opslib.app.sections.memory import compare_parallel_sizes, memory_what_if, plan_memory
from opslib.app.sections.overall import identify, outcome
from opslib.app.sections.practice import prepare_crash, prepare_service
from opslib.app.sections.preflight import preflight
from opslib.app.sections.replacing import bring_back, replace
from opslib.app.sections.review import (
    compare_last,
    draft_incident,
    review,
    reviewed_frame,
    show_launch,
    show_timeline,
    told_frame,
)
from opslib.app.sections.second_opinion import second_opinion
from opslib.app.sections.unit import show_unit
from opslib.app.sections.verify import cost_of_certainty, proof, shards_by_state, verify_download

__all__ = [
    "begin_run",
    "benchmark",
    "bring_back",
    "canary",
    "compare",
    "compare_last",
    "compare_parallel_sizes",
    "confirm",
    "cost_of_certainty",
    "draft_incident",
    "identify",
    "install",
    "investigate",
    "launch",
    "memory_what_if",
    "outcome",
    "parameter_form",
    "plan_memory",
    "plan_unit",
    "preflight",
    "prepare_crash",
    "prepare_service",
    "proof",
    "relaunch",
    "remedy",
    "replace",
    "review",
    "reviewed_frame",
    "second_opinion",
    "shards_by_state",
    "show_launch",
    "show_timeline",
    "show_unit",
    "told_frame",
    "verify_download",
]
