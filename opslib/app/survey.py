"""Which hosts are meant, and a survey of each of them at once, with what the records know of each."""

from collections.abc import Callable, Sequence
from functools import partial

from opslib.app.binding import REHEARSAL, check_alias, is_rehearsal_alias
from opslib.app.catalogue import default_runs_dir
from opslib.app.many import Unasked, ask_hosts
from opslib.domain.host import Host
from opslib.domain.parameter_parts import ALL_HOSTS
from opslib.domain.problems import neither_host_nor_label
from opslib.domain.survey import HostSurvey, unreached
from opslib.errors import Refused, UnknownName
from opslib.hosts.inventory import Inventory, load_inventory
from opslib.records.latest import latest_runs
from opslib.workflow.survey import survey_host

OnSurvey = Callable[[HostSurvey], None]


def known_aliases() -> tuple[str, ...]:
    """Every host that can be named: those of the inventory, and the rehearsal host."""
    return (*load_inventory().hosts, REHEARSAL)


def chosen_aliases(given: Sequence[str], *, is_all: bool = False) -> tuple[str, ...]:
    """The hosts to look over: those given, with `is_all` all; without either the inventory's, else the rehearsal host.

    A label stands for every host that has it, `all` for every host of hosts.toml. Raises UnknownName, with the nearest
    name, or BadParameter for a hosts.toml that can't be read, before any host is contacted.
    """
    given = _spelt_out(given)
    for alias in given:
        check_alias(alias)
    if is_all:
        return tuple(dict.fromkeys([*given, *known_aliases()]))
    return tuple(dict.fromkeys(given)) or tuple(_all_hosts(load_inventory())) or (REHEARSAL,)


def standing_in(given: Sequence[str]) -> str:
    """Says so where nobody named a host and the rehearsal host is looked at for want of a hosts.toml, else "".

    Without it a timer in the wrong directory would be told that all is well.
    """
    if given or load_inventory().path is not None:
        return ""
    return f"no hosts.toml was found: this is the {REHEARSAL} host, a practice machine, and none of yours"


def _all_hosts(inventory: Inventory) -> Sequence[str]:
    """Every host of the inventory, none where there is no file; a file that names none is refused, as `all` is."""
    if inventory.path is not None and not inventory.hosts:
        raise UnknownName(f"{inventory.path} names no host", hint="write [hosts.ALIAS] and an address into it")
    return tuple(inventory.hosts)


def _spelt_out(given: Sequence[str]) -> Sequence[str]:
    """The aliases that the words stand for; an alias goes before a label of the same name."""
    if all(is_rehearsal_alias(word) for word in given):  # whatever hosts.toml is like
        return given
    inventory = load_inventory()
    if ALL_HOSTS in given and not inventory.hosts:
        where = "no hosts.toml was found" if inventory.path is None else f"{inventory.path} names no host"
        raise UnknownName(f"{ALL_HOSTS!r} means no host: {where}", hint="write [hosts.ALIAS] and an address into it")
    return [alias for word in given for alias in _meant(word, inventory)]


def _meant(word: str, inventory: Inventory) -> Sequence[str]:
    if word == ALL_HOSTS:
        return tuple(inventory.hosts)
    if word in inventory.hosts or is_rehearsal_alias(word) or inventory.path is None:
        return (word,)
    if labelled := [alias for alias, settings in inventory.hosts.items() if word in settings.labels]:
        return labelled
    labels = {label for settings in inventory.hosts.values() for label in settings.labels}
    raise UnknownName(neither_host_nor_label(word, inventory.hosts, labels, inventory.path))


def survey_hosts(
    aliases: Sequence[str], units: Sequence[str] = (), *, on_survey: OnSurvey = lambda _survey: None
) -> tuple[HostSurvey, ...]:
    """A survey of each host, in the order of `aliases`; `on_survey` gets each as it comes, from its own thread.

    Each has the last deploy and the last benchmark that this controller's records know of.
    """
    wanted = tuple(dict.fromkeys(aliases))
    surveys = ask_hosts(
        wanted, partial(_survey, units=units, on_survey=on_survey), partial(_unasked, on_survey=on_survey)
    )
    latest = latest_runs(default_runs_dir(), wanted)
    return tuple(
        survey.model_copy(
            update={"last_deploy": latest[survey.host].deploy, "last_benchmark": latest[survey.host].benchmark}
        )
        for survey in surveys
    )


def _survey(host: Host, *, units: Sequence[str], on_survey: OnSurvey) -> HostSurvey:
    survey = survey_host(host, units)
    on_survey(survey)
    return survey


def _unasked(why: Unasked, *, on_survey: OnSurvey) -> HostSurvey:
    survey = unreached(
        why.alias,
        why.error.message,
        why.error.hint,
        surveyed_at=why.ended_at,
        duration_s=round((why.ended_at - why.began_at).total_seconds(), 3),
        is_refused=isinstance(why.error, Refused),
    )
    on_survey(survey)
    return survey
