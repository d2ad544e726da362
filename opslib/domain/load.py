"""What load a benchmark puts on a service: its levels, what is asked, and when a sweep has seen enough."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from opslib.domain.benchmark import Slo
from opslib.domain.states import Value
from opslib.errors import BadParameter

MIN_REQUESTS = 4
_TIMES = ("timestamp", "time", "arrival_time", "offset_s")
_ANSWERERS = ("gpt", "assistant", "system", "chatgpt", "bard", "bing")  # who asks nothing, in ShareGPT's files
_TEXTS = ("prompt", "text", "input", "question", "instruction")


class Tokens(Value):
    """A distribution of lengths in tokens: `values` (with `weights`), evenly `low` to `high`, or normal, clipped."""

    values: tuple[int, ...] | None = None
    weights: tuple[float, ...] | None = None
    low: int | None = None
    high: int | None = None
    mean: float | None = None
    std: float = 0.0
    min: int = 1
    max: int = 1_000_000

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        kinds = [self.values is not None, self.low is not None and self.high is not None, self.mean is not None]
        if sum(kinds) != 1:
            raise ValueError("give values, or low and high, or mean (and std)")
        if self.low is not None and self.high is not None and not 0 < self.low <= self.high:
            raise ValueError("low must be above 0 and at most high")
        return self


class LevelShape(Value):
    """One level: a number of streams (closed loop), or an `arrival` of requests that wait for nobody (open loop).

    It ends after `n_requests` or `duration_s`. `rate` is requests per second; `burst` requests come at once, or
    `burstiness` below 1 clusters them (gamma); a ramp rises from `rate` to `to_rate`; a trace sends at `offsets_s`.
    """

    concurrency: int | None = Field(None, ge=1)
    arrival: Literal["constant", "poisson", "gamma", "burst", "ramp", "trace"] | None = None
    rate: float | None = Field(None, gt=0)
    to_rate: float | None = Field(None, gt=0)
    burst: int | None = Field(None, ge=1)
    burstiness: float | None = Field(None, gt=0)
    offsets_s: tuple[float, ...] | None = None
    n_requests: int | None = Field(None, ge=1)
    duration_s: float | None = Field(None, gt=0)
    ramp_s: float | None = Field(None, gt=0)
    input_tokens: int | None = Field(None, ge=1)
    output_tokens: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.concurrency is None) == (self.arrival is None):
            raise ValueError("a level has either a concurrency or an arrival")
        if self.arrival == "trace" and not self.offsets_s:
            raise ValueError("a trace needs offsets_s")
        if self.arrival not in (None, "trace") and self.rate is None:
            raise ValueError(f"arrival {self.arrival} needs a rate")
        if self.arrival == "ramp" and (self.to_rate is None or self.duration_s is None):
            raise ValueError("a ramp needs to_rate and duration_s")
        return self


class SweepBounds(Value):
    """When rising levels end: throughput gains less than `min_gain`, or errors or a p99 latency (ms) pass a bound."""

    max_concurrency: int = Field(256, ge=1)
    min_gain: float = 1.05
    max_error_share: float = 0.01
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_latency_ms: float | None = None


class Prompt(Value):
    """One prompt of a file: text, or a chat's messages, and how long its recorded answer was."""

    prompt: str = ""
    messages: tuple[Mapping[str, Any], ...] | None = None
    output_tokens: int | None = None


class LoadSpec(Value):
    """A whole load. Without `levels` it sweeps 1, 2, 4 ... up to `sweep.max_concurrency`.

    Prompts are random words of `input_tokens`, unless `prompts` are given; `prefix_tokens` of each are shared by the
    requests of one of `n_prefixes` sets (`shares_prefix` False: each has its own, the same load without a cache).
    """

    levels: tuple[LevelShape, ...] = ()
    sweep: SweepBounds | None = None
    requests_per_stream: int = Field(2, ge=1)  # of levels that name neither a count nor a duration
    repeats: int = Field(1, ge=1)
    input_tokens: int | Tokens = 256
    output_tokens: int | Tokens = 128
    prompts: tuple[Prompt, ...] = ()
    has_salt: bool = True  # random words before a file's prompts, so that no cache knows them
    prefix_tokens: int = Field(0, ge=0)
    n_prefixes: int = Field(1, ge=1)
    shares_prefix: bool = True
    warmup: int | None = Field(None, ge=0)  # requests before each level; None: as many as are open at once
    cooldown_s: float = 5.0
    request_timeout_s: float = 120.0
    read_timeout_s: float = 60.0
    seed: int = 0

    @property
    def slo(self) -> Slo | None:
        """The bounds of the sweep as an SLO, where it has any."""
        bounds = self.sweep.model_dump(include={"ttft_ms", "tpot_ms", "e2e_latency_ms"}) if self.sweep else {}
        return Slo(**bounds) if any(value is not None for value in bounds.values()) else None

    def arguments(self) -> dict[str, Any]:
        """What the load generator is told (opslib.onhost.loadgen)."""
        levels = self.levels or _doubling(self.sweep.max_concurrency if self.sweep else 1)
        return {
            **self.model_dump(mode="json", exclude={"levels", "requests_per_stream"}, exclude_none=True),
            "levels": [level.model_dump(mode="json", exclude_none=True) for level in levels],
            "n_requests": [self._count(level) for level in levels],
        }

    def _count(self, level: LevelShape) -> int:
        if level.n_requests is not None:
            return level.n_requests
        at_once = level.concurrency if level.concurrency is not None else round(10 * (level.rate or 1))
        return max(MIN_REQUESTS, self.requests_per_stream * at_once)


