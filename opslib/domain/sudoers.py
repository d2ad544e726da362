"""The sudoers file that lets a login do what the kit does with `sudo -n` on a host, and nothing else."""

import posixpath
import re
from collections.abc import Mapping, Sequence

from opslib.domain.facts.ports import listeners_command
from opslib.domain.facts.systemd import unit_name
from opslib.domain.host import HostSettings
from opslib.domain.lock import locks_dir
from opslib.domain.states import Value
from opslib.errors import BadParameter

PROGRAMS = ("cat", "cp", "install", "mkdir", "mv", "rm", "sha256sum", "ss", "stat", "systemctl")
JOURNAL_GROUP = "systemd-journal"
_TIMEOUT_S, _STOP_TIMEOUT_S = 60, 300
# Names that differ each time (hosts/files.py), as sudoers patterns of a fixed length: `*` would match spaces, too.
_BESIDE = "[0-9a-f]" * 8
_STAMP = f"{'[0-9]' * 8}T{'[0-9]' * 6}.{'[0-9]' * 6}Z"
_PLAIN = re.compile(r"[\w@./+-]+", re.ASCII)
_LOGIN = re.compile(r"[A-Za-z_][\w.-]*\$?", re.ASCII)


class Allowance(Value):
    """One line of a sudoers list: a program's arguments, `[...]` being patterns, and where they belong."""

    program: str
    arguments: tuple[str, ...]
    list_name: str


def allowances(settings: HostSettings, units: Sequence[str], ports: Sequence[int]) -> tuple[Allowance, ...]:
    """Everything that the kit runs with sudo for these units and ports, on a host with these directories."""
    names = [unit_name(unit) for unit in units]
    files = {f"{settings.unit_dir}/{name}": "0644" for name in names}
    files |= {f"{settings.state_dir}/{program}.py": "0755" for program in ("gpu_guard", "notify_shim")}
    files |= {f"{settings.state_dir}/{name.removesuffix('.service')}.env": "0600" for name in names}
    rows: list[tuple[str, tuple[str, ...]]] = [("OPSLIB_UNITS", ("systemctl", "daemon-reload"))]
    for name in names:
        rows += [("OPSLIB_UNITS", ("systemctl", *verb, "--", name)) for verb in _VERBS]
        rows.append(("OPSLIB_STOP", ("systemctl", "stop", "--", name)))
    rows += [("OPSLIB_LOOK", listeners_command(port)) for port in ports]
    rows.append(("OPSLIB_FILES", ("mkdir", "--parents", "--mode=0755", settings.state_dir)))
    rows.append(("OPSLIB_FILES", ("mkdir", "--parents", "--mode=1777", locks_dir(settings))))
    for path, mode in files.items():
        rows += [("OPSLIB_LOOK", vector) for vector in _reading(path)]
        rows.append(("OPSLIB_LOOK", ("cat", "--", f"{path}.{_STAMP}.bak")))  # the kept versions
        rows += [("OPSLIB_FILES", vector) for vector in _writing(path, mode)]
    return tuple(Allowance(program=argv[0], arguments=argv[1:], list_name=name) for name, argv in rows)


_VERBS = (("--no-block", "start"), ("--no-block", "restart"), ("reset-failed",))


def _reading(path: str) -> list[tuple[str, ...]]:
    return [("cat", "--", path), ("stat", "--dereference", "--format=%a %U:%G", "--", path)]


def _writing(path: str, mode: str) -> list[tuple[str, ...]]:
    """A finished copy beside the file, checked, the old one kept, put in its place; and the undo."""
    folder, name = posixpath.split(path)
    beside, backup = f"{folder}/.{name[:200]}.{_BESIDE}.new", f"{path}.{_STAMP}.bak"
    owners: tuple[tuple[str, ...], ...] = ((), ("--owner=root", "--group=root"))
    return [
        *(("install", f"--mode={mode}", *owner, "--", "/dev/stdin", beside) for owner in owners),
        ("sha256sum", "--", beside),
        ("cp", "--archive", "--link", "--", path, backup),
        ("mv", "--force", "--no-target-directory", "--", beside, path),
        ("rm", "--force", "--", beside),
        ("mv", "--no-target-directory", backup, path),
        ("rm", "--force", path),
    ]


def sudoers_text(
    settings: HostSettings, login: str, units: Sequence[str], ports: Sequence[int], paths: Mapping[str, str]
) -> str:
    r"""The file, for a host whose programs lie at `paths`; raises BadParameter for names that sudoers can't hold.

    Source: sudoers(5): `,`, `:`, `=` and `\` are escaped in arguments; TIMEOUT= needs sudo 1.8.20.
    """
    if not _LOGIN.fullmatch(login):
        raise BadParameter(f"{login!r} is no login that a sudoers file could name")
    for word in (settings.unit_dir, settings.state_dir, *units, *paths.values()):
        if not _PLAIN.fullmatch(word):
            raise BadParameter(f"{word!r} can't stand in a sudoers file", hint="use a plain path or name")
    lists: dict[str, list[str]] = {}
    for allowance in allowances(settings, units, ports):
        if allowance.program in paths:
            words = [paths[allowance.program], *map(_escaped, allowance.arguments)]
            lists.setdefault(allowance.list_name, []).append(" ".join(words))
    head = _HEAD.format(alias=settings.alias, login=login, units=", ".join(map(unit_name, units)), group=JOURNAL_GROUP)
    blocks = [f"Cmnd_Alias {name} = \\\n    " + ", \\\n    ".join(lines) for name, lines in lists.items()]
    short = ", ".join(name for name in lists if name != "OPSLIB_STOP")
    rules = [
        f"Defaults:{login} !requiretty",
        f"{login} ALL=(root) TIMEOUT={_TIMEOUT_S} NOPASSWD: {short}",
        f"{login} ALL=(root) TIMEOUT={_STOP_TIMEOUT_S} NOPASSWD: OPSLIB_STOP",
    ]
    return "\n\n".join([head, *blocks, "\n".join(rules)]) + "\n"


_HEAD = """\
# What opslib runs with `sudo -n` as {login} on {alias}, for {units}; written by `opslib sudoers`.
# To use it, as root:  visudo --check --file=FILE && install --mode=0440 FILE /etc/sudoers.d/opslib-{login}
# The journal is read without sudo:  usermod --append --groups {group} {login}
# In hosts.toml, [hosts.{alias}]:  sudo = "listed"
# It bounds what a mistake can do. Whoever may write a unit file may have anything run as root: trust the login."""


def _escaped(argument: str) -> str:
    r"""The argument with the signs that mean something in a sudoers file escaped.

    >>> print(_escaped("sport = :8000"))
    sport \= \:8000
    """
    return re.sub(r"([,:=\\])", r"\\\1", argument)
