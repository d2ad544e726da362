"""How tokens become the response of the stand-in engine: whole or streamed, with log-probabilities where asked."""

from __future__ import annotations

import json
import time
from typing import Any, Dict, List, Optional

from opslib.rehearsal.standin.engine_http import Exchange, HttpError
from opslib.rehearsal.standin.engine_load import Request
from opslib.rehearsal.standin.engine_logprobs import VOCABULARY, Likelihood, token_ids


class Reply:
    """Turns tokens into the response, whole or streamed."""

    def __init__(self, exchange: Exchange, asked: Dict[str, Any], is_chat: bool, model: str, identity: str) -> None:
        self.exchange = exchange
        self.is_chat = is_chat
        self.is_stream = bool(asked.get("stream"))
        self.wants_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        self.is_complete = False
        self.requests: List[Request] = []
        self.likelihood: Optional[Likelihood] = None
        self.n_logprobs = wanted_logprobs(asked, is_chat)
        self.wants_prompt_logprobs = asked.get("prompt_logprobs") is not None
        self.texts: List[List[str]] = []
        self.finishes: List[Optional[str]] = []
        kind = "chat.completion" if is_chat else "text_completion"
        if is_chat and self.is_stream:
            kind = "chat.completion.chunk"
        self.base = {"id": identity, "object": kind, "created": int(time.time()), "model": model}
        self.head = json.dumps(self.base, separators=(",", ":"))[:-1].encode()

    def begin(self, n_choices: int) -> None:
        """Start the stream: for chats with a chunk that says only the role."""
        self.texts = [[] for _ in range(n_choices)]
        self.finishes = [None] * n_choices
        if self.is_stream:
            self.exchange.start_stream()
            if self.is_chat:
                delta = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
                self.send([{**delta, "finish_reason": None}])

    def emit(self, index: int, piece: str, finish: Optional[str]) -> None:
        """One more token of choice `index`."""
        if self.likelihood is not None and self.likelihood.is_garbage:
            piece = self.likelihood.word(piece, self.requests[index].prompt, len(self.texts[index]))
        self.texts[index].append(piece)
        self.finishes[index] = finish
        if self.is_stream:
            self.send([self.choice(index, piece, finish)])
        if all(self.finishes):
            self.finish()

    def choice(self, index: int, text: str, finish: Optional[str]) -> Dict[str, Any]:
        """A streamed choice."""
        content: Dict[str, Any] = {"delta": {"content": text}} if self.is_chat else {"text": text}
        return {"index": index, **content, "logprobs": None, "finish_reason": finish, "stop_reason": None}

    def send(self, choices: List[Dict[str, Any]], usage: Optional[Dict[str, int]] = None) -> None:
        """One event."""
        body = b',"choices":' + json.dumps(choices, separators=(",", ":")).encode()
        if usage is not None:
            body += b',"usage":' + json.dumps(usage, separators=(",", ":")).encode()
        self.exchange.send_event(self.head + body + b"}")

    def usage(self) -> Dict[str, int]:
        """Tokens of all choices."""
        prompt = sum(request.prompt_tokens for request in self.requests)
        made = sum(request.produced for request in self.requests)
        return {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}

    def finish(self) -> None:
        """All choices are complete."""
        self.is_complete = True
        if self.is_stream:
            if self.wants_usage:
                self.send([], self.usage())
            self.exchange.end_stream()
            return
        choices = []
        for index, pieces in enumerate(self.texts):
            text = "".join(pieces)
            content: Dict[str, Any] = {"text": text}
            if self.is_chat:
                content = {
                    "message": {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": []}
                }
            end: Dict[str, Any] = {"finish_reason": self.finishes[index], "stop_reason": None}
            choices.append({"index": index, **content, "logprobs": self.logprobs(index, pieces), **end})
            if self.wants_prompt_logprobs:
                choices[-1]["prompt_logprobs"] = self.prompt_logprobs(index)
        self.exchange.answer_json({**self.base, "choices": choices, "usage": self.usage()})

    def logprobs(self, index: int, tokens: List[str]) -> Optional[Dict[str, Any]]:
        """The log-probabilities of what was made, in the form of the route; None where nobody asked."""
        if self.n_logprobs is None or self.likelihood is None:
            return None
        chosen, tops = self.likelihood.made(self.requests[index].prompt, tokens, self.n_logprobs)
        if not self.is_chat:
            return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": tops}
        named = [[{"token": token, "logprob": value} for token, value in top.items()] for top in tops]
        rows = zip(tokens, chosen, named)
        return {"content": [{"token": token, "logprob": value, "top_logprobs": top} for token, value, top in rows]}

    def prompt_logprobs(self, index: int) -> Optional[List[Any]]:
        """How likely the prompt itself is."""
        text = self.requests[index].prompt
        return self.likelihood.prompt(text, token_ids(text, VOCABULARY)) if self.likelihood else None

    def fail(self) -> None:
        """500 with vLLM's words, in a stream as its last event."""
        self.is_complete = True
        error = HttpError(500, "EngineCore encountered an issue. See stack trace (above) for the root cause.")
        if self.is_stream:
            self.exchange.send_event(json.dumps(error.document()).encode())
            self.exchange.end_stream()
        else:
            self.exchange.answer_json(error.document(), 500)


def wanted_logprobs(asked: Dict[str, Any], is_chat: bool) -> Optional[int]:
    """How many alternatives the answer should give for each token; None for none."""
    if is_chat:
        return int(asked.get("top_logprobs") or 0) if asked.get("logprobs") else None
    wanted = asked.get("logprobs")
    return int(wanted) if isinstance(wanted, int) else None
