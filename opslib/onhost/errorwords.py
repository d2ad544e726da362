"""What a server says where it gives no answer, in one line: JSON of several kinds, a page, or nothing at all."""

import json
import re
from typing import Any, Dict, List, Optional

MAX_CHARACTERS = 200
_BLANK = re.compile(r"\s+")
_UNSEEN = re.compile(r"(?is)<!--.*?-->|<(script|style|head)\b.*?</\1\s*>|<[^>]*>")
_TITLE = re.compile(r"(?is)<title[^>]*>(.*?)</title>")


def error_message(body: bytes) -> str:
    r"""The server's own words in an error body, in at most 200 characters of one line.

    OpenAI's {"error": {"message"}}, vLLM's older {"message"}, FastAPI's {"detail"} with the place of each problem, the
    title of an HTML page, else the text as it is.

    >>> error_message(b'{"detail": [{"loc": ["body", "ignore_eos"], "msg": "Extra inputs are not permitted"}]}')
    'body.ignore_eos: Extra inputs are not permitted'
    >>> error_message(b"<html><head><title>403 Forbidden</title></head><body>nginx</body></html>")
    'an HTML page, "403 Forbidden"'
    """
    text = body.decode("utf-8", "replace")
    words = _in_json(json_object(body) or {})
    if not words and is_page(body):
        words = _in_page(text)
    return _BLANK.sub(" ", words or text).strip()[:MAX_CHARACTERS]


def is_page(body: bytes) -> bool:
    """Whether the bytes begin as HTML or XML does."""
    return body.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"<"


def json_object(text: bytes) -> Optional[Dict[str, Any]]:
    """The JSON object that `text` is, None where it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _in_json(value: Dict[str, Any]) -> str:
    error = value.get("error") or value
    if not isinstance(error, dict):
        return str(error)
    found = error.get("message") or error.get("detail") or error.get("msg") or ""
    problems = found if isinstance(found, list) else [found]
    return "; ".join(_problem(problem) for problem in problems if problem)


def _problem(problem: Any) -> str:
    if not isinstance(problem, dict):
        return str(problem)
    place: List[Any] = problem["loc"] if isinstance(problem.get("loc"), list) else []
    words = str(problem.get("msg") or problem.get("message") or problem)
    return ".".join(str(part) for part in place) + ": " + words if place else words


def _in_page(text: str) -> str:
    title = _TITLE.search(text)
    words = _BLANK.sub(" ", title.group(1) if title else _UNSEEN.sub(" ", text)).strip()
    return 'an HTML page, "%s"' % words[:100] if words else "an HTML page"
