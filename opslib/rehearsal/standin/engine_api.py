"""The routes of the stand-in engine: OpenAI's completions, and what an operator asks."""

from __future__ import annotations

import json
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from opslib.rehearsal.standin.engine_http import Exchange, HttpError
from opslib.rehearsal.standin.engine_load import CHARACTERS_PER_TOKEN, Load, Request
from opslib.rehearsal.standin.engine_logprobs import VOCABULARY, Likelihood, token_ids
from opslib.rehearsal.standin.engine_reply import Reply

ROUTES = (  # in the order in which vLLM 0.15 lists them
    ("/openapi.json", "HEAD, GET"),
    ("/docs", "HEAD, GET"),
    ("/docs/oauth2-redirect", "HEAD, GET"),
    ("/redoc", "HEAD, GET"),
    ("/tokenize", "POST"),
    ("/detokenize", "POST"),
    ("/load", "GET"),
    ("/version", "GET"),
    ("/health", "GET"),
    ("/metrics", "GET"),
    ("/v1/models", "GET"),
    ("/ping", "GET"),
    ("/ping", "POST"),
    ("/invocations", "POST"),
    ("/v1/chat/completions", "POST"),
    ("/v1/responses", "POST"),
    ("/v1/completions", "POST"),
)


class Api:
    """Answers exchanges from the flags and the load."""

    def __init__(self, figures: Dict[str, Any], flags: Dict[str, Any], load: Load) -> None:
        self.figures = figures
        self.load = load
        self.likelihood = Likelihood(figures, flags)
        self.names: List[str] = list(flags.get("served_model_name") or [flags["model"]])
        self.root = str(flags["model"])
        self.max_model_len = int(flags["max_model_len"])
        self.keys: List[str] = list(flags.get("api_key") or [])
        self.started_at = int(time.time())
        self.n_requests = 0
        self.is_dead = False
        self.replies: List[Reply] = []
        self.flap_s = float(figures["serving"].get("health_flap_period_s") or 0)
        self.gets: Dict[str, Callable[[Exchange], None]] = {
            "/health": self.health,
            "/ping": self.health,
            "/version": lambda e: e.answer_json({"version": figures["version"]}),
            "/metrics": lambda e: e.answer(
                200, self.load.exposition(self.names[0]).encode(), "text/plain; version=0.0.4; charset=utf-8"
            ),
            "/v1/models": self.models,
            "/load": lambda e: e.answer_json({"server_load": len(self.load.running) + len(self.load.waiting)}),
        }
        self.posts: Dict[str, Callable[[Exchange], None]] = {
            "/v1/completions": lambda e: self.complete(e, is_chat=False),
            "/v1/chat/completions": lambda e: self.complete(e, is_chat=True),
            "/tokenize": self.tokenize,
        }

    def handle(self, exchange: Exchange) -> None:
        """Find the route; 404 and 405 as FastAPI answers them."""
        path = exchange.path.partition("?")[0]
        routes = {"GET": self.gets, "HEAD": self.gets, "POST": self.posts}.get(exchange.method, {})
        if path.startswith("/v1") and self.keys:
            given = exchange.headers.get("authorization", "")
            if given.partition(" ")[2] not in self.keys:
                exchange.answer_json({"error": "Unauthorized"}, 401)
                return
        if path in routes:
            routes[path](exchange)
        elif path in self.gets or path in self.posts:
            exchange.answer_json({"detail": "Method Not Allowed"}, 405)
        else:
            exchange.answer_json({"detail": "Not Found"}, 404)

    def health(self, exchange: Exchange) -> None:
        """200 with nothing, 503 when the engine is dead or the scenario lets it flap."""
        is_off = self.flap_s > 0 and int(time.monotonic() / self.flap_s) % 2 == 1
        exchange.answer(503 if self.is_dead or is_off else 200, b"")

    def models(self, exchange: Exchange) -> None:
        """The served names."""
        exchange.answer_json(
            {
                "object": "list",
                "data": [
                    {
                        "id": name,
                        "object": "model",
                        "created": self.started_at,
                        "owned_by": "vllm",
                        "root": self.root,
                        "parent": None,
                        "max_model_len": self.max_model_len,
                    }
                    for name in self.names
                ],
            }
        )

    def tokenize(self, exchange: Exchange) -> None:
        """How many tokens a prompt has here: four characters make one."""
        asked = read_body(exchange)
        tokens = token_ids(str(asked.get("prompt") or chat_text(asked.get("messages") or [])), VOCABULARY)
        document = {"count": len(tokens), "max_model_len": self.max_model_len, "tokens": tokens}
        exchange.answer_json({**document, "token_strs": None})

    def complete(self, exchange: Exchange, is_chat: bool) -> None:
        """Check the request as vLLM does and put it into the load."""
        asked = read_body(exchange)
        name = asked.get("model") or self.names[0]
        if name not in self.names:
            raise HttpError(404, "The model `%s` does not exist." % name, "model")
        prompts = [chat_prompt(asked)] if is_chat else completion_prompts(asked)
        limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise HttpError(400, "max_tokens must be at least 1, got %s." % json.dumps(limit), "max_tokens")
        limits = [self.room(tokens, limit, 16 if not is_chat else None) for _, tokens in prompts]
        self.n_requests += 1
        reply = Reply(
            exchange, asked, is_chat, str(name), "%s-%032x" % ("chatcmpl" if is_chat else "cmpl", self.serial())
        )
        reply.likelihood = self.likelihood
        reply.begin(len(prompts))
        self.replies = [other for other in self.replies if other.exchange.is_open and not other.is_complete]
        self.replies.append(reply)
        for index, (text, tokens) in enumerate(prompts):
            request = Request(
                text,
                tokens,
                limits[index],
                bool(asked.get("ignore_eos")),
                lambda piece, finish, index=index: reply.emit(index, piece, finish),  # type: ignore[misc]
            )
            reply.requests.append(request)
            exchange.on_close.append(lambda request=request: self.load.abort(request))  # type: ignore[misc]
            self.load.add(request)

    def fail_all(self) -> None:
        """The engine is dead: /health says so, and whatever is open fails."""
        self.is_dead = True
        for reply in self.replies:
            if reply.exchange.is_open and not reply.is_complete:
                reply.fail()

    def serial(self) -> int:
        """A number that no other request of this process has."""
        return (self.started_at << 64) + self.n_requests

    def room(self, prompt_tokens: int, asked: Optional[int], default: Optional[int]) -> int:
        """How many tokens may be made; HttpError 400 where the request is too long for the model."""
        limit = self.max_model_len
        if prompt_tokens >= limit:
            raise HttpError(
                400,
                "This model's maximum context length is %d tokens. However, your request has %d input tokens. Please "
                "reduce the length of the input messages." % (limit, prompt_tokens),
                "input_tokens",
            )
        if asked is not None and asked > limit - prompt_tokens:
            raise HttpError(
                400,
                "'max_tokens' or 'max_completion_tokens' is too large: %d. This model's maximum context length is %d "
                "tokens and your request has %d input tokens (%d > %d - %d)."
                % (asked, limit, prompt_tokens, asked, limit, prompt_tokens),
                "max_tokens",
            )
        return asked or min(default or limit, limit - prompt_tokens)


