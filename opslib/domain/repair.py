"""Ways out that are computed for one case: the exact flag, unit setting or command, from the unit and the log."""

import re
from collections.abc import Iterable

from opslib.domain.diagnosis import Diagnosis
from opslib.domain.diagnosis_catalogue import Remedy
from opslib.domain.repair_solvers import SOLVERS, RepairFacts
from opslib.domain.unit_file import parse_unit_file, unified_diff
from opslib.errors import OpslibError

_CACHE = re.compile(r"Using cache directory: (?P<path>/\S+)")

__all__ = ["RepairFacts", "changed_unit", "compute_repairs", "read_cache_path", "with_diff"]


def read_cache_path(messages: Iterable[str]) -> str:
    """The compile cache that an engine said it uses, "" where it named none.

    >>> read_cache_path(("Using cache directory: /c/vllm/torch_compile_cache/b3/rank_0_0/backbone for vLLM's",))
    '/c/vllm/torch_compile_cache'
    """
    found = (match for text in messages if (match := _CACHE.search(text)))
    path = next((match["path"] for match in found), "")
    head, name, _ = path.partition("torch_compile_cache")
    return f"{head}{name}" if name else ""


def compute_repairs(diagnosis: Diagnosis, facts: RepairFacts) -> tuple[Remedy, ...]:
    """The computed ways out of the verdict's cause, none where nothing can be computed; never raises for odd units."""
    solve = SOLVERS.get(diagnosis.cause)
    if solve is None:
        return ()
    try:
        remedy = solve(diagnosis, facts)
    except OpslibError:
        return ()
    if remedy is None:
        return ()
    return (with_diff(remedy.model_copy(update={"computed_by": "unit"}), facts.unit_text, facts.unit_path),)


def with_diff(remedy: Remedy, unit_text: str, unit_path: str) -> Remedy:
    """The remedy with the change of the unit file that it means, where it changes the unit and can be made there."""
    try:
        changed = changed_unit(remedy, unit_text) if unit_text else None
    except OpslibError:
        return remedy
    if changed is None or changed == unit_text:
        return remedy
    return remedy.model_copy(update={"diff": unified_diff(unit_text, changed, unit_path)})


def changed_unit(remedy: Remedy, unit_text: str) -> str | None:
    """The unit's text with the remedy's flag or setting in it; None where the remedy is none of the unit's."""
    unit = parse_unit_file(unit_text)
    if remedy.flag and remedy.value == "-":
        return unit.without_engine_flag(remedy.flag).render()
    if remedy.flag:
        return unit.with_engine_flag(remedy.flag, remedy.value or None).render()
    if remedy.setting:
        return _with_setting(unit_text, remedy.setting, remedy.value)
    return None


def _with_setting(text: str, key: str, value: str) -> str:
    """The text with one key of [Service] set: in place of its last mention, else as the section's first line."""
    line = f"{key}={value}"
    pattern = re.compile(rf"^{re.escape(key)}=.*$", re.MULTILINE)
    if pattern.search(text):
        return pattern.sub(lambda _: line, text)
    return re.sub(r"^\[Service\]\n", lambda found: f"{found[0]}{line}\n", text, count=1, flags=re.MULTILINE)
