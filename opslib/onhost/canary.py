"""The canary: asks a running engine the same few things as ever, so that its answers can be compared with earlier ones.

Arguments: port, prompts (texts), messages (of the one chat), plain_text, n_tokens, and optionally model (else the
first that the server names), top_logprobs, deadline_s, is_safe, and where the server is, as for the load generator.
Prints one JSON line: what the server says of itself, what lies in the model's directory, the continuation of each
prompt (greedy, with log-probabilities where the server gives them), and the log-probability of each token of the plain
text. One request at a time: a batch of another shape would change the last digits.

vLLM compiles the ranks of log-probabilities when they are first asked for (torch.compile in
vllm/v1/sample/ops/logprobs.py). On a host without a compiler that ends the engine (seen with 0.32 on a CPU), so there
only texts are asked for, unless `is_safe` says that nothing is compiled.
"""

import asyncio
import json
import os
import shutil
import time
from typing import Any, Dict, List, Optional, Tuple

from opslib.onhost.errorwords import error_message
from opslib.onhost.loadlevel import Load
from opslib.onhost.model_files import describe_model

DEFAULTS: Dict[str, Any] = {"model": "", "top_logprobs": 5, "deadline_s": 120.0, "is_safe": False}
NO_COMPILER = "not asked: no C++ compiler on this host, and without one vLLM dies of its first log-probability"
_WHERE = ("url", "address", "port", "ca_file", "api_key")  # as the load generator takes them


def main(arguments: Dict[str, Any]) -> int:
    """Asks and prints; what the server refuses is part of the answer, so the exit status is 0."""
    print(json.dumps(asyncio.run(_ask({**DEFAULTS, **arguments}))), flush=True)
    return 0


async def _ask(options: Dict[str, Any]) -> Dict[str, Any]:
    server = Server(options)
    served = await server.served()
    model = options["model"] or served.get("id") or ""
    root = str(served.get("root") or "")
    version, _ = await server.get("/version")
    prompts = [await server.continuation(model, prompt) for prompt in options["prompts"]]
    chat = await server.chat(model, options["messages"])
    plain, plain_error = await server.prompt_logprobs(model, options["plain_text"])
    answer = {
        "model": model,
        "root": root,
        "engine": str(version.get("version") or ""),
        "files": describe_model(root),
        "continuations": [*prompts, chat],
        "plain_logprobs": plain,
        "plain_error": plain_error,
        "plain_tokens": await server.tokens(model, {"prompt": options["plain_text"]}),
        "chat_tokens": await server.tokens(model, {"messages": options["messages"]}),
    }
    server.close()
    return answer


