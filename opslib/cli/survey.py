"""`opslib survey`: one look over many hosts."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic

import click

from opslib.app.survey import chosen_aliases, standing_in, survey_hosts
from opslib.cli.options import json_option
from opslib.cli.showing import show
from opslib.domain.states import worst
from opslib.domain.survey import HostSurvey
from opslib.views.survey import attention, one_host, units_table
from opslib.views.survey_matrix import hosts_table


@click.command("survey")
@click.argument("hosts", nargs=-1, metavar="[HOST]...")
@click.option("--all", "is_all", is_flag=True, help="Every host of hosts.toml, and the rehearsal host.")
@click.option("-u", "--unit", "units", multiple=True, help="Look at this unit, not for engines; may be repeated.")
@json_option
def survey_command(hosts: tuple[str, ...], units: tuple[str, ...], *, is_all: bool, as_json: bool) -> int:
    """Look over hosts at once: units and what they really are, GPUs, disks, memory, journal, clock.

    HOST is an alias or a label. Several hosts are a row each; one is told in full. Changes nothing. Without HOST: all
    of hosts.toml; where there is none the rehearsal host, and it says so. The exit code is that of the worst host:
    0 ok, 1 warning, 2 critical, 3 could not find out.
    """
    asked_at, start = datetime.now(UTC), monotonic()
    if said := "" if is_all else standing_in(hosts):
        show(said, file=sys.stderr)
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
    """The whole of one host; of several a row each, and what needs attention."""
    if len(surveys) == 1:
        show(one_host(surveys[0]))
    else:
        has_more = any(len(survey.units) > 1 for survey in surveys)
        shown = [hosts_table(surveys), *([units_table(surveys)] if has_more else []), attention(surveys)]
        show("\n\n".join(part.text for part in shown))
    show(f"\n{len(surveys)} host{'s' if len(surveys) > 1 else ''} in {duration_s:.1f} s", file=sys.stderr)
