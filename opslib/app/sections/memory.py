"""Will it fit on these GPUs?"""

from collections.abc import Mapping
from typing import Any

from opslib.app.catalogue import default_runs_dir
from opslib.app.ledger import read_ledger
from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, section
from opslib.app.sections.verify import checkpoint_of
from opslib.app.wanted import flags_for
from opslib.domain.memory import MemoryPlan, plan_situation
from opslib.domain.memory_ledger import LedgerEntry, calibrate, calibration_note
from opslib.domain.parallel_table import parallel_table
from opslib.domain.states import State
from opslib.views.memory import alt_text, bar_of, memory_png
from opslib.views.memory_tables import LEDGER_COLUMNS, PARALLEL_COLUMNS, ledger_rows, memory_panel, parallel_rows
from opslib.views.panels import answer_panel
from opslib.views.shown import Shown
from opslib.workflow.plan import HostPlan, plan_for_host
from opslib.workflow.topology import HostGpus, gather_host_gpus, gather_room, room_notes

GIB = 2**30
# failures after the weights are loaded: predicted, not proven, and cured by a flag; a deploy goes on to see
PREDICTED_LATE = ("gpu-memory/sampler-warmup", "gpu-memory/cuda-graphs")
COLUMNS = ("term, GiB per GPU", "low", "expected", "high", "where it comes from")


@section("plan-memory")
def plan_memory(run: Run) -> Answer:
    """What the engine will do with each GPU's memory, term by term, and whether that fits."""
    plan = host_plan(run)
    memory = plan.memory
    found = _host_gpus(run)
    notes = [*_notes(memory), *_host_notes(run, plan, found)]
    value = {**memory.model_dump(mode="json"), "topology": _topology_value(plan, found)}
    cause = _cause(plan) if memory.state is State.CRITICAL else None
    is_gate = run.record.runbook == "90-deploy" and cause not in PREDICTED_LATE
    result = SectionResult(state=memory.state, summary=memory.summary, value=value, cause=cause, is_final=is_gate)
    rows = term_rows(memory)
    run.tell("table", "", section="plan-memory", columns=list(COLUMNS[:4]), rows=[row[:4] for row in rows])
    panel = answer_panel(run.alias, memory.state, memory.summary, rows=rows, columns=COLUMNS, notes=notes)
    return result, _with_figure(panel, plan)


@section("compare-parallel-sizes")
def compare_parallel_sizes(run: Run) -> Answer:
    """What each tensor- and pipeline-parallel size gives, and what earlier launches here did against their plan."""
    plan = host_plan(run)
    situation = plan.situation
    if situation is None:
        summary = "the engine runs on the CPU: nothing to spread"
        return SectionResult(state=State.OK, summary=summary), answer_panel(run.alias, State.OK, summary)
    table = parallel_table(situation, max(len(plan.gpus), situation.flags.n_gpus))
    fitting = [row for row in table if row.verdict == "fits"]
    summary = "no size fits surely with these flags"
    if fitting:
        sizes = f"{fitting[0].tensor_parallel_size} x {fitting[0].pipeline_parallel_size}"
        summary = f"fewest GPUs: tensor x pipeline {sizes}"
    entries = read_ledger(default_runs_dir(), run.alias)
    value = {
        "parallel_table": [row.model_dump() for row in table],
        "ledger": [entry.model_dump() for entry in entries],
    }
    extra = [("earlier launches here", LEDGER_COLUMNS, ledger_rows(entries))] if entries else []
    panel = memory_panel(run.alias, State.OK, summary, [("", PARALLEL_COLUMNS, parallel_rows(table)), *extra])
    return SectionResult(state=State.OK, summary=summary, value=value), panel


def memory_what_if(run: Run) -> Shown:
    """Sliders that ask the planner again; headless, or without GPUs, nothing is shown."""
    plan = run.answers.get("host_plan")
    if run.is_headless or not isinstance(plan, HostPlan) or (situation := plan.situation) is None:
        return Shown.nothing()
    from opslib.views.memory_whatif import CHOICES, WhatIf  # noqa: PLC0415 - widgets only where somebody looks

    def asked(values: Mapping[str, Any]) -> MemoryPlan:
        changed = situation
        for flag, value in values.items():
            if changed.flags.value(flag) != value:
                changed = changed.with_flag(flag, value)
        return plan_situation(changed)

    start = {flag: situation.flags.value(flag) for flag in CHOICES} | {"--max-model-len": situation.model_len}
    start["--tensor-parallel-size"] = situation.flags.tensor_parallel_size
    WhatIf(run.alias, asked, start, len(plan.gpus)).show()
    return Shown.nothing()


def _cause(plan: HostPlan) -> str | None:
    """What would stop the launch; a flag that the engine doesn't know does so before any memory is asked for."""
    is_refused = any(finding.state is State.CRITICAL for finding in plan.flags.findings)
    return "configuration/bad-argument" if is_refused else plan.memory.cause


