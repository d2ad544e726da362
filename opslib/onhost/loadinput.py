"""What is asked: prompts of wanted lengths in the server's own tokens, from a list, or with shared beginnings."""

import json
import os
import random
import time
from typing import Any, Awaitable, Callable, Dict, List, Optional, Tuple

from opslib.onhost.completions import WORDS, body_of, read_whole
from opslib.onhost.exchange import Exchange
from opslib.onhost.loadshape import average, draw

Ask = Callable[[str, bytes], Awaitable[Optional[Exchange]]]

N_SALT_WORDS = 16  # as many tokens as a block of the prefix cache: no two prompts share one
FIND_OUT_S = 2.0
MIN_WORDS = 12
_CALIBRATION = (32, 96)
_FIRST = WORDS[0] + " "  # a first word has no blank before it, so it may be another token: always the same one


class Inputs:
    """Makes request bodies. Randomness is the run's own, so that no prompt was ever sent before.

    Options: input_tokens and output_tokens (numbers or distributions, see `draw`), prompts (a list of {prompt or
    messages, output_tokens}), prefix_tokens with n_prefixes and shares_prefix, endpoint, has_salt.
    """

    def __init__(self, options: Dict[str, Any], model: str) -> None:
        self.options = options
        self.model = model
        self.exactness = "unknown"  # how prompt lengths were found: tokenize, usage, unknown
        self.dropped: List[str] = []  # fields that the server refuses
        self.rng = random.Random("%s-%s" % (options["seed"], os.urandom(8).hex()))  # noqa: S311 - words, not keys
        self._words = list(WORDS)
        self._per_word, self._overhead = 1.0, 0.0
        self._n_taken = 0
        n_prefixes = int(options.get("n_prefixes") or 1) if options.get("prefix_tokens") else 0
        self._prefix_seeds = [self.rng.random() for _ in range(n_prefixes)]

    async def find_lengths(self, ask: Ask) -> None:
        """Learns how many tokens words make here: from /tokenize, else from the usage of two short answers."""
        if self.options.get("prompts"):
            return
        if not await self._by_tokenize(ask):
            await self._by_usage(ask)

    def body(self, level: Dict[str, Any], *, n_tokens: Optional[int] = None) -> bytes:
        """The next request of a level; `n_tokens` instead of the answer's length, for a warm-up."""
        prompt, own_tokens = self._next(level)
        wanted = own_tokens or draw(level.get("output_tokens") or self.options["output_tokens"], self.rng)
        return body_of(
            self.options["endpoint"], self.model, prompt, n_tokens or wanted, stream=True, without=self.dropped
        )

    def short_body(self, n_words: int, n_tokens: int) -> bytes:
        """A request of a few words that is none of the load, to see what the server makes of it."""
        text = _FIRST + self._some(n_words, self.rng)
        return body_of(self.options["endpoint"], self.model, text, n_tokens, stream=True, without=self.dropped)

    def _next(self, level: Dict[str, Any]) -> Tuple[Any, Optional[int]]:
        prompts = self.options.get("prompts")
        if not prompts:
            n_tokens = draw(level.get("input_tokens") or self.options["input_tokens"], self.rng)
            return self._text(n_tokens), None
        entry = prompts[self._n_taken % len(prompts)]
        self._n_taken += 1
        if entry.get("messages"):
            return entry["messages"], entry.get("output_tokens")
        salt = self._some(N_SALT_WORDS, self.rng) + " " if self.options.get("has_salt", True) else ""
        return salt + entry["prompt"], entry.get("output_tokens")

    def _text(self, n_tokens: int) -> str:
        """Words of about `n_tokens`; a shared beginning is drawn again from its own seed."""
        n_prefix = int(self.options.get("prefix_tokens") or 0)
        head = ""
        if self._prefix_seeds:
            n_prefix = min(n_prefix, n_tokens)
            is_shared = self.options.get("shares_prefix", True)
            seed = self._prefix_seeds[self._n_taken % len(self._prefix_seeds)] if is_shared else self.rng.random()
            self._n_taken += 1
            head = self._some(max(1, int(n_prefix / self._per_word)), random.Random(seed)) + " "  # noqa: S311
        rest = (n_tokens - self._overhead - (n_prefix if head else 0)) / self._per_word
        return _FIRST + head + self._some(max(1, int(rest + 1e-6)), self.rng)

    def _some(self, count: int, rng: random.Random) -> str:
        return " ".join(rng.choices(self._words, k=count))

    async def _by_tokenize(self, ask: Ask) -> bool:
        """Keeps the words that are one token each; the length of a prompt is then exact, which one prompt shows."""
        before = await self._count(ask, _FIRST.strip())
        if before is None:
            return False
        ends_at = time.perf_counter() + FIND_OUT_S
        single = []
        for word in WORDS:
            if time.perf_counter() > ends_at:
                break
            count = await self._count(ask, _FIRST + word)
            if count is not None and count == before + 1:
                single.append(word)
        if len(single) >= MIN_WORDS:
            self._words = single
        wanted = max(64, average(self.options["input_tokens"]))
        count = await self._count(ask, _FIRST + self._some(wanted, self.rng))
        if len(single) >= MIN_WORDS and count is not None:
            self._overhead = count - wanted
            if abs(self._overhead) <= 64:
                self.exactness = "tokenize"
                return True
        self._words = list(WORDS)
        return self._fit([(n, await self._count(ask, _FIRST + self._some(n, self.rng))) for n in _CALIBRATION])

    async def _count(self, ask: Ask, text: str) -> Optional[int]:
        asked: Dict[str, Any] = {"model": self.model, "prompt": text}
        if self.options["endpoint"].endswith("/chat/completions"):
            asked = {"model": self.model, "messages": [{"role": "user", "content": text}]}
        exchange = await ask("/tokenize", json.dumps(asked).encode())
        try:
            return int(json.loads(exchange.body)["count"]) if exchange is not None else None
        except (ValueError, RecursionError, LookupError, TypeError):
            return None

    async def _by_usage(self, ask: Ask) -> None:
        counts = []
        for n_words in _CALIBRATION:
            text = _FIRST + self._some(n_words, self.rng)
            body = body_of(self.options["endpoint"], self.model, text, 1, stream=False, without=self.dropped)
            exchange = await ask(self.options["endpoint"], body)
            counts.append((n_words, read_whole(exchange.body).prompt_tokens if exchange is not None else None))
        self._fit(counts)

    def _fit(self, counts: List[Tuple[int, Optional[int]]]) -> bool:
        """A straight line through two lengths."""
        (few_words, few), (many_words, many) = counts
        if few is None or many is None or many <= few:
            return False
        self._per_word = (many - few) / (many_words - few_words)
        self._overhead = few - few_words * self._per_word
        self.exactness = "usage"
        return True
