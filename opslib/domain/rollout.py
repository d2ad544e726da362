"""A rollout as values: which hosts in which order and waves, and each thing that happened to one of them."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal

from pydantic import AwareDatetime, Field

from opslib.domain.host import HostSettings
from opslib.domain.parameter_parts import ALL_HOSTS
from opslib.domain.problems import neither_host_nor_label
from opslib.domain.states import State, Value
from opslib.errors import BadParameter, UnknownName

CANARY_WAVE = 0


class HostStep(StrEnum):
    """Where a host stands in a rollout."""

    UNTOUCHED = "untouched"  # nothing was done to it
    WAITING = "waiting"  # its turn has come, and something has to come first
    DRAINING = "draining"  # its unit works off its requests and is stopped
    RUNNING = "running"  # its run has begun
    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"  # how it ended, or how it stands, could not be found out
    UNDONE = "undone"  # it is as the rollout found it


UNDER_WAY = (HostStep.WAITING, HostStep.DRAINING, HostStep.RUNNING)
BAD = (HostStep.FAILED, HostStep.UNKNOWN)


class RolloutPlan(Value):
    """What is rolled out over which hosts, and how carefully."""

    runbook: str
    unit: str
    hosts: tuple[str, ...]  # aliases, in the order of their turns
    asked: tuple[str, ...] = ()  # the labels and aliases that chose them
    parameters: Mapping[str, Any] = {}  # of the runbook, without the host
    canary: int = Field(1, ge=0)  # hosts that go first, alone
    wave: str = "25%"  # hosts at a time after them: a number, or a share of all hosts
    max_failures: int = Field(0, ge=0)  # failed hosts after which it still goes on; a canary never may
    pause_s: int = Field(0, ge=0)  # between two waves
    min_serving: int = Field(0, ge=0)  # units that must serve whatever is taken down
    workers: int = Field(4, ge=1, le=64)  # runs at once
    drain_s: int = Field(300, ge=0)  # seconds that a unit gets to work off its requests
    is_drain_forced: bool = False  # after that it is stopped all the same
    is_write: bool = True  # the runbook changes its host
    user: str = ""
    controller: str = ""
    begun_at: AwareDatetime


class UnitFound(Value):
    """A unit on its host at one moment: the digests of its files, and whether it was up and served."""

    files: Mapping[str, str | None] = {}  # path -> sha256, None where there was none
    is_up: bool = False
    is_serving: bool = False
    invocation_id: str = ""
    boot_id: str = ""
    replaced_is_up: bool = False  # the unit whose place it takes

    @property
    def words(self) -> str:
        """How it stands, in a few words that follow "it"."""
        if self.is_up:
            return "serves" if self.is_serving else "is up and does not serve"
        return "is installed and not running" if any(self.files.values()) else "is not installed"


class RolloutEvent(Value):
    """One line of a rollout's state: the whole state is folded from them."""

    at: AwareDatetime
    kind: Literal["begun", "host", "wave", "asked", "note", "ended", "undo-begun", "undo-ended"]
    host: str = ""
    step: HostStep | None = None
    wave: int | None = None
    state: State | None = None
    text: str = ""
    record: str = ""  # name of the folder of the host's own run
    process_id: int | None = None  # of the rollout ("begun"), of a host's run ("host")
    found: UnitFound | None = None  # before anything was done there
    left: UnitFound | None = None  # after its run
    is_due: bool | None = None  # it will have its turn (again)


