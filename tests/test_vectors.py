"""What is practised is what is done: every argument vector of the rehearsal host was sent to the real host as well."""

import json
import os
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from opslib.hosts.transcript import vector_shape
from tests.conftest import COLLECTED, not_here

TESTS = Path(__file__).parent
WHOLE_SUITE = "not realvllm and not slow"  # the marks of `make test`
WAIT_S = 600  # for the other processes of a parallel run
REAL_NETWORK = "10.231."  # the links of the real hosts (tests/rig/debian.py)

Shape = tuple[str, ...]


def sent(transcript: Path) -> tuple[dict[Shape, str], set[Shape]]:
    """The shapes sent to the rehearsal host (each with one vector that had it), and those sent to the real one."""
    practised: dict[Shape, str] = {}
    real: set[Shape] = set()
    for line in transcript.read_text().splitlines() if transcript.exists() else ():
        entry = json.loads(line)
        is_real = entry["address"].startswith(REAL_NETWORK)
        if not is_real and entry["kind"] != "rehearsal":
            continue
        for shape, words in shapes_of(entry):
            if is_real:
                real.add(shape)
            else:
                practised.setdefault(shape, words)
    return practised, real


def shapes_of(entry: dict) -> list[tuple[Shape, str]]:
    """The entry's own shape (a program's is its name), and those of the vectors that the program was told to run."""
    name = entry["program"]
    own = (("onhost", name), f"program {name}") if name else (vector_shape(entry["argv"]), " ".join(entry["argv"]))
    return [own, *((vector_shape(argv), f"{name}: {' '.join(argv)}") for argv in entry.get("carried", ()))]


def missing_part(config: pytest.Config) -> str:
    """Why this run is only a part of the suite; "" when it is the whole."""
    if config.option.keyword or config.option.markexpr not in ("", WHOLE_SUITE):
        return "tests were selected by name or mark"
    if any("::" in word for word in config.args):
        return "single tests were selected"
    there = set(TESTS.rglob("test_*.py"))
    left_out = there - config.stash[COLLECTED]
    return f"{len(left_out)} of {len(there)} test modules were left out" if left_out else ""


def wait_for_the_others(items: list[pytest.Item]) -> None:
    """In a parallel run the other processes may still be sending: wait until all tests before these have ended."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    ended = Path(os.environ["OPSLIB_TRANSCRIPT"] + ".ended")
    n_others = sum(item.path.name != "test_vectors.py" for item in items)
    deadline = time.monotonic() + WAIT_S
    while len(ended.read_text().splitlines()) < n_others:
        assert time.monotonic() < deadline, f"the other tests did not end within {WAIT_S} s"
        time.sleep(0.2)


@pytest.mark.timeout(WAIT_S + 60)
def test_every_practised_vector_was_sent_to_the_real_host(request: pytest.FixtureRequest) -> None:
    """No vector shape (program, verb, options), and no on-host program, was only ever tried on the rehearsal host."""
    wait_for_the_others(request.session.items)
    practised, real = sent(Path(os.environ["OPSLIB_TRANSCRIPT"]))
    untried = {words[:200] for shape, words in practised.items() if shape not in real}
    if part := missing_part(request.config):
        not_here(f"only part of the suite ran ({part}); not yet on the real host: {sorted(untried) or 'nothing'}")
    if not real:
        not_here("the real host was not part of this run, so nothing can be compared with it")
    assert not untried, "sent to the rehearsal host only:\n  " + "\n  ".join(sorted(untried))
    assert len(practised) > 20


def test_it_is_the_last_module(request: pytest.FixtureRequest) -> None:
    """The comparison comes after all other tests, whatever the order of collection."""
    names = [item.path.name for item in request.session.items]
    assert set(names[names.index("test_vectors.py") :]) == {"test_vectors.py"}


def test_only_a_whole_run_is_compared(request: pytest.FixtureRequest) -> None:
    """Selected names, marks, single tests or left out modules make a part; all modules with `make test`'s marks don't."""
    there = set(TESTS.rglob("test_*.py"))

    def part(
        keyword: str = "", markexpr: str = WHOLE_SUITE, args: tuple[str, ...] = (), seen: set[Path] = there
    ) -> str:
        stash = pytest.Stash()
        stash[COLLECTED] = seen
        return missing_part(
            SimpleNamespace(option=SimpleNamespace(keyword=keyword, markexpr=markexpr), args=args, stash=stash)
        )

    assert part() == ""
    assert part(markexpr="") == ""
    assert "1 of" in part(seen=there - {Path(__file__)})
    assert part(keyword="x")
    assert part(markexpr="realhost")
    assert part(args=("tests/test_vectors.py::test_x",))
    assert Path(__file__) in request.config.stash[COLLECTED]


def test_kernels_inherit_the_transcript(tmp_path: Path) -> None:
    """What a runbook's kernel sends is in the same transcript: a headless run leaves its vectors there."""
    from opslib.app.headless import run_headless

    transcript = Path(os.environ["OPSLIB_TRANSCRIPT"])
    before = len(transcript.read_text().splitlines()) if transcript.exists() else 0
    run_headless("10-verify-download", {"host": "rehearsal:missing-shard"}, runs_dir=tmp_path)
    new = [json.loads(line) for line in transcript.read_text().splitlines()[before:]]
    assert {"verify", "identity"} <= {entry["program"] for entry in new}


def test_a_vector_for_practice_only_is_found(tmp_path: Path) -> None:
    """A shape, or a vector inside a program's arguments, that only the rehearsal host got is told; others are not."""
    lines = defaultdict(list)
    for kind, address in (("rehearsal", "127.0.0.1"), ("real", f"{REAL_NETWORK}1.2"), ("local", "local")):
        lines[kind] = [{"kind": kind, "address": address, "program": None, "argv": ["cat", "--", f"/{kind}"]}]
    lines["rehearsal"] += [{**lines["rehearsal"][0], "argv": ["systemctl", "kill", "--", "x"]}]
    lines["rehearsal"] += [{**lines["rehearsal"][0], "program": "watch", "carried": [["nvidia-smi", "-q"]]}]
    path = tmp_path / "transcript"
    path.write_text("".join(json.dumps(entry) + "\n" for entries in lines.values() for entry in entries))
    practised, real = sent(path)
    assert {shape[:2] for shape in practised.keys() - real} == {
        ("systemctl", "kill"),
        ("onhost", "watch"),
        ("nvidia-smi", "-q"),
    }
