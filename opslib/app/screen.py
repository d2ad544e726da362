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


class Live:
    """A widget on a Screen, with a sentence for readers that know no widgets; to be painted over at its end."""

    def __init__(self, widget: Any, text: str) -> None:
        self.widget = widget
        self.text = text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The widget's own view, its plain text replaced."""
        bundle = self.widget._repr_mimebundle_(include=include, exclude=exclude)
        return {**(bundle[0] if isinstance(bundle, tuple) else bundle), "text/plain": self.text}

    def __repr__(self) -> str:
        return self.text
