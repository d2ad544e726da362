"""`opslib investigate`: why a unit on a host failed, with its evidence kept in a record."""

import json
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import click

from opslib.app.catalogue import default_runs_dir
from opslib.app.investigating import Investigated, investigate_host
from opslib.cli.options import json_option, runs_dir_option
from opslib.cli.showing import show
from opslib.domain.states import State
from opslib.domain.survey import EngineUnit
from opslib.views.diagnosis import verdict_text


@click.command("investigate")
@click.argument("host")
@click.argument("unit", required=False)
@click.option(
    "--invocation",
    default="-1",
    show_default=True,
    help='Which start: "-1" the one that failed, "0" the current one, an id.',
)
@click.option("--ticket", default="", help="The ticket that this belongs to, as INC-4711; it stands in the record.")
@runs_dir_option("Where the record goes")
@json_option
def investigate_command(
    host: str, unit: str | None, invocation: str, ticket: str, runs_dir: Path | None, *, as_json: bool
) -> int:
    """Say why UNIT on HOST failed; without UNIT: the failed, restarting and restarted engine units.

    Changes nothing; the evidence is kept in a record. Exit code 0: nothing is wrong; 2: a cause was found; 3: unknown.
    """
    asked_at, start = datetime.now(UTC), monotonic()
    place = runs_dir or default_runs_dir()
    found, seen = investigate_host(host, unit, invocation=invocation, ticket=ticket, runs_dir=place)
    if as_json:
        document = {
            "host": host,
            "investigated_at": asked_at.isoformat(),
            "duration_s": round(monotonic() - start, 3),
            "verdicts": [_document(entry) for entry in found],
            "units": {entry.unit: entry.summary for entry in seen},
        }
        show(json.dumps(document, ensure_ascii=False))
    else:
        _tell(host, found, seen)
    return found[0].card.diagnosis.exit_code if found else State.OK.exit_code


def _document(entry: Investigated) -> dict[str, object]:
    card = entry.card.model_dump(mode="json", exclude={"diagnosis": {"captured"}})
    return {
        "unit": entry.unit,
        **card.pop("diagnosis"),
        **card,
        "record": str(entry.folder),
        "now": entry.now,
        "next": entry.next_command,
    }


def _tell(host: str, found: tuple[Investigated, ...], seen: tuple[EngineUnit, ...]) -> None:
    """The verdict card of each unit, the most urgent first, its record and what comes next."""
    if not found:
        show(f"no unit of {host} failed or was restarted: {'; '.join(unit.summary for unit in seen)}")
    for entry in found:
        show(f"{verdict_text(f'{host}, {entry.unit}', entry.card)}\n\nrecord  {entry.folder}")
        if entry.now:
            show(f"now     {entry.now}")
        if entry.next_command:
            show(f"next    {entry.next_command}")
        show()
