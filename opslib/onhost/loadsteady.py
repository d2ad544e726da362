"""The steady part of a level, while (nearly) all of its streams are open: its beginning and end hold the whole down."""

from itertools import accumulate
from typing import Any, Callable, Mapping, Optional, Sequence, Tuple

Request = Mapping[str, Any]
STEADY_SHARE = 0.95


def steady_part(
    requests: Sequence[Request], concurrency: int, tokens_of: Callable[[Request, int], float]
) -> Optional[Tuple[float, float]]:
    """Tokens and seconds while at least 95 % of the streams were open, from one answer's end to another's, or None.

    A window that begins anywhere else holds tokens whose prefill lies before it: a full server would seem to grow.
    `tokens_of` says what a request with so many chunks counts for.

    >>> two = [{"sent_at_s": at, "ttft_ms": 1000, "itl_ms": [1000], "e2e_latency_ms": 2000} for at in (0, 0, 2, 2)]
    >>> steady_part(two, 2, lambda _, n_chunks: n_chunks)
    (4.0, 2.0)
    """
    answered = [request for request in requests if request["ttft_ms"] is not None]
    ends = [request["sent_at_s"] + request["e2e_latency_ms"] / 1000 for request in answered]
    moves = sorted([(request["sent_at_s"], 1) for request in answered] + [(end, -1) for end in ends])
    n_open = list(accumulate(move for _, move in moves))
    full = [number for number, count in enumerate(n_open) if count >= STEADY_SHARE * concurrency]
    if not full:
        return None
    last = moves[full[-1] + 1][0]
    first = min((end for end in ends if end >= moves[full[0]][0]), default=last)
    n_tokens = 0.0
    for request in answered:
        steps = [request["sent_at_s"] + step / 1000 for step in accumulate([request["ttft_ms"], *request["itl_ms"]])]
        n_inside = sum(first < at <= last for at in steps)
        n_tokens += n_inside * tokens_of(request, len(steps)) / len(steps)
    return n_tokens, float(last - first)
