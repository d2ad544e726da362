"""The catalogue of causes: what each means, what to do about it, what it costs and how the cure is checked."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from string import Template

from opslib.domain.states import Value
from opslib.errors import UnknownName


class Remedy(Value):
    """One way out: what to do, what it costs, how to see that it helped; `computed_by` names who gives the figure."""

    text: str
    flag: str = ""  # the engine flag it changes, if it does
    value: str = ""  # computed: what the flag or the setting becomes
    setting: str = ""  # computed: the key of the unit's [Service] section that it changes
    diff: str = ""  # computed: the change of the unit file
    command: str = ""  # what an operator would type
    cost: str = ""
    check: str = ""
    # "planner": from flags, checkpoint and free memory; "unit": from the unit's text, the evidence and the log's values
    computed_by: str = ""


class CauseEntry(Value):
    """One cause of the catalogue."""

    id: str
    meaning: str
    mistaken_for: str = ""
    remedies: tuple[Remedy, ...] = ()

    @property
    def family(self) -> str:
        """The part before the slash."""
        return self.id.partition("/")[0]

    def remedies_for(self, captured: Mapping[str, str]) -> tuple[Remedy, ...]:
        """The remedies with the captured values put in; one whose value was not captured keeps the placeholder."""
        return tuple(
            remedy.model_copy(
                update={
                    "text": Template(remedy.text).safe_substitute(captured),
                    "command": Template(remedy.command).safe_substitute(captured),
                }
            )
            for remedy in self.remedies
        )


@cache
def list_causes() -> tuple[CauseEntry, ...]:
    """All causes of the catalogue."""
    table = tomllib.loads(resources.files("opslib.domain.data").joinpath("causes.toml").read_text("utf-8"))
    return tuple(CauseEntry.model_validate(row) for row in table["cause"])


@cache
def _by_id() -> dict[str, CauseEntry]:
    return {entry.id: entry for entry in list_causes()}


def cause_entry(cause: str) -> CauseEntry:
    """The entry of an id such as "gpu-memory/sampler-warmup"; raises UnknownName."""
    if cause not in _by_id():
        raise UnknownName(f"the catalogue has no cause {cause!r}")
    return _by_id()[cause]
