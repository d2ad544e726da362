"""What is asked of an OpenAI-compatible endpoint, and when each part of the answer came."""

import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from opslib.onhost.sse import EventSplitter

# Short words that common vocabularies hold as one token each; how many tokens they really are, usage tells.
WORDS = (
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "number",
    "night",
    "point",
    "home",
    "water",
    "room",
    "mother",
    "area",
    "money",
    "story",
    "fact",
    "month",
    "lot",
    "right",
    "study",
    "book",
    "eye",
    "job",
    "word",
    "business",
    "issue",
    "side",
    "kind",
    "head",
    "house",
    "service",
    "friend",
)
_DELTAS = ("content", "reasoning", "reasoning_content", "tool_calls", "text")


class Completion(NamedTuple):
    """One answer: seconds on the client's clock, tokens as the server counted them, or what went wrong."""

    first_at: Optional[float]
    stamps: Tuple[float, ...]  # one for each chunk that brought text
    prompt_tokens: Optional[int]
    completion_tokens: Optional[int]
    text: str
    error: Optional[Tuple[str, str]]  # class and message


def body_of(
    endpoint: str, model: str, prompt: Any, n_tokens: int, *, stream: bool, without: Sequence[str] = ()
) -> bytes:
    """The JSON body; `ignore_eos` fixes the length where the server knows it, `include_usage` asks for true counts.

    `prompt` is text, or a chat's messages; `without` names fields that this server refuses.
    """
    body: Dict[str, Any] = {"model": model, "max_tokens": n_tokens, "temperature": 0, "stream": stream}
    if stream:
        body["ignore_eos"] = True
        body["stream_options"] = {"include_usage": True}
    if endpoint.endswith("/chat/completions"):
        body["messages"] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    else:
        body["prompt"] = prompt if isinstance(prompt, str) else "\n".join(str(each.get("content")) for each in prompt)
    return json.dumps({name: value for name, value in body.items() if name not in without}).encode()


def read_completion(pieces: Sequence[Tuple[float, bytes]], *, keep_text: bool = False) -> Completion:
    """Reads a streamed answer from its stamped bytes.

    The first token is the first chunk with non-empty content, reasoning, text or tool call, never the role chunk.
    Where no chunk has any text but usage counts tokens, chunks with a choice count instead.
    """
    try:
        return _read(pieces, keep_text)
    except (AttributeError, TypeError, LookupError, RecursionError) as error:  # JSON of another shape
        return _failed("malformed", str(error).encode())


def read_whole(body: bytes) -> Completion:
    """Reads an answer that was not streamed."""
    try:
        value = _json_object(body) or {}
        text = "".join(text_of(choice) for choice in value["choices"][:1])
        return _completion([], [], value.get("usage") or {}, text)
    except (AttributeError, TypeError, LookupError, RecursionError):
        return _failed("malformed", body)


def _read(pieces: Sequence[Tuple[float, bytes]], keep_text: bool) -> Completion:
    stamps: List[float] = []
    textless: List[float] = []
    texts: List[str] = []
    usage: Dict[str, Any] = {}
    splitter = EventSplitter()
    for at, piece in pieces:
        for event in splitter.feed(piece):
            if event == b"[DONE]":
                continue
            chunk = _json_object(event)
            if chunk is None or chunk.get("error"):
                return _failed("malformed" if chunk is None else "in_stream", event)
            usage = chunk.get("usage") or usage
            for choice in (chunk.get("choices") or [])[:1]:
                text = text_of(choice)
                if text:
                    stamps.append(at)
                elif "role" not in (choice.get("delta") or {}):
                    textless.append(at)
                if keep_text:
                    texts.append(text)
    if splitter.has_rest:
        return _failed("malformed", b"the stream ended inside an event")
    return _completion(stamps, textless, usage, "".join(texts))


def text_of(choice: Dict[str, Any]) -> str:
    """The text that a choice brings: of a completion, a chat delta, a whole message, or a tool call as JSON."""
    source = choice.get("delta") or choice.get("message") or choice
    for name in _DELTAS:
        value = source.get(name)
        if value:
            return value if isinstance(value, str) else json.dumps(value)
    return ""


def error_message(body: bytes) -> str:
    """The server's own words in an error body, in at most 200 characters."""
    value = _json_object(body) or {}
    error = value.get("error", value)
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or body.decode("utf-8", "replace")).strip()[:200]


def _completion(stamps: List[float], textless: List[float], usage: Dict[str, Any], text: str) -> Completion:
    n_prompt, n_tokens = (_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    if not stamps and n_tokens:
        stamps = textless
    error = None if stamps else ("no_tokens", "the answer holds no token")
    first = stamps[0] if stamps else None
    return Completion(first, tuple(stamps), n_prompt, n_tokens, text, error)


def _count(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and value >= 0 else None


def _failed(kind: str, body: bytes) -> Completion:
    return Completion(None, (), None, None, "", (kind, error_message(body)))


def _json_object(text: bytes) -> Optional[Dict[str, Any]]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
