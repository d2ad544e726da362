"""What a cell answers with: the same final state as HTML, as plain text, and as a PNG where there is a figure."""

from typing import Any


class Shown:
    """A displayable that needs no kernel, network or JavaScript once it stands in the file."""

    def __init__(self, html: str, text: str, *, png: bytes | None = None) -> None:
        self.html = html
        self.text = text
        self.png = png

    @classmethod
    def nothing(cls) -> "Shown":
        """An answer that shows nothing: the section displayed its final state itself."""
        return cls("", "")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The bundle IPython asks for; empty for `nothing()`."""
        del include, exclude
        if not self.text:
            return {}
        bundle: dict[str, Any] = {"text/plain": self.text, "text/html": self.html}
        if self.png is not None:
            bundle["image/png"] = self.png
        return bundle

    def __repr__(self) -> str:
        return self.text
