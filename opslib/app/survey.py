"""Many hosts at once: each surveyed in a thread of its own, the answers in the order asked for."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

from opslib.app.binding import REHEARSAL, check_alias, open_bound_host
from opslib.domain.parameters import ALL_HOSTS
from opslib.domain.survey import HostSurvey, unreached
from opslib.errors import OpslibError, Refused, UnknownName
from opslib.hosts.inventory import load_inventory
from opslib.workflow.survey import survey_host

MAX_THREADS = 32

OnSurvey = Callable[[HostSurvey], None]


def known_aliases() -> tuple[str, ...]:
    """Every host that can be named: those of the inventory, and the rehearsal host."""
    return (*load_inventory().hosts, REHEARSAL)


def chosen_aliases(given: Sequence[str], *, is_all: bool = False) -> tuple[str, ...]:
    """The hosts to look over: those given, with `is_all` all; without either the inventory's, else the rehearsal host.

    `all` among those given stands for every host of hosts.toml. Raises UnknownName, with the nearest name, or
    BadParameter for a hosts.toml that can't be read, before any host is contacted.
    """
    given = _spelt_out(given)
    for alias in given:
        check_alias(alias)
    if is_all:
        return tuple(dict.fromkeys([*given, *known_aliases()]))
    return tuple(dict.fromkeys(given)) or tuple(load_inventory().hosts) or (REHEARSAL,)


def _spelt_out(given: Sequence[str]) -> Sequence[str]:
    if ALL_HOSTS not in given:
        return given
    inventory = load_inventory()
    if not inventory.hosts:
        where = "no hosts.toml was found" if inventory.path is None else f"{inventory.path} names no host"
        raise UnknownName(f"{ALL_HOSTS!r} means no host: {where}", hint="write [hosts.ALIAS] and an address into it")
    return [name for alias in given for name in (inventory.hosts if alias == ALL_HOSTS else (alias,))]


def survey_hosts(
    aliases: Sequence[str], units: Sequence[str] = (), *, on_survey: OnSurvey = lambda _survey: None
) -> tuple[HostSurvey, ...]:
    """A survey of each host, in the order of `aliases`; `on_survey` gets each as it comes, from its own thread."""
    wanted = tuple(dict.fromkeys(aliases))
    if not wanted:
        return ()
    with ThreadPoolExecutor(max_workers=min(MAX_THREADS, len(wanted)), thread_name_prefix="survey") as pool:
        return tuple(pool.map(partial(_survey, units=units, on_survey=on_survey), wanted))


def _survey(alias: str, *, units: Sequence[str], on_survey: OnSurvey) -> HostSurvey:
    began_at = datetime.now(UTC)
    try:
        host = open_bound_host(alias)
    except OpslibError as error:
        now = datetime.now(UTC)
        is_refused = isinstance(error, Refused)
        duration_s = (now - began_at).total_seconds()
        survey = unreached(
            alias, error.message, error.hint, surveyed_at=now, duration_s=duration_s, is_refused=is_refused
        )
    else:
        try:
            survey = survey_host(host, units)
        finally:
            host.close()
    on_survey(survey)
    return survey
