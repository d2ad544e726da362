"""`opslib survey`: one look over many hosts."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic

import click

from opslib.app.survey import chosen_aliases, survey_hosts
from opslib.cli.showing import show
from opslib.domain.states import worst
from opslib.domain.survey import HostSurvey
from opslib.views.survey import attention, checks_table, gpus_table, hosts_table, units_table


@click.command("survey")
@click.argument("hosts", nargs=-1, metavar="[HOST]...")
@click.option("--all", "is_all", is_flag=True, help="Every host of hosts.toml, and the rehearsal host.")
@click.option("-u", "--unit", "units", multiple=True, help="Look at this unit, not for engines; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def survey_command(hosts: tuple[str, ...], units: tuple[str, ...], *, is_all: bool, as_json: bool) -> int:
    """Look over hosts at once: units and what they really are, GPUs, disks, memory, journal, clock.

    Changes nothing. Without HOST: all of hosts.toml. The exit code is that of the worst host.
    """
    asked_at, start = datetime.now(UTC), monotonic()
    surveys = survey_hosts(chosen_aliases(hosts, is_all=is_all), units)
    duration_s = round(monotonic() - start, 3)
    if as_json:
        show(json.dumps(_document(surveys, asked_at, duration_s), ensure_ascii=False))
    else:
        _tell(surveys, duration_s)
    return worst(survey.state for survey in surveys).exit_code


def _document(surveys: Sequence[HostSurvey], asked_at: datetime, duration_s: float) -> dict[str, object]:
    state = worst(survey.state for survey in surveys)
    hosts = [survey.model_dump(mode="json") for survey in surveys]
    return {"state": state.value, "surveyed_at": asked_at.isoformat(), "duration_s": duration_s, "hosts": hosts}


def _tell(surveys: Sequence[HostSurvey], duration_s: float) -> None:
    """The whole of one host; of several a table, and what needs attention."""
    shown = [checks_table(surveys[0])] if len(surveys) == 1 else [hosts_table(surveys)]
    if any(survey.units for survey in surveys):
        shown.append(units_table(surveys))
    if len(surveys) == 1 and surveys[0].gpus:
        shown.append(gpus_table(surveys))
    show("\n\n".join([*(part.text for part in shown), attention(surveys).text]))
    show(f"\n{len(surveys)} host{'s' if len(surveys) > 1 else ''} in {duration_s:.1f} s", file=sys.stderr)