def read_body(exchange: Exchange) -> Dict[str, Any]:
    """The JSON object of a request; HttpError 400 where it is none."""
    try:
        asked = json.loads(exchange.body)
    except (ValueError, RecursionError) as error:
        place = getattr(error, "pos", 0)
        detail = {"type": "json_invalid", "loc": ("body", place), "msg": "JSON decode error", "input": {}}
        raise HttpError(400, str([{**detail, "ctx": {"error": getattr(error, "msg", str(error))}}])) from None
    if not isinstance(asked, dict):
        raise HttpError(
            400, "[{'type': 'model_attributes_type', 'loc': ('body',), 'msg': 'Input should be an object'}]"
        )
    return asked


def chat_text(messages: List[Any]) -> str:
    """The conversation as one text."""
    return "\n".join("[%s] %s" % (m.get("role"), m.get("content")) for m in messages if isinstance(m, dict))


def chat_prompt(asked: Dict[str, Any]) -> Tuple[str, int]:
    """The prompt of a chat and its tokens."""
    messages = asked.get("messages")
    if not isinstance(messages, list) or not messages:
        raise HttpError(400, "[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}]", "messages")
    text = chat_text(messages)
    return text, count_tokens(text)


def completion_prompts(asked: Dict[str, Any]) -> List[Tuple[str, int]]:
    """The prompts of a completion (text, list of texts, token ids) and their tokens."""
    prompt = asked.get("prompt")
    if isinstance(prompt, str):
        return [(prompt, count_tokens(prompt))]
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return [(" ".join(map(str, prompt)), len(prompt))]
    if isinstance(prompt, list) and prompt and all(isinstance(text, str) for text in prompt):
        return [(text, count_tokens(text)) for text in prompt]
    raise HttpError(400, "Either prompt or prompt_embeds must be provided and non-empty.", "prompt")


def count_tokens(text: str) -> int:
    """About what a tokenizer would say."""
    return max(1, -(-len(text) // CHARACTERS_PER_TOKEN))
