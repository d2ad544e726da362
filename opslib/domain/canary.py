"""What an engine answered to the canary's questions, kept as a fingerprint and compared with an earlier one."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from opslib.domain.states import CheckResult, State, Value

Verdict = Literal["first", "same", "explained difference", "corrupt", "unknown"]

PROMPTS = (
    "The capital of France is",
    "1, 2, 3, 4, 5, 6, 7,",
    "def add(a, b):\n    return",
    "Water boils at a temperature of",
)
MESSAGES = ({"role": "user", "content": "Which colour is the sky on a clear day? Answer with one word."},)
# Universal Declaration of Human Rights, articles 1 and 2: every model has read it often.
PLAIN_TEXT = (
    "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience and "
    "should act towards one another in a spirit of brotherhood. Everyone is entitled to all the rights and freedoms "
    "set forth in this Declaration, without distinction of any kind, such as race, colour, sex, language, religion, "
    "political or other opinion, national or social origin, property, birth or other status."
)
N_TOKENS = 24

# Mean distance in nats per token that two runs of the same engine may have: rounding, and the order of a sum.
TOLERANCE_NATS = {"float32": 0.005, "float16": 0.02, "bfloat16": 0.05, "fp8": 0.08}
OTHER_TOLERANCE_NATS = 0.1  # 8 and 4 bits
TIE_FACTOR = 4  # two tokens nearer than this many tolerances are a tie, which rounding decides
MAX_EXPLAINED_NATS = 0.5  # 4-bit weights differ from their 16-bit source by 0.1 to 0.2: more is no rounding
CHANCE_SHARE = 0.65  # of ln(vocabulary): sound models find this text likelier by far, all-zero logits not at all
MIN_VOCABULARY = 8000  # below it are bytes and toys, of which plain text tells little
BELOW_CHANCE_NATS = 0.5
MIN_SPREAD_NATS = 1e-3  # all tokens equally likely: the logits are constant


class Continuation(Value):
    """How the model went on after one prompt; without log-probabilities where the server gave none."""

    prompt: str
    text: str = ""
    finish_reason: str | None = None
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float | None, ...] = ()
    tops: tuple[Mapping[str, float], ...] = ()
    error: str = ""


class Fingerprint(Value):
    """What one engine answered, and what it ran with; log-probabilities in nats."""

    taken_at: datetime
    host: str = ""
    record: str = ""  # the folder of the run that took it
    model: str
    model_digest: str  # which weights they should be, not what they are
    dtype: str
    engine: str
    context: Mapping[str, str] = {}  # what may change the last digits, by name
    vocab_size: int | None = None
    template_digest: str = ""
    plain_tokens_digest: str = ""
    chat_tokens_digest: str = ""
    plain_logprobs: tuple[float | None, ...] = ()
    plain_error: str = ""
    continuations: tuple[Continuation, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is kept under: which weights, which dtype, which engine."""
        return (self.model_digest, self.dtype, self.engine)


class CanaryReport(Value):
    """Whether a model says what it should: the verdict, what it rests on, and what it was compared with."""

    state: State
    verdict: Verdict
    summary: str
    evidence: tuple[str, ...] = ()
    compared_with: str = ""  # whose: host, time, record
    changed: tuple[str, ...] = ()
    distance_nats: float | None = None
    parts_at: str = ""
    checks: tuple[CheckResult, ...] = ()
    fingerprint: Fingerprint


def canary_arguments() -> dict[str, Any]:
    """What the on-host program is asked to ask."""
    return {"prompts": list(PROMPTS), "messages": list(MESSAGES), "plain_text": PLAIN_TEXT, "n_tokens": N_TOKENS}


