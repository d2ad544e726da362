"""What happened before?"""

from pathlib import Path
from typing import TYPE_CHECKING

from opslib.app.index import link_to
from opslib.app.reviewing import document_of, facts_of, records_frame, select_records
from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, section
from opslib.domain.states import State
from opslib.views.records import records_table

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "records reviewed, newest first"


@section("review")
def review(run: Run) -> Answer:
    """The records that match the parameters, newest first, each with a link; this run's own is left out."""
    wanted = run.parameters.model_dump()
    limit = wanted.pop("limit")
    own = str(run.folder.path)
    entries = [entry for entry in select_records(run.folder.path.parent, **wanted) if entry.folder != own][:limit]
    run.answers["records"] = entries
    base = run.folder.path if run.is_headless else None
    links = [link_to(document_of(entry), base) for entry in entries]
    shown = records_table([facts_of(entry) for entry in entries], links, nothing="no record matches")
    value = {"n_records": len(entries), "records": [Path(entry.folder).name for entry in entries]}
    return SectionResult(state=State.OK, summary=SUMMARY, value=value), shown


def reviewed_frame(run: Run) -> "pd.DataFrame":
    """The same records as a DataFrame, to filter, count and plot on."""
    return records_frame(run.answers.get("records", []))