class Server:
    """The engine, asked over one connection."""

    def __init__(self, options: Dict[str, Any]) -> None:
        self.options = options
        self.load = Load({name: value for name, value in options.items() if name in _WHERE})
        self.connection = self.load.connection()
        self.ends_at = time.monotonic() + float(options["deadline_s"])
        self.gives_logprobs = bool(options["is_safe"]) or has_compiler()

    def close(self) -> None:
        """Drop the connection."""
        self.connection.close()

    async def get(self, path: str) -> Tuple[Dict[str, Any], str]:
        """The JSON object under `path` ({} without one), and what is wrong."""
        return await self._exchange("GET", path, b"")

    async def post(self, path: str, body: Dict[str, Any]) -> Tuple[Dict[str, Any], str]:
        """The answer to a body, and what is wrong: the HTTP status and the server's own words."""
        return await self._exchange("POST", path, json.dumps(body).encode())

    async def _exchange(self, method: str, path: str, body: bytes) -> Tuple[Dict[str, Any], str]:
        left_s = max(0.1, self.ends_at - time.monotonic())
        exchange = await self.connection.ask(method, self.load.path(path), body, timeout_s=left_s)
        if exchange.error is not None:
            return {}, "%s: %s" % exchange.error
        if exchange.status != 200:
            return {}, "http_%d: %s" % (exchange.status, error_message(exchange.body))
        try:
            value = json.loads(exchange.body)
        except (ValueError, RecursionError):
            return {}, "malformed: no JSON"
        return (value, "") if isinstance(value, dict) else ({}, "malformed: no JSON object")

    async def served(self) -> Dict[str, Any]:
        """The first model that the server names."""
        value, _ = await self.get("/v1/models")
        models = value.get("data")
        first = models[0] if isinstance(models, list) and models else {}
        return first if isinstance(first, dict) else {}

    async def continuation(self, model: str, prompt: str) -> Dict[str, Any]:
        """How the model goes on, greedily; without log-probabilities where the server refuses to give them."""
        body = {"model": model, "prompt": prompt, **self._greedy()}
        wanted = {"logprobs": self.options["top_logprobs"]} if self.gives_logprobs else {}
        value, error = await self.post("/v1/completions", {**body, **wanted})
        if error.startswith("http_4") and wanted:
            value, error = await self.post("/v1/completions", body)
        choice = _choice(value)
        logprobs = choice.get("logprobs") or {}
        tops = logprobs.get("top_logprobs") or []
        return {
            **_ended(prompt, str(choice.get("text") or ""), choice, error),
            "tokens": [str(token) for token in logprobs.get("tokens") or []],
            "logprobs": _numbers(logprobs.get("token_logprobs") or []),
            "tops": [_clean(top) for top in tops],
        }

    async def chat(self, model: str, messages: List[Dict[str, str]]) -> Dict[str, Any]:
        """The same for a conversation, which goes through the model's chat template."""
        body = {"model": model, "messages": messages, **self._greedy()}
        wanted: Dict[str, Any] = {}
        if self.gives_logprobs:
            wanted = {"logprobs": True, "top_logprobs": self.options["top_logprobs"]}
        value, error = await self.post("/v1/chat/completions", {**body, **wanted})
        if error.startswith("http_4") and wanted:
            value, error = await self.post("/v1/chat/completions", body)
        choice = _choice(value)
        content = (choice.get("logprobs") or {}).get("content") or []
        message = choice.get("message") or {}
        text = str(message.get("content") or message.get("reasoning") or message.get("reasoning_content") or "")
        return {
            **_ended("(chat)", text, choice, error),
            "tokens": [str(entry.get("token")) for entry in content],
            "logprobs": _numbers([entry.get("logprob") for entry in content]),
            "tops": [_clean(_pairs(entry.get("top_logprobs") or [])) for entry in content],
        }

    def _greedy(self) -> Dict[str, Any]:
        return {"max_tokens": int(self.options["n_tokens"]), "temperature": 0, "seed": 0, "stream": False}

    async def prompt_logprobs(self, model: str, text: str) -> Tuple[List[Optional[float]], str]:
        """The log-probability of each token of a text but the first (vLLM's `prompt_logprobs`); [] and why not."""
        if not self.gives_logprobs:
            return [], NO_COMPILER
        body = {"model": model, "prompt": text, **self._greedy(), "max_tokens": 1, "prompt_logprobs": 0}
        value, error = await self.post("/v1/completions", body)
        entries = _choice(value).get("prompt_logprobs")
        if error or not isinstance(entries, list):
            return [], error or "the server gives no prompt_logprobs"
        first = [next(iter(entry.values()), None) if isinstance(entry, dict) else None for entry in entries[1:]]
        return _numbers([entry.get("logprob") if isinstance(entry, dict) else entry for entry in first]), ""

    async def tokens(self, model: str, what: Dict[str, Any]) -> List[int]:
        """The token ids of a prompt or a conversation (`/tokenize`); [] where the server has no such route."""
        value, _ = await self.post("/tokenize", {"model": model, **what})
        tokens = value.get("tokens")
        return [token for token in tokens if isinstance(token, int)] if isinstance(tokens, list) else []


def has_compiler() -> bool:
    """Whether torch.compile finds a C++ compiler on this host."""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "c++", "clang++"))


def _choice(value: Dict[str, Any]) -> Dict[str, Any]:
    choices = value.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    return first if isinstance(first, dict) else {}


def _ended(prompt: str, text: str, choice: Dict[str, Any], error: str) -> Dict[str, Any]:
    return {"prompt": prompt, "text": text, "finish_reason": choice.get("finish_reason"), "error": error}


def _numbers(values: List[Any]) -> List[Optional[float]]:
    return [round(float(value), 5) if isinstance(value, (int, float)) else None for value in values]


def _pairs(entries: List[Dict[str, Any]]) -> Dict[Any, Any]:
    return {entry.get("token"): entry.get("logprob") for entry in entries}


def _clean(top: Any) -> Dict[str, float]:
    known = top.items() if isinstance(top, dict) else ()
    return {str(token): round(float(value), 5) for token, value in known if isinstance(value, (int, float))}
