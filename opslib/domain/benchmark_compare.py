"""Two benchmarks of the same thing: better, same, worse or inconclusive, figure by figure, with their noise."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from opslib.domain.benchmark import BenchmarkLevel
from opslib.domain.benchmark_judge import COARSE_CPU_SHARE, COARSE_LOOP_LAG_MS, MAX_ERROR_SHARE
from opslib.domain.states import State, Value

Verdict = Literal["better", "same", "worse", "inconclusive"]

MIN_REPEATS = 3
N_RESAMPLES = 2000
LOAD_PARAMETERS = (  # those of a run that say under which load it measured
    "concurrency_levels",
    "max_concurrency",
    "request_rates",
    "requests_per_stream",
    "input_tokens",
    "output_tokens",
)
_SEED = 20261129
GATING = ("output_throughput", "ttft_ms.p50", "tpot_ms.p50")  # medians: a tail of a few dozen requests is chance
TOLD = ("request_throughput", "ttft_ms.p99", "itl_ms.p99", "e2e_latency_ms.p50", "e2e_latency_ms.p99")
_T_995 = {4: 4.604, 5: 4.032, 6: 3.707, 7: 3.499, 8: 3.355, 9: 3.250, 10: 3.169}  # Student's t, two-sided 99 %
_T_LARGE, _NORMAL = 2.9, 2.576


class Subject(Value):
    """What was measured, and under which load: two results are of the same thing if all of it is equal."""

    host: str = ""
    gpus: tuple[str, ...] = ()
    model_digest: str = ""
    engine: str = ""
    flags: Mapping[str, str] = {}
    load: Mapping[str, str] = {}

    def differences(self, other: "Subject") -> tuple[str, ...]:
        """In words what differs from this one in the other.

        >>> Subject(engine="0.15.1").differences(Subject(engine="0.16.0", host="gpu2"))
        ('host absent -> gpu2', 'engine 0.15.1 -> 0.16.0')
        """
        pairs = [
            ("host", self.host, other.host),
            ("GPUs", ", ".join(self.gpus), ", ".join(other.gpus)),
            ("weights", self.model_digest[:12], other.model_digest[:12]),
            ("engine", self.engine, other.engine),
        ]
        for mine, theirs in ((self.flags, other.flags), (self.load, other.load)):
            pairs += [(name, mine.get(name, ""), theirs.get(name, "")) for name in sorted({*mine, *theirs})]
        return tuple(f"{name} {old or 'absent'} -> {new or 'absent'}" for name, old, new in pairs if old != new)


class FigureChange(Value):
    """How one figure of one level moved: percent by which it is *worse*, with its 99 % interval (negative: better)."""

    level: str
    figure: str
    before: float
    now: float
    worse_percent: float
    low_percent: float | None = None
    high_percent: float | None = None
    verdict: Verdict
    reason: str = ""  # why it decides nothing, where the noise is not the reason
    is_gating: bool


class Comparison(Value):
    """A benchmark beside an earlier one, and what that means for the run."""

    state: State
    verdict: Verdict
    summary: str
    baseline: str = ""  # the record it is compared with; "": none
    differences: tuple[str, ...] = ()  # what else changed: then nothing is gated
    threshold_percent: float
    changes: tuple[FigureChange, ...] = ()


def compare_levels(
    before: Sequence[BenchmarkLevel],
    now: Sequence[BenchmarkLevel],
    *,
    threshold_percent: float = 10.0,
    on_worse: State = State.WARNING,
    baseline: str = "",
    differences: Sequence[str] = (),
) -> Comparison:
    """Compares levels of the same name; `on_worse` is the state of a comparison that found something worse.

    A figure is *worse* if it moved by more than the threshold and its interval excludes no change, *same* if the whole
    interval lies within the threshold, else *inconclusive*. Where something else differs, nothing is gated: it says how
    much, and what was changed.
    """
    known = {level.name: level for level in before}
    changes = [
        change
        for level in now
        if level.name in known
        for figure in (*GATING, *TOLD)
        if (change := compare_figure(known[level.name], level, figure, threshold_percent)) is not None
    ]
    verdict = _overall([change.verdict for change in changes if change.is_gating])
    words = _words(verdict, changes, threshold_percent) if changes else "no level in common"
    if differences:
        words = f"{words}, with other things changed: {'; '.join(differences)}"
    return Comparison(
        state=on_worse if verdict == "worse" and not differences else State.OK,
        verdict=verdict,
        summary=words,
        baseline=baseline,
        differences=tuple(differences),
        threshold_percent=threshold_percent,
        changes=tuple(changes),
    )


def compare_figure(
    before: BenchmarkLevel, now: BenchmarkLevel, figure: str, threshold_percent: float
) -> FigureChange | None:
    """How a figure moved between two runs of a level; None where one of them does not have it."""
    old, new = _values(before, figure), _values(now, figure)
    if not old or not new:
        return None
    change, low, high = worsening(old, new, is_more_better="throughput" in figure)
    reason = _unsound(before) or _unsound(now)
    verdict: Verdict = "inconclusive"
    if not reason and low is not None and high is not None:
        verdict = _verdict(change, low, high, threshold_percent)
    return FigureChange(
        level=now.name,
        figure=figure,
        before=round(float(np.mean(old)), 3),
        now=round(float(np.mean(new)), 3),
        worse_percent=round(change, 2),
        low_percent=None if low is None else round(low, 2),
        high_percent=None if high is None else round(high, 2),
        verdict=verdict,
        reason=reason,
        is_gating=figure in GATING,
    )


def _unsound(level: BenchmarkLevel) -> str:
    """Why a level is not about the service; a client that was only disturbed shows in the spread of its repeats."""
    if level.error_share > MAX_ERROR_SHARE:
        return f"{level.error_share:.0%} of the requests failed"
    if level.client_cpu_share > COARSE_CPU_SHARE or level.loop_lag_p99_ms > COARSE_LOOP_LAG_MS:
        return "the client, not the service, was measured"
    return ""


def worsening(
    old: Sequence[float], new: Sequence[float], *, is_more_better: bool
) -> tuple[float, float | None, float | None]:
    """By how many percent the new repeats are worse than the old ones, and the 99 % interval (None below three each).

    99 %, since some six figures are looked at together. Bootstrap over the repeats of both sides; since few repeats
    spread too little, deviations are widened to what Student's t allows them (n - 1 in the variance, and the quantile
    of that many degrees of freedom).
    """
    sign = -1.0 if is_more_better else 1.0
    a, b = np.log(np.maximum(np.asarray(old, float), 1e-9)), np.log(np.maximum(np.asarray(new, float), 1e-9))
    centre = float(b.mean() - a.mean())
    if min(len(a), len(b)) < MIN_REPEATS:
        return _percent(sign * centre), None, None
    rng = np.random.default_rng(_SEED)
    drawn = [rng.choice(side, (N_RESAMPLES, len(side))).mean(axis=1) for side in (a, b)]
    n = min(len(a), len(b))
    widening = math.sqrt(n / (n - 1)) * _T_995.get(len(a) + len(b) - 2, _T_LARGE) / _NORMAL
    moved = sign * (centre + widening * (drawn[1] - drawn[0] - centre))
    low, high = (float(value) for value in np.percentile(moved, [0.5, 99.5]))
    return _percent(sign * centre), _percent(low), _percent(high)


def _percent(log_ratio: float) -> float:
    return 100 * math.expm1(log_ratio)


def _values(level: BenchmarkLevel, figure: str) -> list[float]:
    """The figure of each repeat; a level that was run once has one."""
    if level.repeats:
        return [repeat[figure] for repeat in level.repeats if figure in repeat]
    name, _, part = figure.partition(".")
    value = getattr(level, name)
    value = getattr(value, part, None) if part else value
    return [] if value is None else [float(value)]


def _verdict(change: float, low: float, high: float, threshold: float) -> Verdict:
    if change > threshold and low > 0:
        return "worse"
    if change < -threshold and high < 0:
        return "better"
    return "same" if low > -threshold and high < threshold else "inconclusive"


def _overall(verdicts: Sequence[Verdict]) -> Verdict:
    for verdict in ("worse", "inconclusive", "better"):
        if verdict in verdicts:
            return verdict
    return "same" if verdicts else "inconclusive"


def _words(verdict: Verdict, changes: Sequence[FigureChange], threshold: float) -> str:
    gating = [change for change in changes if change.is_gating]
    if verdict == "same":
        return f"same as the last good run, within {threshold:g} %"
    found = [change for change in gating if change.verdict == verdict]
    if not found:
        return "inconclusive: no figure that is compared"
    if verdict == "inconclusive":
        unsound = next((change for change in found if change.reason), None)
        if unsound is not None:
            return f"inconclusive: {unsound.reason} at {unsound.level}"
        if any(change.low_percent is None for change in found):
            return f"inconclusive: an interval needs {MIN_REPEATS} repeats of valid levels on both sides"
        widest = max(found, key=lambda change: (change.high_percent or 0) - (change.low_percent or 0))
        where = f"{len(found)} of {len(gating)} figures"
        return f"inconclusive: too much noise for {threshold:g} % in {where}, {_said(widest)}"
    most = max(found, key=lambda change: abs(change.worse_percent))
    return f"{verdict} than the last good run in {len(found)} of {len(gating)} figures: {_said(most)}"


def _said(change: FigureChange) -> str:
    words = "worse" if change.worse_percent > 0 else "better"
    interval = ""
    if change.low_percent is not None and change.high_percent is not None:
        interval = f" ({change.low_percent:+.1f} to {change.high_percent:+.1f} %)"
    moved = f"{change.before:,.4g} -> {change.now:,.4g}, {abs(change.worse_percent):.1f} % {words}{interval}"
    return f"{change.figure} at {change.level} {moved}"