def read_answer(
    answer: Mapping[str, Any], *, flags: Mapping[str, str], gpus: Sequence[str], host: str, taken_at: datetime
) -> Fingerprint:
    """The fingerprint in what the on-host program printed; `flags` are those of the running engine."""
    files = answer["files"]
    precision = _dtype(flags.get("--dtype", ""), str(files.get("dtype") or ""))
    quantization = flags.get("--quantization") or str(files.get("quantization") or "")
    context = {
        "engine": str(answer["engine"]),
        "dtype": precision,
        "quantization": quantization,
        "GPUs": ", ".join(sorted(set(gpus))),
        "config.json": str(files.get("config_digest") or "")[:12],
        "generation_config.json": str(files.get("generation_digest") or "")[:12],
        "chat template": str(files.get("template_digest") or "")[:12],
        **{flag.lstrip("-").replace("-", "_"): flags.get(flag, "") for flag in NUMERIC_FLAGS},
    }
    return Fingerprint(
        taken_at=taken_at,
        host=host,
        model=answer["model"],
        model_digest=str(files.get("model_digest") or ""),
        dtype=quantization or precision,
        engine=str(answer["engine"]),
        context=context,
        vocab_size=files.get("vocab_size"),
        template_digest=str(files.get("template_digest") or ""),
        plain_tokens_digest=_digest(answer["plain_tokens"]),
        chat_tokens_digest=_digest(answer["chat_tokens"]),
        plain_logprobs=answer["plain_logprobs"],
        plain_error=answer["plain_error"],
        continuations=[Continuation.model_validate(each) for each in answer["continuations"]],
    )


# Flags that change the order of sums, the precision or what is said, beside --dtype and --quantization.
NUMERIC_FLAGS = (
    "--tensor-parallel-size",
    "--pipeline-parallel-size",
    "--data-parallel-size",
    "--enable-expert-parallel",
    "--kv-cache-dtype",
    "--enforce-eager",
    "--attention-backend",
    "--compilation-config",
    "--speculative-config",
    "--hf-overrides",
    "--override-generation-config",
    "--chat-template",
    "--tokenizer",
    "--load-format",
    "--lora-modules",
)
_DTYPES = {"half": "float16", "float": "float32"}


def _dtype(flag: str, of_config: str) -> str:
    """The dtype that the engine computes in.

    >>> _dtype("auto", "torch.bfloat16"), _dtype("half", "bfloat16")
    ('bfloat16', 'float16')
    """
    chosen = of_config if flag in ("", "auto") else flag
    name = chosen.removeprefix("torch.")
    return _DTYPES.get(name, name) or "auto"


def _digest(tokens: Sequence[int]) -> str:
    return hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()[:16] if tokens else ""


def check_sanity(now: Fingerprint) -> CheckResult:
    """Whether plain English is as likely to this model as to any that was trained; unknown without `prompt_logprobs`.

    Critical: numbers that are none, all tokens equally likely (constant logits), less likely than by chance, or nearer
    to chance than to language (mean below 65 % of -ln(vocabulary)).
    """
    known = [value for value in now.plain_logprobs if value is not None]
    if "Out of range float" in now.plain_error or any(not math.isfinite(value) for value in known):
        return _sanity(State.CRITICAL, "the log-probabilities of plain text are not numbers (NaN)")
    if not known:
        return _sanity(State.UNKNOWN, f"plain text was not judged: {now.plain_error or 'no log-probabilities'}")
    mean = sum(known) / len(known)
    chance = -math.log(now.vocab_size) if now.vocab_size else None
    said = f"plain text: {mean:.2f} nats per token" + ("" if chance is None else f" (by chance {chance:.2f})")
    fault = _implausible(mean, max(known) - min(known), chance, now.vocab_size or 0)
    return _sanity(State.CRITICAL if fault else State.OK, f"{said}: {fault}" if fault else said)


def _implausible(mean: float, spread: float, chance: float | None, vocab_size: int) -> str:
    """What no sound model does; "" where nothing is wrong."""
    if spread < MIN_SPREAD_NATS:
        return "the same for every token, the logits are constant"
    if chance is not None and mean < chance - BELOW_CHANCE_NATS:
        return "less likely than by chance"
    if chance is not None and vocab_size >= MIN_VOCABULARY and mean < CHANCE_SHARE * chance:
        return "nearer to chance than to language"
    return ""


def _sanity(state: State, summary: str) -> CheckResult:
    return CheckResult(name="plain_text", state=state, summary=summary)


def tolerance_nats(dtype: str) -> float:
    """The mean distance per token that rounding alone may make.

    >>> tolerance_nats("bfloat16"), tolerance_nats("compressed-tensors")
    (0.05, 0.1)
    """
    return TOLERANCE_NATS.get(dtype, OTHER_TOLERANCE_NATS)
