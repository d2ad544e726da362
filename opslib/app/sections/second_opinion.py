"""Does another client find the same?"""

import asyncio
from typing import Any

from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, waiting_section
from opslib.domain.benchmark import BenchmarkReport
from opslib.domain.canary import CanaryReport
from opslib.domain.states import State
from opslib.errors import OpslibError
from opslib.views.benchmark_clients import clients_panel
from opslib.views.panels import answer_panel
from opslib.workflow.bench_client import run_client
from opslib.workflow.verify import checkpoint_path


@waiting_section("second-opinion")
async def second_opinion(run: Run) -> Answer:
    """The same levels measured by another client of the host, in one table with ours; nothing where none is asked."""
    client = run.parameters.second_client
    ours: BenchmarkReport | None = run.answers.get("benchmark")
    if client == "none" or ours is None:
        summary = "no other client was asked (second_client)"
        return SectionResult(state=State.OK, summary=summary), answer_panel(run.alias, State.OK, summary)
    try:
        theirs = await asyncio.to_thread(_measure, run, client)
    except OpslibError as error:  # ours stands without it
        summary = f"no second opinion: {error.message}"
        notes = [f"Next: {error.hint}"] if error.hint else []
        shown = answer_panel(run.alias, State.WARNING, summary, notes=notes)
        return SectionResult(state=State.WARNING, summary=summary), shown
    run.answers["second-opinion"] = theirs
    result = SectionResult(state=State.OK, summary=theirs.summary, value=theirs.model_dump(mode="json"))
    return result, clients_panel(run.alias, {"opslib": ours, client: theirs})


def _measure(run: Run, client: Any) -> BenchmarkReport:
    parameters = run.parameters
    canary: CanaryReport | None = run.answers.get("canary")
    return run_client(
        run.host,
        client,
        port=parameters.port,
        model=canary.fingerprint.model if canary else parameters.client_model_name,
        root=checkpoint_path(run.host, parameters.model),
        levels=parameters.concurrency_levels,
        requests_per_stream=parameters.requests_per_stream * parameters.benchmark_repeats,
        input_tokens=parameters.input_tokens,
        output_tokens=parameters.output_tokens,
        deadline_s=parameters.benchmark_deadline_s,
        on_level=lambda level: run.tell(
            "progress", f"{client}: {level.name}: {level.output_throughput:,.0f} tokens/s", section="second-opinion"
        ),
    )
