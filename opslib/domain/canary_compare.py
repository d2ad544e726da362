"""Two fingerprints of the same weights: the same, a difference that has an explanation, or damage."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from opslib.domain.canary import (
    MAX_EXPLAINED_NATS,
    TIE_FACTOR,
    CanaryReport,
    Continuation,
    Fingerprint,
    Verdict,
    check_sanity,
    tolerance_nats,
)
from opslib.domain.states import CheckResult, State

_NOTICED_NATS = 1e-4  # what is printed with five digits may differ in the last one


class Parting(NamedTuple):
    """Where two continuations part: the prompt, the place, both tokens, and how far apart they were."""

    prompt: str
    place: int
    before: str
    now: str
    margin_nats: float | None  # by which the earlier engine preferred its own token; None: not known

    def __str__(self) -> str:
        margin = "" if self.margin_nats is None else f", preferred by {self.margin_nats:.2f} nats"
        return f"{self.prompt!r}, token {self.place + 1}: {self.now!r} instead of {self.before!r}{margin}"


class Distance(NamedTuple):
    """How far two fingerprints are apart."""

    mean_nats: float | None  # per token that both were asked about; None: no log-probabilities to compare
    partings: tuple[Parting, ...]
    endings: tuple[str, ...]  # same tokens, another end


def judge_canary(now: Fingerprint, kept: Sequence[Fingerprint]) -> CanaryReport:
    """What a fingerprint says beside those kept of the same weights (the newest last).

    Compared is the one of the same dtype and engine, else the newest; without one the plain text alone is judged.
    """
    sanity = check_sanity(now)
    known = [each for each in kept if each.model_digest == now.model_digest and now.model_digest]
    alike = [each for each in known if each.key == now.key]
    failed = [each.error for each in now.continuations if each.error]
    if len(failed) == len(now.continuations):
        said = f"the canary got no answer: {failed[0] if failed else 'nothing was asked'}"
        return _report(now, "unknown", State.UNKNOWN, said, (sanity,))
    if not known:
        return _first(now, sanity)
    return _compared(now, (alike or known)[-1], sanity)


def _first(now: Fingerprint, sanity: CheckResult) -> CanaryReport:
    if sanity.state is State.CRITICAL:
        return _report(now, "corrupt", State.CRITICAL, f"corrupt: {sanity.summary}", (sanity,))
    if sanity.state is State.UNKNOWN:
        said = f"first fingerprint of this model, of which nothing proves that it is sound: {sanity.summary}"
        return _report(now, "first", State.OK, said, (sanity,))
    return _report(now, "first", State.OK, f"first fingerprint of this model; {sanity.summary}", (sanity,))


def _compared(now: Fingerprint, before: Fingerprint, sanity: CheckResult) -> CanaryReport:
    changed = tuple(changes(before, now))
    retokenized = _differ(before.plain_tokens_digest, now.plain_tokens_digest)
    distance = measure_distance(before, now)
    verdict, state, summary = _verdict(now, before, distance, changed, sanity, is_retokenized=retokenized)
    return CanaryReport(
        state=state,
        verdict=verdict,
        summary=summary,
        evidence=(*map(str, distance.partings), *distance.endings),
        compared_with=f"{before.host} at {before.taken_at:%Y-%m-%d %H:%M} UTC"
        + (f" ({before.record})" * bool(before.record)),
        changed=changed,
        distance_nats=None if distance.mean_nats is None else round(distance.mean_nats, 5),
        parts_at=str(distance.partings[0]) if distance.partings else "",
        checks=(sanity,),
        fingerprint=now,
    )


def _verdict(
    now: Fingerprint,
    before: Fingerprint,
    distance: Distance,
    changed: Sequence[str],
    sanity: CheckResult,
    *,
    is_retokenized: bool,
) -> tuple[Verdict, State, str]:
    mean = distance.mean_nats
    tolerance = max(tolerance_nats(now.dtype), tolerance_nats(before.dtype))
    hard = [parting for parting in distance.partings if not _is_tie(parting, tolerance)]
    where = f"; it parts at {(hard or distance.partings)[0]}" if distance.partings else ""
    apart = "" if mean is None else f" ({mean:.4f} nats per token apart)"
    if sanity.state is State.CRITICAL:
        return "corrupt", State.CRITICAL, f"corrupt: {sanity.summary}{where}"
    if is_retokenized:
        why = f"explained difference: the tokenizer changed, so the rest was not compared; {'; '.join(changed)}"
        return "explained difference", State.WARNING, why
    is_near = (mean is None or mean <= tolerance) and not hard and not distance.endings
    is_equal = not distance.partings and not distance.endings and (mean or 0.0) <= _NOTICED_NATS
    if is_equal or (is_near and not changed):
        return "same", State.OK, f"same as the fingerprint kept{apart}{_at_a_tie(distance, where)}"
    if not changed:
        return "corrupt", State.CRITICAL, f"corrupt: nothing was changed, and it says something else{apart}{where}"
    named = "; ".join(changed)
    if mean is not None and mean > MAX_EXPLAINED_NATS:
        return "corrupt", State.CRITICAL, f"corrupt: more than {named} explains{apart}{where}"
    state = State.OK if is_near else State.WARNING
    return "explained difference", state, f"explained difference: {named}{apart}{where}"


def _at_a_tie(distance: Distance, where: str) -> str:
    return where.replace("it parts", "it parts, at a tie,") if distance.partings else ""


def changes(before: Fingerprint, now: Fingerprint) -> Iterator[str]:
    """What differs between the two engines, in words; a thing that one side could not tell is left out.

    Flags are told: there, "absent" is a value.
    """
    for name in dict.fromkeys((*before.context, *now.context)):
        old, new = before.context.get(name, ""), now.context.get(name, "")
        if old != new and (("_" in name and "." not in name) or (old and new)):
            yield f"{name} {old or 'absent'} -> {new or 'absent'}"
    if before.vocab_size and now.vocab_size and before.vocab_size != now.vocab_size:
        yield f"vocabulary {before.vocab_size:,} -> {now.vocab_size:,}"
    if _differ(before.chat_tokens_digest, now.chat_tokens_digest):
        yield "the conversation is put into other tokens (chat template)"
    if _differ(before.plain_tokens_digest, now.plain_tokens_digest):
        yield "plain text is put into other tokens (tokenizer)"


def measure_distance(before: Fingerprint, now: Fingerprint) -> Distance:
    """The larger of two mean distances: over the plain text, and over the continuations up to where they part."""
    plain = _gaps(before.plain_logprobs, now.plain_logprobs)
    gaps: list[float] = []
    partings: list[Parting] = []
    endings: list[str] = []
    by_prompt = {each.prompt: each for each in before.continuations}
    for new in now.continuations:
        old = by_prompt.get(new.prompt)
        if old is None or old.error or new.error:
            continue
        length = _common(old.tokens, new.tokens)
        gaps += _gaps(old.logprobs[:length], new.logprobs[:length])
        parting = _parting(old, new, length)
        if parting:
            partings.append(parting)
        elif old.finish_reason != new.finish_reason:
            endings.append(f"{new.prompt!r} ended with {old.finish_reason}, now with {new.finish_reason}")
    means = [sum(each) / len(each) for each in (plain, gaps) if each]
    return Distance(max(means, default=None), tuple(partings), tuple(endings))


def _gaps(old: Sequence[float | None], new: Sequence[float | None]) -> list[float]:
    if len(old) != len(new):
        return []
    return [abs(a - b) for a, b in zip(old, new, strict=True) if a is not None and b is not None]


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    pairs = enumerate(zip(old, new, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(old), len(new)))


def _parting(old: Continuation, new: Continuation, length: int) -> Parting | None:
    if not (old.tokens and new.tokens):  # no tokens told: the words are all there is
        return _parting_of_words(old, new)
    if length >= min(len(old.tokens), len(new.tokens)):
        return None  # one is the beginning of the other: `endings` tells
    margin = None
    top = old.tops[length] if length < len(old.tops) else {}
    own = old.logprobs[length] if length < len(old.logprobs) else None
    if own is not None and top:
        margin = own - top.get(new.tokens[length], min(top.values()))
    return Parting(old.prompt, length, old.tokens[length], new.tokens[length], margin)


def _parting_of_words(old: Continuation, new: Continuation) -> Parting | None:
    if old.text == new.text:
        return None
    before, now = old.text.split(" "), new.text.split(" ")
    place = _common(before, now)
    said = [words[place] if place < len(words) else "" for words in (before, now)]
    return Parting(old.prompt, place, said[0], said[1], None)


def _is_tie(parting: Parting, tolerance: float) -> bool:
    return parting.margin_nats is not None and parting.margin_nats <= TIE_FACTOR * tolerance


def _differ(old: str, new: str) -> bool:
    return bool(old and new and old != new)


def _report(
    now: Fingerprint, verdict: Verdict, state: State, summary: str, checks: tuple[CheckResult, ...]
) -> CanaryReport:
    return CanaryReport(state=state, verdict=verdict, summary=summary, checks=checks, fingerprint=now)
