"""What the GPU guard's lines mean to who watches a launch."""

from opslib.domain.guard_log import parse_guard_line


def test_waiting_names_the_holders():
    """The first line of a wait says who holds the memory, later ones that it goes on."""
    first = parse_guard_line(
        "gpu-guard: waiting for 90.2 GiB (up to 300 s); free GPU 0: 36.1 of 95.0 GiB; held by "
        "GPU 0: pid 41 (vllm) 57.50 GiB; GPU 1: pid 42 (VLLM::Worker_TP1) 57.50 GiB"
    )
    assert first.is_waiting
    assert first.held_by == "vllm (pid 41, 57.5 GiB of GPU 0), VLLM::Worker_TP1 (pid 42, 57.5 GiB of GPU 1)"
    later = parse_guard_line("gpu-guard: still waiting after 10 s; free GPU 0: 36.1 of 95.0 GiB")
    assert (later.is_waiting, later.held_by) == (True, "")


def test_an_unseen_holder_is_said_as_the_guard_says_it():
    """Where nvidia-smi sees no process, its absence is what is told."""
    line = parse_guard_line(
        "gpu-guard: waiting for 90.2 GiB (up to 9 s); free GPU 0: 1.0 of 95.0 GiB; held by no process that nvidia-smi can see"
    )
    assert line.held_by == "no process that nvidia-smi can see"


def test_the_end_of_a_wait_is_no_wait():
    """Free, given up, or unable to tell: the guard waits no longer; other programs' lines are none of its."""
    for text, is_free in (
        ("GPUs 0, 1 have 90.2 GiB free each (waited 12 s)", True),
        ("gave up after 3 s: 90.2 GiB needed", False),
        ("can't tell how much", False),
    ):
        line = parse_guard_line(f"gpu-guard: {text}")
        assert (line.is_waiting, line.is_free) == (False, is_free)
    assert parse_guard_line("vllm is waiting for godot") is None
