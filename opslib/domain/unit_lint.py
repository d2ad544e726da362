"""What is wrong with an engine's unit before it is started: the kit's rules, and systemd's own complaints."""

import re
import tomllib
from functools import cache
from importlib.resources import files

from opslib.domain.states import CheckResult, State, Value
from opslib.domain.unit_file import parse_unit_file
from opslib.domain.unit_rules import FINDERS
from opslib.errors import UnexpectedAnswer

_HEAD = re.compile(r"^(?:.*?/)?[\w.@-]+\.(?:service|d/[\w.-]+\.conf):?(?P<line>\d+)?:\s*")


class Rule(Value):
    """One rule: its id, how bad it is, what it means, and what to write instead."""

    name: str
    state: State
    meaning: str
    instead: str


@cache
def list_rules() -> tuple[Rule, ...]:
    """All rules, the faults first; each is found by the function of its name in `unit_rules`."""
    text = files("opslib.domain.data").joinpath("unit_rules.toml").read_text("utf-8")
    return tuple(Rule(name=name, **fields) for name, fields in tomllib.loads(text).items())


def lint_unit(text: str) -> tuple[CheckResult, ...]:
    """What the rules find in a unit's text (drop-ins appended), the worst first; nothing for a good one."""
    unit = parse_unit_file(text)
    found = []
    for rule in list_rules():
        try:
            evidence = tuple(FINDERS[rule.name](unit))
        except UnexpectedAnswer as error:  # a value that can't be read: `quoting` says so
            evidence = (error.message,) if rule.name == "quoting" else ()
        if evidence:
            summary = f"{rule.meaning}; {rule.instead}"
            found.append(CheckResult(name=f"unit/{rule.name}", state=rule.state, summary=summary, evidence=evidence))
    return tuple(sorted(found, key=lambda finding: finding.state is not State.CRITICAL))


def read_verify(text: str, unit: str) -> tuple[CheckResult, ...]:
    """The complaints of `systemd-analyze verify` (whose exit status is 0 for an unknown key) that are about `unit`.

    >>> read_verify("/etc/systemd/system/a.service:3: Unknown key name 'Foo' in section 'Service', ignoring.", "a")
    (CheckResult(name='systemd/verify', state=<State.WARNING: 'warning'>, summary="Unknown key name 'Foo' in section \
'Service', ignoring.", evidence=('line 3',)),)
    """
    name = unit if unit.endswith(".service") else f"{unit}.service"
    found: dict[str, CheckResult] = {}
    for line in text.splitlines():
        if name not in line:  # verify reads the units around it as well
            continue
        head = _HEAD.match(line)
        said = line[head.end() :] if head else line
        is_ignored = "ignoring" in said.lower() or "unknown" in said.lower()
        at = (f"line {head['line']}",) if head and head["line"] else ()
        state = State.WARNING if is_ignored else State.CRITICAL
        found.setdefault(said, CheckResult(name="systemd/verify", state=state, summary=said, evidence=at))
    return tuple(found.values())
