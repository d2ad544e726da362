"""Makes an HTML page self-contained: no script, no frame, no address that a browser would ask."""

import re
from html import escape
from html.parser import HTMLParser

_DROPPED = {"script", "iframe", "object", "embed", "base", "link", "noscript", "applet"}
_VOID = {"base", "link", "embed"}  # dropped elements that have no end tag
_FETCHED = {
    "src",
    "href",
    "xlink:href",
    "srcset",
    "poster",
    "data",
    "action",
    "formaction",
    "background",
    "ping",
    "manifest",
}
_CSS_ADDRESS = re.compile(r"""url\(\s*["']?(?!data:|#)[^)]{0,2000}\)|@import[^;]{0,2000};?""", re.IGNORECASE)


def offline_html(page: str) -> str:
    """The page without anything that makes a browser ask the network; an outside link becomes its text and address.

    >>> offline_html('<a href="https://docs.vllm.ai">manual</a><script src="https://cdn/x.js"></script>')
    'manual <span class="address">(https://docs.vllm.ai)</span>'
    """
    cleaner = _Cleaner()
    cleaner.feed(page)
    cleaner.close()
    return "".join(cleaner.parts)


def _is_inside(value: str) -> bool:
    """Whether an address stays in the page or beside it."""
    return (
        value.strip().lower().startswith(("#", "data:image/"))
        or re.match(r"(?!//)[\w.][^:]*$", value.strip()) is not None
    )


class _Cleaner(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[str] = []
        self._dropped: list[str] = []  # open elements whose content is dropped
        self._links: list[str | None] = []  # open <a> elements: None for a link that stays, else the address to show
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _DROPPED or (tag == "meta" and dict(attrs).get("http-equiv")):
            if tag not in _VOID and tag != "meta":
                self._dropped.append(tag)
            return
        if self._dropped:
            return
        self._in_style = tag == "style"
        if tag == "a":
            address = dict(attrs).get("href") or ""
            outside = "" if _is_inside(address) or not address else address
            is_dead = bool(outside) or ".ipynb" in address  # no runbook lies beside a record
            is_address = outside.lower().startswith(("http:", "https:", "mailto:", "ssh:", "//"))
            self._links.append(None if not is_dead else outside if is_address else "")
            if is_dead:
                return
        self._put_start(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _DROPPED and not self._dropped:
            self._put_start(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if self._dropped:
            if tag == self._dropped[-1]:
                self._dropped.pop()
            return
        if tag in _DROPPED:
            return
        self._in_style = False
        if tag == "a" and self._links:
            outside = self._links.pop()
            if outside is not None:
                is_shown = not outside or "".join(self.parts[-1:]).strip() == escape(outside)
                self.parts.append("" if is_shown else f' <span class="address">({escape(outside)})</span>')
                return
        self.parts.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self._put(_CSS_ADDRESS.sub("none", data) if self._in_style else data)

    def handle_entityref(self, name: str) -> None:
        self._put(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self._put(f"&#{name};")

    def handle_decl(self, decl: str) -> None:
        if decl.lower() == "doctype html":
            self._put(f"<!{decl}>")

    def _put(self, text: str) -> None:
        if not self._dropped:
            self.parts.append(text)

    def _put_start(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kept = [(name, _kept_value(name, value)) for name, value in attrs if _is_kept(name, value)]
        raw = self.get_starttag_text() or ""
        if kept == attrs:
            self.parts.append(raw)
        elif tag != "img" or "src" in dict(kept):  # a picture from elsewhere leaves no empty frame
            words = [tag, *(name if value is None else f'{name}="{escape(value)}"' for name, value in kept)]
            self.parts.append(f"<{' '.join(words)}{' /' if raw.endswith('/>') else ''}>")


def _is_kept(name: str, value: str | None) -> bool:
    if name.startswith("on"):
        return False
    return name not in _FETCHED or _is_inside(value or "")


def _kept_value(name: str, value: str | None) -> str | None:
    is_css = name == "style" or (value is not None and "url(" in value)
    return _CSS_ADDRESS.sub("none", value) if is_css and value is not None else value