def closed_levels(concurrencies: Sequence[int]) -> tuple[LevelShape, ...]:
    """Closed-loop levels of so many streams."""
    return tuple(LevelShape(concurrency=concurrency) for concurrency in concurrencies)


def long_context_levels(points: Sequence[int], *, concurrency: int = 1, n_requests: int = 4) -> tuple[LevelShape, ...]:
    """One level for each prompt length in tokens."""
    return tuple(LevelShape(concurrency=concurrency, input_tokens=n, n_requests=n_requests) for n in points)


def parse_prompts(text: str) -> tuple[Prompt, ...]:
    """The prompts of a ShareGPT-like JSON list or a JSONL file; raises BadParameter where there is none.

    An entry is a string, {conversations: [{from, value}]} (a person's first turn asks), {messages}, or {prompt} under
    one of its usual names; output_tokens (or max_tokens) fixes the answer's length.

    >>> parse_prompts('[{"conversations": [{"from": "human", "value": "Hi"}]}]')[0].prompt
    'Hi'
    """
    text = text.removeprefix("\ufeff")
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        entries = [_json_line(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    entries = entries if isinstance(entries, list) else [entries]
    prompts = tuple(prompt for entry in entries if (prompt := _prompt_of(entry)) is not None)
    if not prompts:
        raise BadParameter("the prompt file holds no prompt", hint='one {"prompt": "..."} a line, or ShareGPT\'s JSON')
    return prompts


def parse_trace(text: str) -> tuple[float, ...]:
    r"""When requests were sent, in seconds: a number a line, or JSON lines with a timestamp; raises BadParameter.

    >>> parse_trace('10.5\n11\n'), parse_trace('{"timestamp": 3}')
    ((10.5, 11.0), (3.0,))
    """
    offsets = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if not line.strip():
            continue
        value = _json_line(number, line)
        found = next((value[name] for name in _TIMES if name in value), None) if isinstance(value, dict) else value
        if not isinstance(found, int | float) or isinstance(found, bool) or not math.isfinite(found):
            raise BadParameter(
                f"line {number} of the trace has no time", hint=f"a number, or one of {', '.join(_TIMES)}"
            )
        offsets.append(float(found))
    if not offsets:
        raise BadParameter("the trace is empty")
    return tuple(offsets)


def _doubling(largest: int) -> tuple[LevelShape, ...]:
    counts = [2**n for n in range(largest.bit_length()) if 2**n < largest]
    return closed_levels([*counts, largest])


def _json_line(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadParameter(f"line {number} is no JSON: {line.strip()[:60]!r}") from error


def _objects(value: Any) -> tuple[dict[str, Any], ...]:
    """The objects of a list, where it is one and holds nothing else."""
    is_list = isinstance(value, list) and all(isinstance(each, dict) for each in value)
    return tuple(value) if is_list else ()


def _prompt_of(entry: Any) -> Prompt | None:
    if isinstance(entry, str):
        return Prompt(prompt=entry) if entry.strip() else None
    if not isinstance(entry, dict):
        return None
    n_tokens = entry.get("output_tokens") or entry.get("max_tokens")
    n_tokens = n_tokens if isinstance(n_tokens, int) and n_tokens > 0 else None
    turns = _objects(entry.get("conversations"))
    if turns:
        asked = [turn for turn in turns if (turn.get("from") or turn.get("role")) not in _ANSWERERS]
        text = next((turn.get("value") or turn.get("content") or "" for turn in asked), "")
        return Prompt(prompt=str(text), output_tokens=n_tokens) if text else None
    messages = _objects(entry.get("messages"))
    if messages:
        return Prompt(messages=messages, output_tokens=n_tokens)
    text = next((entry[name] for name in _TEXTS if isinstance(entry.get(name), str) and entry[name].strip()), "")
    return Prompt(prompt=text, output_tokens=n_tokens) if text else None
