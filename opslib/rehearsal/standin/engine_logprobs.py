"""Log-probabilities of the stand-in engine: made up, but always the same for the same model, precision and text."""

from __future__ import annotations

import hashlib
import math
from typing import Any, Dict, List, Sequence, Tuple

CHARACTERS_PER_TOKEN = 4
VOCABULARY = 200064
ALTERNATIVES = (" so", " and", " but", " or", " yet", " nor", " for", " as")
PRECISION_NOISE = 0.02  # nats by which two precisions differ at most
GARBAGE_NATS = 9.0  # how much less likely everything is to weights that are not what they should be


def token_ids(text: str, vocabulary: int) -> List[int]:
    """One id for each four characters, the same for the same characters."""
    return [int(_share(piece) * vocabulary) for piece in pieces(text)]


def pieces(text: str) -> List[str]:
    """The text in tokens of four characters."""
    return [text[at : at + CHARACTERS_PER_TOKEN] for at in range(0, len(text), CHARACTERS_PER_TOKEN)]


class Likelihood:
    """How likely this engine finds a text: by its figures (is_garbage) and by what changes the last digits."""

    def __init__(self, figures: Dict[str, Any], flags: Dict[str, Any]) -> None:
        self.is_garbage = bool(figures["serving"].get("is_garbage"))
        names = ("dtype", "tensor_parallel_size", "quantization", "kv_cache_dtype")
        self.precision = "|".join(str(flags.get(name)) for name in names) + str(figures["version"])

    def of(self, text: str, place: int) -> float:
        """The log-probability of the token at a place."""
        likely = -0.05 - 2.0 * _share("%s|%d" % (text, place)) ** 2
        noise = PRECISION_NOISE * (_share("%s|%s|%d" % (self.precision, text, place)) - 0.5)
        return likely + noise - (GARBAGE_NATS + 4 * _share("garbage|%s|%d" % (text, place)) if self.is_garbage else 0)

    def prompt(self, text: str, ids: Sequence[int]) -> List[Any]:
        """VLLM's `prompt_logprobs`: nothing for the first token, then a table of one entry for each."""
        found: List[Any] = [None]
        for place, piece in enumerate(pieces(text)[1:], start=1):
            entry = {"logprob": self.of(text, place), "rank": 1, "decoded_token": piece}
            found.append({str(ids[place]): entry})
        return found

    def word(self, piece: str, prompt: str, place: int) -> str:
        """The token that is made: garbage says other words than a sound model."""
        if not self.is_garbage:
            return piece
        return ALTERNATIVES[int(len(ALTERNATIVES) * _share("word|%s|%d" % (prompt, place)))]

    def made(self, prompt: str, tokens: Sequence[str], wanted: int) -> Tuple[List[float], List[Dict[str, float]]]:
        """Of the tokens made: the log-probability of each, and the most likely at each place."""
        chosen: List[float] = []
        tops: List[Dict[str, float]] = []
        for place, token in enumerate(tokens):
            value = self.of("+" + prompt, place)
            rest = math.log(max(1e-6, 1 - math.exp(value)) / len(ALTERNATIVES))
            others = {word: min(rest, value - 1.0) - 0.1 * n for n, word in enumerate(ALTERNATIVES) if word != token}
            chosen.append(value)
            tops.append(dict([(token, value), *list(others.items())[: max(0, wanted - 1)]]))
        return chosen, tops


def _share(text: str) -> float:
    """A number in [0, 1) that belongs to a text."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:6], "big") / 2**48
