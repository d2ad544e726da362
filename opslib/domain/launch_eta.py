"""When a launch will be ready, reckoned from this host's earlier launches of the same model."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from statistics import median

from opslib.domain.launch_phases import FIRST_TOKEN, SERVING, PhaseSpan, launch_phases

Durations = Mapping[str, float]  # seconds by phase id, of one earlier launch
_WAITING = frozenset({"waiting_gpu", SERVING, FIRST_TOKEN, "stopping"})


def durations_of(spans: Iterable[PhaseSpan]) -> dict[str, float]:
    """The seconds of each phase that has ended, of one launch."""
    return {span.id: span.duration_s(span.ended_at) for span in spans if span.ended_at and span.id not in _WAITING}


def eta_s(spans: Sequence[PhaseSpan], earlier: Sequence[Durations], now: datetime) -> float | None:
    """Seconds until it serves; None without earlier launches, or once it does.

    Phases to come count with their median among the earlier launches; the present one with what its progress bar's
    rate says, else with what is left of its median.
    """
    current = spans[-1] if spans else None
    if not earlier or (current and current.id in _WAITING - {"waiting_gpu"}):
        return None
    order = [phase.id for phase in launch_phases()]
    at = order.index(current.id) if current else -1
    to_come = sum(_usual_s(earlier, phase_id) for phase_id in order[at + 1 :])
    return to_come + (_left_s(current, earlier, now) if current else 0.0)


def _left_s(span: PhaseSpan, earlier: Sequence[Durations], now: datetime) -> float:
    usual_s = _usual_s(earlier, span.id)
    rate = span.rate_per_s
    if rate and span.n_at and span.total and span.n is not None and span.n < span.total:
        return max(0.0, (span.total - span.n) / rate - (now - span.n_at).total_seconds())
    return max(0.0, usual_s - span.duration_s(now))


def _usual_s(earlier: Sequence[Durations], phase_id: str) -> float:
    return median([launch.get(phase_id, 0.0) for launch in earlier])
