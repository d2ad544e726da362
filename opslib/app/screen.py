"""What a cell shows while it works; the last state of each display stays in the file."""

from typing import Any


class Screen:
    """One place in a cell's output that can be repainted; nothing is loaded before the first paint."""

    def __init__(self) -> None:
        self._handle: Any = None

    def paint(self, shown: Any) -> None:
        """Show `shown` here, in place of what stood here before."""
        from IPython.display import display  # noqa: PLC0415 - only where somebody looks

        if self._handle is None:
            self._handle = display(shown, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(shown)
