"""What is added to a cause so that an operator knows whom it is about."""

import pytest

from opslib.domain.diagnosis import Diagnosis, Evidence, Invocation
from opslib.domain.diagnosis_quote import attempts_in_words, quote_decisive

KILLED = "Out of memory: Killed process 7 (VLLM::Worker_TP) total-vm:9kB, anon-rss:188743680kB, file-rss:0kB"


def diagnosis(cause, *evidence, **more):
    lines = tuple(Evidence(line=n, text=text, process=process) for n, (process, text) in enumerate(evidence))
    return Diagnosis(cause=cause, confidence="high", summary="", evidence=lines, **more)


def test_the_kernels_victim_is_named():
    """Of a kill for memory an operator reads the process, its id and what it held."""
    told = quote_decisive(diagnosis("host-memory/oom-killed", ("kernel", KILLED)))
    assert told == "The kernel killed VLLM::Worker_TP (pid 7), which held 180.0 GiB of main memory."


def test_other_causes_quote_their_line_and_its_speaker():
    """The kernel, a process or the journal says it, and a long line is cut."""
    assert quote_decisive(diagnosis("gpu-hardware/ecc", ("kernel", "Xid 48"))) == 'The kernel says: "Xid 48".'
    assert quote_decisive(diagnosis("model/code-bug", ("Worker_TP1", "x" * 500))) == f'Worker_TP1 says: "{"x" * 240}…".'


@pytest.mark.parametrize("cause", ["none", "unknown", "gpu-memory/weights"])
def test_nothing_is_quoted_where_figures_or_nothing_speak(cause):
    """A memory cause has its figures in the summary, and an unknown one no deciding line."""
    assert quote_decisive(diagnosis(cause, ("kernel", "x"))) == ""


def starts(*causes):
    return tuple(
        Invocation(
            invocation_id=f"{n:032x}", ending="failed", cause=cause, phase="", exit="", first_line=0, last_line=0
        )
        for n, cause in enumerate(causes)
    )


def test_a_crash_loop_is_counted_by_cause():
    """Each start's cause is told; that systemd gave up is said only where it did."""
    same = diagnosis("a/b", invocations=starts("a/b", "a/b"))
    assert attempts_in_words(same, has_given_up=True) == (
        "systemd started it 2 times and gave up (start-limit-hit): a/b in all 2 starts."
    )
    mixed = diagnosis("a/b", invocations=starts("a/b", None, "a/b"))
    assert attempts_in_words(mixed, has_given_up=False) == "systemd started it 3 times so far: a/b in 2, unknown in 1."
    assert attempts_in_words(diagnosis("none"), has_given_up=False) == ""
