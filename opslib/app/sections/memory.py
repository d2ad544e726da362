"""Will it fit on these GPUs?"""

from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, section
from opslib.domain.checkpoint import CheckpointReport
from opslib.domain.memory import MemoryPlan
from opslib.domain.states import State
from opslib.views.panels import answer_panel
from opslib.workflow.plan import HostPlan, plan_for_host
from opslib.workflow.verify import checkpoint_path, verify_checkpoint

GIB = 2**30
# failures after the weights are loaded: predicted, not proven, and cured by a flag; a deploy goes on to see
PREDICTED_LATE = ("gpu-memory/sampler-warmup", "gpu-memory/cuda-graphs")
COLUMNS = ("term, GiB per GPU", "low", "expected", "high", "where it comes from")


@section("plan-memory")
def plan_memory(run: Run) -> Answer:
    """What the engine will do with each GPU's memory, term by term, and whether that fits."""
    plan = host_plan(run)
    memory = plan.memory
    notes = _notes(memory)
    value = memory.model_dump(mode="json")
    cause = _cause(plan) if memory.state is State.CRITICAL else None
    is_gate = run.record.runbook != "90-deploy" or cause not in PREDICTED_LATE
    result = SectionResult(state=memory.state, summary=memory.summary, value=value, cause=cause, is_final=is_gate)
    rows = term_rows(memory)
    run.tell("table", "", section="plan-memory", columns=list(COLUMNS[:4]), rows=[row[:4] for row in rows])
    return result, answer_panel(run.alias, memory.state, memory.summary, rows=rows, columns=COLUMNS, notes=notes)


def _cause(plan: HostPlan) -> str | None:
    """What would stop the launch; a flag that the engine doesn't know does so before any memory is asked for."""
    is_refused = any(finding.state is State.CRITICAL for finding in plan.flags.findings)
    return "configuration/bad-argument" if is_refused else plan.memory.cause


def host_plan(run: Run) -> HostPlan:
    """The memory plan of this run's parameters; made once."""
    if "host_plan" not in run.answers:
        plan = plan_for_host(
            run.host,
            _checkpoint(run),
            serve_flags(run),
            gpus=run.parameters.gpus,
            engine_version=run.parameters.engine_version,
        )
        run.answers["host_plan"] = plan
    known: HostPlan = run.answers["host_plan"]
    return known


def serve_flags(run: Run) -> list[str]:
    """The `vllm serve` flags that the parameters ask for, in the order of the unit file."""
    parameters = run.parameters
    flags = {
        "--port": getattr(parameters, "port", None),
        "--served-model-name": getattr(parameters, "client_model_name", None),
        "--tensor-parallel-size": parameters.tensor_parallel_size,
        "--gpu-memory-utilization": parameters.gpu_memory_utilization if parameters.gpus else None,
        "--max-model-len": parameters.max_model_len,
        "--max-num-seqs": parameters.max_num_seqs,
    }
    words = [word for name, value in flags.items() if value is not None for word in (name, str(value))]
    return [*words, *parameters.extra_args]


def term_rows(memory: MemoryPlan) -> list[tuple[str, str, str, str, str]]:
    """The plan's terms as rows of COLUMNS."""
    return [
        (
            term.name,
            f"{term.low_bytes / GIB:.2f}",
            f"{term.expected_bytes / GIB:.2f}",
            f"{term.high_bytes / GIB:.2f}",
            term.source,
        )
        for term in memory.terms
    ]


def _notes(memory: MemoryPlan) -> list[str]:
    notes = list(memory.notes)
    if memory.kv_cache_tokens and memory.max_concurrency:
        length = f"{memory.max_model_len:,}" if memory.max_model_len else "max_model_len"
        cache = f"KV cache for about {memory.kv_cache_tokens:,} tokens"
        notes.insert(0, f"{cache}: {memory.max_concurrency:.1f} requests of {length} tokens at once")
    return notes


def _checkpoint(run: Run) -> CheckpointReport:
    if "checkpoint" not in run.answers:
        run.answers["checkpoint"] = verify_checkpoint(run.host, checkpoint_path(run.host, run.parameters.model))
    report: CheckpointReport = run.answers["checkpoint"]
    return report
