"""What differs between hosts that should be alike: facts laid side by side, grouped by value, the outliers first."""

import re
from collections.abc import Iterator, Mapping, Sequence

from opslib.domain.drift_facts import Area, HostFacts, Key
from opslib.domain.drift_remedies import Wanted, align
from opslib.domain.redaction import redact
from opslib.domain.states import State, Value

# what a host has that lacks a name which others have
_MISSING = {"settings": "not set", "units": "absent", "model": "none"}
_ABSENT = "absent"
_DIGESTS = frozenset({"model", "model config", "generation config", "chat template", "weights' content"})
_DIGEST = re.compile(r"digest:([0-9a-f]{6})[0-9a-f]*")  # of a secret word among others; its salt is kept nowhere
_SECRET_AREAS = frozenset({"variables", "unit's variables"})
_OPTIONAL = "weights' content"  # known where somebody hashed; where nobody did there is nothing to compare
# of two areas that say the same about the same hosts the first is told
_SAME = {"unit's flags": "flags", "unit's variables": "variables"}
_ORDER = ("host", "units", "state", "flags", "unit's flags", "settings", "variables", "unit's variables", "limits")


class DriftGroup(Value):
    """Hosts that have one value of a fact."""

    value: str
    hosts: tuple[str, ...]


class Drift(Value):
    """One fact that differs: who has which value, fewest first; and how each outlier would be aligned."""

    unit: str = ""  # "" where it is about the host itself
    area: str
    name: str
    groups: tuple[DriftGroup, ...]
    has_majority: bool
    align: Mapping[str, str] = {}  # host -> command or advice

    @property
    def outliers(self) -> tuple[DriftGroup, ...]:
        """The groups that differ from the majority; all where there is none."""
        return self.groups[:-1] if self.has_majority else self.groups


class NotKnown(Value):
    """A fact, or a whole area, that could not be read on one host; no drift."""

    host: str
    unit: str = ""
    name: str
    reason: str


class DriftReport(Value):
    """What a comparison came to: 1 drift, 3 where nothing differs but something isn't known, 0 all alike."""

    state: State
    summary: str
    hosts: tuple[str, ...]
    n_facts: int  # compared between at least two hosts
    drifts: tuple[Drift, ...]
    unknown: tuple[NotKnown, ...]
    notes: tuple[str, ...] = ()


def compare_hosts(hosts: Sequence[HostFacts]) -> DriftReport:
    """What differs between these hosts; a majority is more than half of those whose value is known."""
    asked = [host for host in hosts if not host.problem]
    unknown = [NotKnown(host=host.host, name="everything", reason=host.problem) for host in hosts if host.problem]
    rows = [row for key in _keys(asked) for row in _rows(key, asked)]
    notes = tuple(row.note for row in rows if row.note)
    rows = [row for row in rows if not row.note]
    drifts = [row for row in rows if len(set(row.values.values())) > 1]
    by_key = {(row.unit, row.area, row.name): row for row in drifts}
    told = [row for row in drifts if not _is_said(row, by_key)]
    unknown += [told for row in rows for told in row.unknown]
    found = tuple(row.drift(asked) for row in told)
    n_facts = sum(len(row.values) > 1 for row in rows)
    state = State.WARNING if found else State.UNKNOWN if unknown or len(asked) < 2 else State.OK
    return DriftReport(
        state=state,
        summary=_summary(found, unknown, len(hosts), n_facts),
        hosts=tuple(host.host for host in hosts),
        n_facts=n_facts,
        drifts=tuple(sorted(found, key=_order)),
        unknown=tuple(dict.fromkeys(unknown)),
        notes=tuple(dict.fromkeys(notes)),
    )


