"""What is asked of an OpenAI-compatible endpoint, and when each part of the answer came."""

import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from opslib.onhost.errorwords import error_message, is_page, json_object
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
_DELTAS = ("content", "reasoning", "reasoning_content", "tool_calls", "function_call", "refusal", "text")
_WHOLE = "the answer came whole, not as a stream: it has no time to the first token"
_CUT = "the server closed the connection before the answer's end"


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

    `prompt` is text, or a chat's messages; `without` names fields that this server refuses. `max_tokens` is then asked
    for under its other name, max_completion_tokens.
    """
    length = "max_completion_tokens" if "max_tokens" in without else "max_tokens"
    body: Dict[str, Any] = {"model": model, length: n_tokens, "temperature": 0, "stream": stream}
    if stream:
        body["ignore_eos"] = True
        body["stream_options"] = {"include_usage": True}
    if endpoint.endswith("/chat/completions"):
        body["messages"] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    else:
        body["prompt"] = prompt if isinstance(prompt, str) else "\n".join(str(each.get("content")) for each in prompt)
    return json.dumps({name: value for name, value in body.items() if name not in without}).encode()


def failed(kind: str, message: str) -> Completion:
    """No completion, for the reason of this class."""
    return Completion(None, (), None, None, "", (kind, message))


def read_completion(
    pieces: Sequence[Tuple[float, bytes]], *, keep_text: bool = False, needs_end: bool = False
) -> Completion:
    """Reads a streamed answer from its stamped bytes.

    The first token is the first chunk with non-empty content, reasoning, text or tool call, never the role chunk.
    Where no chunk has any text but usage counts tokens, chunks with a choice count instead. With `needs_end` (the
    connection's close was the only other sign) a stream without [DONE], finish_reason or usage was cut.
    """
    stream = _Stream(keep_text)
    try:
        error = stream.read(pieces)
    except (AttributeError, TypeError, LookupError, RecursionError) as failure:  # JSON of another shape
        error = ("malformed", error_message(str(failure).encode()))
    if error is None and needs_end and not stream.has_ended:
        error = ("cut", _CUT)
    return failed(*error) if error is not None else stream.completion()


def read_whole(body: bytes) -> Completion:
    """Reads an answer that was not streamed."""
    try:
        value = json_object(body) or {}
        text = "".join(text_of(choice) for choice in value["choices"][:1])
        return _completion([], [], value.get("usage") or {}, text)
    except (AttributeError, TypeError, LookupError, RecursionError):
        return failed("malformed", error_message(body))


class _Stream:
    """What the events of one answer come to."""

    def __init__(self, keep_text: bool) -> None:
        self.stamps: List[float] = []
        self.textless: List[float] = []
        self.texts: List[str] = []
        self.usage: Dict[str, Any] = {}
        self.has_ended = False
        self.keep_text = keep_text

    def read(self, pieces: Sequence[Tuple[float, bytes]]) -> Optional[Tuple[str, str]]:
        """Takes all events; gives the class and message of what is wrong. An answer may end without an empty line."""
        splitter = EventSplitter()
        n_events = 0
        for at, piece in pieces:
            for event in splitter.feed(piece):
                n_events += 1
                error = self._take(at, event)
                if error is not None:
                    return error
        rest = splitter.rest()
        if rest is not None:
            is_whole = rest == b"[DONE]" or json_object(rest) is not None
            return self._take(pieces[-1][0], rest) if is_whole else ("malformed", "the stream ended inside an event")
        if not n_events:
            return _not_streamed(b"".join(piece for _, piece in pieces))
        return ("malformed", error_message(splitter.stray)) if splitter.stray and not self.has_ended else None

    def completion(self) -> Completion:
        """The answer as it is now."""
        return _completion(self.stamps, self.textless, self.usage, "".join(self.texts))

    def _take(self, at: float, event: bytes) -> Optional[Tuple[str, str]]:
        if event == b"[DONE]":
            self.has_ended = True
            return None
        chunk = json_object(event)
        if chunk is None:
            return "malformed", error_message(event)
        if _is_error(chunk):
            return "in_stream", error_message(event)
        usage = chunk.get("usage")
        if usage and isinstance(usage, dict):
            self.usage = usage
            self.has_ended = self.has_ended or not chunk.get("choices")
        for choice in (chunk.get("choices") or [])[:1]:
            text = text_of(choice)
            self.has_ended = self.has_ended or bool(choice.get("finish_reason"))
            if text:
                self.stamps.append(at)
            elif "role" not in (choice.get("delta") or {}):
                self.textless.append(at)
            if self.keep_text:
                self.texts.append(text)
        return None


def _is_error(chunk: Dict[str, Any]) -> bool:
    """OpenAI's `error`, vLLM's older object of that name (ErrorResponse), or words where an answer should be."""
    has_words = "choices" not in chunk and "usage" not in chunk and bool(chunk.get("message") or chunk.get("detail"))
    return bool(chunk.get("error")) or chunk.get("object") == "error" or has_words


def _not_streamed(body: bytes) -> Optional[Tuple[str, str]]:
    """What an answer without any event is: None where it is nothing at all."""
    value = json_object(body)
    if value is not None:
        return ("not_streamed", _WHOLE) if value.get("choices") else ("malformed", error_message(body))
    return ("malformed", "no stream but %s" % error_message(body)) if is_page(body) else None


def text_of(choice: Dict[str, Any]) -> str:
    """The text that a choice brings: of a completion, a chat delta, a whole message, or a tool call as JSON."""
    source = choice.get("delta") or choice.get("message") or choice
    for name in _DELTAS:
        value = source.get(name)
        if value:
            return value if isinstance(value, str) else json.dumps(value)
    return ""


def _completion(stamps: List[float], textless: List[float], usage: Dict[str, Any], text: str) -> Completion:
    """Counts of nothing beside a text are no counts: some servers send a usage that nobody has filled in."""
    n_prompt, n_tokens = (_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    if not stamps and n_tokens:
        stamps = textless
    error = None if stamps else ("no_tokens", "the answer holds no token")
    first = stamps[0] if stamps else None
    return Completion(first, tuple(stamps), n_prompt or None, n_tokens or None, text, error)


def _count(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and value >= 0 else None
