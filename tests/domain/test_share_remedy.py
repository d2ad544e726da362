"""A smaller share of the GPU, solved from the figures of the failed start."""

from opslib.domain.engine_figures import read_figures
from opslib.domain.share_remedy import propose_share_remedy

GIB = 2**30
FREE = "Free memory on device cuda:0 (60.00/80.00 GiB) on startup is less than desired GPU memory utilization (0.9, 72.0 GiB)."
OOM = (
    "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 0.50 GiB is free."
)


def propose(cause, line, share=0.9):
    return propose_share_remedy(cause, share, read_figures([line]), gpu_total_bytes=80 * GIB)


def test_what_is_free_is_what_is_asked_for():
    """(60 - 0.5) of 80 GiB is 0.74, rounded down."""
    assert propose("gpu-memory/free-below-budget", FREE).value == "0.74"


def test_room_for_graphs_and_for_load():
    """What was missing, and the rest, stay outside the budget."""
    assert propose("gpu-memory/cuda-graphs", OOM).value == "0.84"
    assert propose("gpu-memory/while-serving", OOM).value == "0.86"


def test_no_figures_no_remedy():
    """Nothing is lowered "a bit"."""
    assert propose("gpu-memory/cuda-graphs", "nothing") is None
    assert propose("gpu-memory/free-below-budget", OOM) is None
    assert propose("gpu-memory/weights", OOM) is None
    assert propose("gpu-memory/free-below-budget", FREE, share=0.5) is None
