"""Ask a host one thing after the other, and keep note: what was asked, when, and what could not be had."""

import shlex
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from opslib.domain.host import Host
from opslib.domain.states import Value
from opslib.errors import CommandTimedOut, OpslibError, Refused, UnexpectedAnswer
from opslib.workflow.facts import journal_sudo

T = TypeVar("T")


class Asked(Value):
    """One question: its topic, the words of the command, when it was asked, and why there is no answer."""

    what: str
    words: str
    asked_at: datetime
    problem: str = ""


class Gatherer:
    """Asks one thing after the other; what cannot be had is noted, not raised."""

    def __init__(self, host: Host, clock: Callable[[], datetime]) -> None:
        self.host = host
        self.clock = clock
        self.missing: list[str] = []
        self.asked: list[Asked] = []
        self.journal_sudo = journal_sudo(host)

    def ask(self, what: str, argv: tuple[str, ...], *, sudo: bool, timeout_s: float = 30.0) -> str:
        """The command's standard output, "" where it can't be had."""
        asked_at, problem, text = self.clock(), "", ""
        try:
            result = self.host.run(argv, sudo=sudo and self.host.settings.has_sudo, timeout_s=timeout_s)
            said = result.error_text or f"exit status {result.exit_status}"
            text, problem = (result.text, "") if result.is_success else ("", f"{argv[0]}: {said}")
        except (Refused, CommandTimedOut, UnexpectedAnswer) as error:
            problem = error.message
        self.asked.append(Asked(what=what, words=shlex.join(argv), asked_at=asked_at, problem=problem))
        if problem:
            self.missing.append(f"{what}: {problem}")
        return text

    def read(self, what: str, parse: Callable[[str], T], text: str, default: T) -> T:
        """What `parse` makes of the text, `default` where it is empty or can't be read."""
        try:
            return parse(text) if text else default
        except OpslibError as error:
            self.missing.append(f"{what}: {error.message}")
            return default
