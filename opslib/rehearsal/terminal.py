"""Who calls a stand-in command, and where its output goes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field


async def _no_wait() -> None:
    """Nothing to wait for."""


@dataclass
class Terminal:
    """The caller of one command: its output streams, what it may do, and whether it is still there."""

    write_out: Callable[[bytes], None]
    write_err: Callable[[bytes], None]
    is_root: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    drain: Callable[[], Awaitable[None]] = _no_wait  # waits until the caller has taken what was written

    def out(self, text: str) -> None:
        """Write to the caller's standard output."""
        self.write_out(text.encode("utf-8", "surrogateescape"))

    def err(self, text: str) -> None:
        """Write to the caller's standard error."""
        self.write_err(text.encode("utf-8", "surrogateescape"))