def host_plan(run: Run) -> HostPlan:
    """The memory plan of this run's parameters; made once, calibrated by what earlier launches here did."""
    if "host_plan" not in run.answers:
        flags = serve_flags(run)
        entries = () if run.host.settings.is_rehearsal else read_ledger(default_runs_dir(), run.alias)
        learnt = calibrate(entries, model=run.parameters.model, max_num_seqs=run.parameters.max_num_seqs)
        environment = {**run.host.settings.environment, **getattr(run.parameters, "environment", {})}
        plan = plan_for_host(
            run.host,
            checkpoint_of(run),
            flags,
            gpus=run.parameters.gpus,
            engine_version=run.parameters.engine_version,
            calibration=learnt,
            environment=environment,
            free_gib=_host_gpus(run).free_beside(run.parameters.gpus, _own_units(run)),
        )
        run.answers["host_plan"], run.answers["ledger"] = plan, entries
    known: HostPlan = run.answers["host_plan"]
    return known


def _host_gpus(run: Run) -> HostGpus:
    """The host's GPUs and who is on them; asked once."""
    if "host_gpus" not in run.answers:
        run.answers["host_gpus"] = gather_host_gpus(run.host) if run.parameters.gpus else HostGpus()
    known: HostGpus = run.answers["host_gpus"]
    return known


def _own_units(run: Run) -> tuple[str, ...]:
    """The units that don't run beside the planned one: itself, and the one that it replaces."""
    return (run.parameters.unit, getattr(run.parameters, "replaces", None) or "")


def serve_flags(run: Run) -> list[str]:
    """The `vllm serve` flags that the run's parameters ask for, in the order of the unit file."""
    return flags_for(run.parameters)


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


def _with_figure(panel: Shown, plan: HostPlan) -> Shown:
    if not plan.memory.terms:
        return panel
    stages = plan.memory.weights_by_stage_bytes
    bars = []
    for rank, gpu in enumerate(plan.gpus[: plan.memory.n_gpus]):
        stage = min(rank // max(1, plan.flags.tensor_parallel_size), len(stages) - 1)
        weights = stages[stage] / GIB if len(stages) > 1 else None
        others = gpu.memory_used_bytes / GIB
        bars.append(bar_of(plan.memory, f"GPU {gpu.index}", others_gib=others, weights_gib=weights))
    if not bars:
        return panel
    return Shown(panel.html, f"{panel.text}\n{alt_text(bars)}", png=memory_png(bars))


def _topology_value(plan: HostPlan, found: HostGpus) -> dict[str, object]:
    indices = [gpu.index for gpu in plan.gpus]
    return {
        "gpus": indices,
        "wiring": found.wiring_of(indices) if indices else "",
        "proposed_gpus": list(_proposed(plan, found)),
        "holders": [holder.model_dump() for holder in found.holders],
    }


def _proposed(plan: HostPlan, found: HostGpus) -> tuple[int, ...]:
    return found.propose(plan.memory.n_gpus, round(plan.required_free_gib * GIB))


def _host_notes(run: Run, plan: HostPlan, found: HostGpus) -> list[str]:
    """Wiring, who holds memory, what the host lacks, and what earlier launches taught."""
    if not plan.gpus:
        return []
    indices = [gpu.index for gpu in plan.gpus]
    notes = [f"GPUs {', '.join(map(str, indices))}: {found.wiring_of(indices)}"]
    proposed = _proposed(plan, found)
    apart = found.topology.nodes_of(indices)
    words = ", ".join(map(str, proposed))
    near = found.topology.nodes_of(proposed)
    if proposed and len(apart) > len(near):
        notes.append(f"GPUs {words} lie on {len(near)} NUMA node(s), these on {len(apart)}")
    held = {holder.gpu_index for holder in found.holders}
    if held & set(indices) and not held & set(proposed):
        notes.append(f"GPUs {words} are free")
    notes += found.beside(indices, _own_units(run))
    notes += [holder.sentence for holder in found.holders if holder.gpu_index in indices]
    room = gather_room(run.host, run.host.settings.state_dir.rpartition("/")[0] or "/")
    notes += room_notes(room, n_ranks=plan.memory.n_gpus, offloaded_bytes=_offloaded(plan))
    entries: tuple[LedgerEntry, ...] = run.answers.get("ledger", ())
    return [*notes, calibration_note(plan.calibration, entries)] if plan.calibration else notes


def _offloaded(plan: HostPlan) -> float:
    return float(plan.flags.value("--cpu-offload-gb") or 0) * GIB * plan.memory.n_gpus


def _notes(memory: MemoryPlan) -> list[str]:
    notes = list(memory.notes)
    if memory.kv_cache_tokens and memory.max_concurrency:
        length = f"{memory.max_model_len:,}" if memory.max_model_len else "max_model_len"
        cache = f"KV cache for about {memory.kv_cache_tokens:,} tokens"
        notes.insert(0, f"{cache}: {memory.max_concurrency:.1f} requests of {length} tokens at once")
    return notes
