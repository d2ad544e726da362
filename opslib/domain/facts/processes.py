"""Which process started which."""

from collections.abc import Mapping


def process_parents_command() -> tuple[str, ...]:
    """Asks for every process id with its parent's."""
    return ("ps", "-A", "-o", "pid=,ppid=")


def parse_process_parents(text: str) -> dict[int, int]:
    r"""Reads `ps -A -o pid=,ppid=`; lines that are no two numbers are passed over.

    >>> parse_process_parents("  1  0\n 42  1")
    {1: 0, 42: 1}
    """
    rows = (line.split() for line in text.splitlines())
    return {int(row[0]): int(row[1]) for row in rows if len(row) == 2 and row[0].isdecimal() and row[1].isdecimal()}


def descends_from(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    """Whether `ancestor` is the process itself or started it, directly or not.

    >>> descends_from(7, 5, {7: 6, 6: 5, 5: 1})
    True
    """
    seen: set[int] = set()
    while pid and pid not in seen:
        if pid == ancestor:
            return True
        seen.add(pid)
        pid = parents.get(pid, 0)
    return False