class _Row(Value):
    """One fact on all hosts."""

    unit: str
    area: str
    name: str
    values: Mapping[str, str]  # host -> value
    unknown: tuple[NotKnown, ...]
    note: str = ""

    def drift(self, hosts: Sequence[HostFacts]) -> Drift:
        """The difference, its groups in order and its digests as words."""
        by_value: dict[str, list[str]] = {}
        for host, value in self.values.items():
            by_value.setdefault(value, []).append(host)
        ordered = sorted(by_value.items(), key=lambda group: (len(group[1]), group[1]))
        has_majority = 2 * len(ordered[-1][1]) > len(self.values)
        groups = tuple(DriftGroup(value=self._told(value, at), hosts=tuple(g)) for at, (value, g) in enumerate(ordered))
        facts = {host.host: host for host in hosts}
        remedies = {
            host: align(Wanted(self.unit, self.area, self.name, wrong, ordered[-1][0]), facts[host])
            for wrong, named in (ordered[:-1] if has_majority else ())
            for host in named
        }
        about = {"unit": self.unit, "area": self.area, "name": self.name}
        return Drift(**about, groups=groups, has_majority=has_majority, align=remedies)

    def _told(self, value: str, at: int) -> str:
        """A value in words; one that is secret, or a digest, is told by a letter."""
        is_plain = value in {_ABSENT, "none"} or (self.area not in _SECRET_AREAS and self.name not in _DIGESTS)
        if is_plain and not value.startswith("digest:"):
            return redact(_DIGEST.sub(r"[redacted:\1]", value))
        return f"value {chr(ord('A') + at)}" if at < 26 else f"value {at + 1}"


def _keys(hosts: Sequence[HostFacts]) -> list[Key]:
    """Units by name; of each its areas in the order in which they are told."""
    return sorted({key for host in hosts for key in host.areas}, key=lambda key: (key[0], _rank(key[1])))


def _rank(area: str) -> int:
    return _ORDER.index(area) if area in _ORDER else len(_ORDER)


def _order(drift: Drift) -> tuple[bool, int, str, int]:
    """Outliers before what has no majority, the fewest first."""
    return (not drift.has_majority, len(drift.groups[0].hosts), drift.unit, _rank(drift.area))


def _rows(key: Key, hosts: Sequence[HostFacts]) -> Iterator[_Row]:
    unit, area = key
    facts = {host.host: found for host in hosts if (found := host.areas.get(key)) and found.is_present}
    names = sorted({name for each in facts.values() for name in (*each.values, *each.unread)})
    problems = tuple(
        NotKnown(host=host, unit=unit, name=area, reason=each.problem) for host, each in facts.items() if each.problem
    )
    if problems and not names:
        yield _Row(unit=unit, area=area, name=area, values={}, unknown=problems)
    for name in names:
        values = {host: _value(area, name, each) for host, each in facts.items() if not each.problem}
        known = {host: value for host, value in values.items() if value is not None}
        unread = [
            NotKnown(host=host, unit=unit, name=name, reason=facts[host].unread[name])
            for host, value in values.items()
            if value is None
        ]
        note = ""
        if name == _OPTIONAL and not known:
            note = (
                "what the weights hold was not compared: no host has receipts of them (`opslib verify --level digest`)"
            )
        yield _Row(unit=unit, area=area, name=name, values=known, unknown=(*problems, *unread), note=note)


def _value(area: str, name: str, facts: Area) -> str | None:
    if name in facts.unread:
        return None
    return facts.values.get(name, _MISSING.get(area, _ABSENT))


def _is_said(row: _Row, drifts: Mapping[tuple[str, str, str], _Row]) -> bool:
    """Whether the running process shows the very same difference, or the whole unit is missing."""
    same = drifts.get((row.unit, _SAME.get(row.area, ""), row.name))
    return same is not None and _partition(same) == _partition(row)


def _partition(row: _Row) -> frozenset[frozenset[str]]:
    groups: dict[str, set[str]] = {}
    for host, value in row.values.items():
        groups.setdefault(value, set()).add(host)
    return frozenset(frozenset(group) for group in groups.values())


def _summary(drifts: Sequence[Drift], unknown: Sequence[NotKnown], n_hosts: int, n_facts: int) -> str:
    silent = [each.host for each in unknown if each.name == "everything"]
    n_more = len({(each.host, each.unit, each.name) for each in unknown}) - len(silent)
    parts = [f"{len(drifts)} difference{'' if len(drifts) == 1 else 's'} between {n_hosts} hosts" if drifts else ""]
    parts += [f"{n_hosts} hosts are alike in {n_facts} facts" if not drifts and n_facts else ""]
    parts += [f"not known: {', '.join(silent)}" if silent else ""]
    parts += [f"{n_more} fact{'' if n_more == 1 else 's'} not known" if n_more else ""]
    return "; ".join(part for part in parts if part) or "nothing could be compared"