def wave_size(wave: str, n_hosts: int) -> int:
    """How many hosts a wave has: a number, or a share of all hosts, rounded up; raises BadParameter.

    >>> wave_size("25%", 8), wave_size("25%", 3), wave_size("2", 8)
    (2, 1, 2)
    """
    found = re.fullmatch(r"([0-9]{1,4})(%?)", wave.strip())
    if not found:
        raise BadParameter(f"--wave {wave}: expected a number of hosts such as 2, or a share such as 25%")
    number, is_share = int(found[1]), bool(found[2])
    if number < 1 or (is_share and number > 100):
        raise BadParameter(f"--wave {wave}: expected {'a share from 1% to 100%' if is_share else 'at least one host'}")
    return -(-n_hosts * number // 100) if is_share else number


def waves(plan: RolloutPlan) -> tuple[tuple[str, ...], ...]:
    """The hosts in the groups in which they have their turn: the canary first (empty without one), then the waves.

    >>> from datetime import UTC, datetime
    >>> plan = RolloutPlan(runbook="r", unit="u", hosts=tuple("abcde"), wave="2", begun_at=datetime.now(UTC))
    >>> waves(plan)
    (('a',), ('b', 'c'), ('d', 'e'))
    """
    size, rest = wave_size(plan.wave, len(plan.hosts)), plan.hosts[plan.canary :]
    return (plan.hosts[: plan.canary], *(rest[at : at + size] for at in range(0, len(rest), size)))


def wave_words(number: int, n_waves: int) -> str:
    """The name of a wave, counted from the canary (0); `n_waves` with it.

    >>> wave_words(0, 4), wave_words(2, 4)
    ('canary', 'wave 2 of 3')
    """
    return "canary" if number == CANARY_WAVE else f"wave {number} of {n_waves - 1}"


def check_plan(plan: RolloutPlan) -> RolloutPlan:
    """The plan, where it can be carried out; raises BadParameter with one line per problem."""
    n_hosts, problems = len(plan.hosts), []
    if plan.canary > n_hosts:
        problems.append(f"--canary {plan.canary}: there are only {n_hosts} hosts")
    if plan.min_serving >= n_hosts and plan.is_write:
        problems.append(f"--min-serving {plan.min_serving}: of {n_hosts} hosts none could ever be taken down")
    if plan.max_failures >= n_hosts:
        problems.append(f"--max-failures {plan.max_failures}: there are only {n_hosts} hosts, so nothing would stop it")
    try:
        wave_size(plan.wave, n_hosts)
    except BadParameter as error:
        problems.append(error.message)
    if problems:
        raise BadParameter("\n".join(problems))
    return plan


def choose_hosts(asked: Sequence[str], inventory: Mapping[str, HostSettings], where: str) -> tuple[str, ...]:
    """The aliases that the words mean: aliases as they come, those of a label in the inventory's order, `all`.

    `where` names the inventory. Raises UnknownName for a word that is neither, BadParameter for a host given twice.
    """
    labels = {label for settings in inventory.values() for label in settings.labels}
    chosen: dict[str, str] = {}  # alias -> the word that chose it
    for word in asked:
        if word in inventory:
            if chosen.get(word) == word:
                raise BadParameter(f"--hosts: {word} is given twice")
            chosen[word] = word
            continue
        if word != ALL_HOSTS and word not in labels:
            raise UnknownName(f"--hosts: {neither_host_nor_label(word, inventory, labels, where)}")
        for alias, settings in inventory.items():
            if word == ALL_HOSTS or word in settings.labels:
                chosen.setdefault(alias, word)
    if not inventory and asked:
        raise UnknownName(f"--hosts: {where} names no host", hint="write [hosts.ALIAS] and an address into it")
    if not chosen:
        raise BadParameter("--hosts: give aliases or labels of hosts.toml, or all")
    _refuse_twins({alias: inventory[alias] for alias in chosen})
    return tuple(chosen)


def _refuse_twins(chosen: Mapping[str, HostSettings]) -> None:
    """One machine under two aliases would be deployed twice."""
    known: dict[tuple[str, int, str | None], str] = {}
    for alias, settings in chosen.items():
        place = (settings.address.lower(), settings.port or 22, settings.proxy_jump)
        if place in known:
            raise BadParameter(f"--hosts: {known[place]} and {alias} are the same machine ({settings.address})")
        known[place] = alias
