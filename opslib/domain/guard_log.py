"""What the GPU guard (`onhost/gpu_guard`) says in the journal: whether it waits, and who holds the memory."""

import re

from opslib.domain.states import Value

_SAYS = re.compile(r"^gpu-guard: (?P<what>waiting for|still waiting|gave up|no GPU of that size|can't tell|GPUs )")
_HELD = re.compile(r"GPU (?P<gpu>\d+): pid (?P<pid>\d+) \((?P<name>[^)]*)\) (?P<gib>[\d.]+) GiB")
_WAITS = frozenset({"waiting for", "still waiting"})


class GuardLine(Value):
    """One line of the guard; `held_by` in words, "" where the line doesn't say."""

    is_waiting: bool
    is_free: bool = False  # there is room: the engine comes next
    held_by: str = ""


def parse_guard_line(text: str) -> GuardLine | None:
    """What a line of the journal says about the guard, None where another program speaks.

    >>> parse_guard_line("gpu-guard: waiting for 90.2 GiB (up to 300 s); held by GPU 2: pid 7 (vllm) 57.50 GiB").held_by
    'vllm (pid 7, 57.5 GiB of GPU 2)'
    """
    said = _SAYS.match(text)
    if said is None:
        return None
    _, _, held = text.partition("; held by ")
    holders = [
        f"{at['name']} (pid {at['pid']}, {float(at['gib']):.1f} GiB of GPU {at['gpu']})" for at in _HELD.finditer(held)
    ]
    what = said["what"]
    return GuardLine(is_waiting=what in _WAITS, is_free=what == "GPUs ", held_by=", ".join(holders) or held)
