"""Argument vectors by their shape, to compare what was sent to one kind of host with what another one got."""

import hashlib
import posixpath
import re
from collections.abc import Sequence
from itertools import pairwise

_SUBCOMMANDS = frozenset({"systemctl", "systemd-analyze", "loginctl", "ip", "git", "pip"})
_FORMATS = frozenset(  # their value is the question
    {
        "-o",
        "--output",
        "-p",
        "--property",
        "--format",
        "-t",
        "--type",
        "--query-gpu",
        "--query-compute-apps",
        "_TRANSPORT",
    }
)
_ASSIGNMENT = re.compile(r"(--[A-Za-z][\w-]*|[A-Za-z_]\w*)=(.*)", re.DOTALL)
_NUMBERED_OPTION = re.compile(r"(-[A-Za-z])\d+")
_WORD = re.compile(r"[a-z][a-z-]*")
_OPERATORS = frozenset({"+", "!", "(", ")", "--", "-", "-a", "-o"})


def vector_shape(argv: Sequence[str]) -> tuple[str, ...]:
    """The vector with its values (paths, numbers, unit names, ids) replaced: program, subcommand and options stay.

    >>> vector_shape(["systemctl", "show", "vllm-minimax", "--property=NRestarts,Result"])
    ('systemctl', 'show', '<value>', '--property=NRestarts,Result')
    >>> vector_shape(["env", "TZ=UTC", "systemctl", "cat", "--", "x.service"])
    ('env', 'TZ=UTC', 'systemctl', 'cat', '--', '<value>')
    >>> vector_shape(["/usr/bin/journalctl", "-u", "x.service", "-o", "json", "-n", "5", "_PID=7"])
    ('journalctl', '-u', '<value>', '-o', 'json', '-n', '<number>', '_PID=<number>')
    """
    if not argv:
        return ()
    if argv[0] == "env":  # what it sets belongs to the shape, but the program is what follows
        n_words = 1 + next((at for at, word in enumerate(argv[1:]) if not _ASSIGNMENT.fullmatch(word)), len(argv) - 1)
        return (*argv[:n_words], *vector_shape(argv[n_words:]))
    program = posixpath.basename(argv[0])
    shape = [program]
    has_subcommand = program not in _SUBCOMMANDS
    for previous, argument in pairwise(argv):
        if previous in ("-c", "-lc") and program not in _SUBCOMMANDS:
            shape.append(_script_shape(argument))
        elif not has_subcommand and previous not in _FORMATS and _WORD.fullmatch(argument):
            shape.append(argument)
            has_subcommand = True
        else:
            shape.append(_argument_shape(previous, argument))
    return tuple(shape)


def _argument_shape(previous: str, argument: str) -> str:
    if argument.replace(",", "").isdecimal():  # also `ps -p 1,2`
        return "<number>"
    if argument in _OPERATORS or previous in _FORMATS:
        return argument
    if assignment := _ASSIGNMENT.fullmatch(argument):
        name, value = assignment.groups()
        return argument if name in _FORMATS else f"{name}={_value_shape(value)}"
    if numbered := _NUMBERED_OPTION.fullmatch(argument):
        return f"{numbered[1]}<number>"
    if argument.startswith("-") and not argument.lstrip("-").isdigit():
        return argument
    return _value_shape(argument)


def _script_shape(script: str) -> str:
    """A digest of the script without its paths and numbers."""
    plain = re.sub(r"/[\w./-]+|\d+(\.\d+)?", "_", script)
    return f"<script {hashlib.sha256(plain.encode('utf-8', 'replace')).hexdigest()[:8]}>"


def _value_shape(value: str) -> str:
    if value.startswith("/"):
        return "<path>"
    return "<number>" if re.fullmatch(r"-?[\d.]+", value) else "<value>"
