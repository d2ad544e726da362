"""The diagnosis over the handed journals, over made kinds, over changed copies, and over anything at all."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opslib.domain.diagnosis import diagnose
from opslib.domain.diagnosis_catalogue import cause_entry, list_causes
from opslib.domain.diagnosis_signatures import list_signatures
from opslib.domain.facts.journal import JournalEntry
from opslib.domain.facts.systemd import parse_unit_show
from opslib.domain.journal_text import parse_input
from opslib.errors import UnknownName
from tests.domain.journal_cases import FOLDER, MUTATIONS, load_cases
from tests.story import tell

CASES = load_cases()
KINDS = tomllib.loads((FOLDER.parent / "made_kinds.toml").read_text("utf-8"))["case"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_handed_journals(case):
    """The cause is the right one."""
    assert case.accepts(diagnose(parse_input(case.text)).cause)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_changed_copies_keep_their_verdict(mutation):
    """Other pids, paths, times, colours, frames, orders and cut ends change nothing."""
    wrong = []
    for case in CASES:
        found = diagnose(parse_input(MUTATIONS[mutation](case)))
        if not case.accepts(found.cause):
            wrong.append((case.name, found.cause, found.confidence))
    assert len(wrong) <= 1, wrong


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind['cause']}-{kind['phase']}")
def test_made_kinds(kind):
    """Kinds that no handed journal shows, written from the engines' sources."""
    found = diagnose(tell(kind))
    assert found.cause in {kind["cause"], *kind.get("also", [])}


def test_every_cause_has_a_signature_a_remedy_and_a_case():
    """The catalogue, the signatures and the cases speak of the same causes."""
    causes = {entry.id for entry in list_causes()}
    assert {signature.cause for signature in list_signatures()} == causes
    assert all(entry.remedies for entry in list_causes())
    told = {case.truth["cause"] for case in CASES} | {kind["cause"] for kind in KINDS}
    assert causes <= told


def test_an_unknown_cause_is_refused():
    """The catalogue offers no entry for what it does not know."""
    with pytest.raises(UnknownName):
        cause_entry("gpu-memory/gremlins")


def test_saved_show_output_is_no_obstacle():
    """`--show` of a unit that was restarted meanwhile does not hide the cause."""
    case = next(case for case in CASES if case.name == "real-port-in-use")
    status = parse_unit_show(Path(FOLDER / "real-port-in-use.show.txt").read_text("utf-8"))
    assert diagnose(parse_input(case.text), status=status).cause == "configuration/port-in-use"


def test_the_json_shape():
    """What `opslib diagnose --json` prints has these names."""
    case = next(case for case in CASES if case.name == "sampler-warm-up-on-four-ranks")
    found = json.loads(diagnose(parse_input(case.text)).model_dump_json())
    assert found["cause"] == "gpu-memory/sampler-warmup"
    assert found["confidence"] == "high"
    assert set(found["evidence"][0]) == {"line", "text", "process", "logged_at"}
    assert {"consequences", "ruled_out", "remedies", "invocations", "summary"} <= set(found)
    assert found["invocations"][0]["ending"] == "failed"
    assert any("See root cause above" in line["text"] for line in found["consequences"])


def test_no_lines_are_unknown():
    """Nothing to read is no verdict."""
    assert diagnose(()).cause == "unknown"
    assert diagnose(()).exit_code == 3


def test_status_137_alone_is_not_out_of_memory():
    """A SIGKILL without a kernel or systemd line about memory is a SIGKILL."""
    entries = tell(
        {"cause": "", "phase": "serving", "end": "vllm.service: Main process exited, code=killed, status=9/KILL"}
    )
    assert diagnose(entries).cause == "process/killed"


@settings(max_examples=150, deadline=2000)
@given(st.binary(max_size=4000))
def test_any_bytes_give_a_verdict(data):
    """No input raises."""
    assert diagnose(parse_input(data)).cause


_WORDS = st.sampled_from(
    [
        *(
            "ERROR 11-29 12:00:00 [core.py:1] ",
            "(EngineCore pid=1) ",
            "Traceback (most recent call last):\n",
            "\n",
            "\r",
            "\x1b[1m",
        ),
        *(
            "CUDA out of memory",
            "Xid (PCI:0000:17:00): ",
            "Failed at step ",
            "systemd[1]: ",
            '{"MESSAGE": ',
            "null}",
            "[",
            "(",
            "'" * 50,
        ),
        *(
            "No space left on device ",
            "a" * 300,
            " " * 300,
            "= " * 100,
            "vllm.service: ",
            "Main process exited, code=killed, status=9/KILL\n",
        ),
        *(
            "is not divisible by ",
            "cannot be used with ",
            "requires ",
            "Error",
            ": ",
            "/dev/shm",
            "kernel: ",
            "Stopping x",
            "0" * 40,
        ),
    ]
)


@settings(max_examples=150, deadline=2000)
@given(st.lists(_WORDS, max_size=200))
def test_telling_words_in_any_order_give_a_verdict(words):
    """No input makes a regular expression run away."""
    assert diagnose(parse_input("".join(words))).cause


@pytest.mark.parametrize(
    "text", ["a" * 200_000, " " * 200_000, "(" * 200_000, "ab.c " * 40_000, "'x' " * 50_000, "1," * 100_000]
)
def test_long_lines_cost_little(text):
    """A line of 200 kB is looked at in its beginning only."""
    assert diagnose([JournalEntry(message=f"ValueError: {text}", transport="stdout")]).cause


def test_what_a_server_got_over_is_none_with_a_warning():
    """A full cache volume that the server survives is no crash, and is told nevertheless."""
    entries = tell(
        {
            "cause": "none",
            "phase": "weights",
            "raw_error": ["Failed to save: [Errno 28] No space left on device: '/var/cache/vllm/x'"],
            "recovers": True,
            "end": "",
        }
    )
    found = diagnose(entries)
    assert (found.cause, found.exit_code) == ("none", 0)
    assert "Warning: lines speak of environment/disk-full" in found.summary
    assert "No space left" in found.evidence[0].text


def test_what_failed_before_a_start_that_served_is_another_story():
    """A start with a wrong flag, mended and served, then its end: the end is asked about, not the old mistake."""
    wrong = ["Starting vllm.service - vLLM.", "vllm: error: unrecognized arguments: --max-num-seq5 4"]
    served = [
        "Started vllm.service - vLLM.",
        "(APIServer pid=2) INFO:     Application startup complete.",
        "(APIServer pid=2) WARNING [core_client.py:817] [shutdown] MPClient: engine core exited unexpectedly",
        "(APIServer pid=2) vllm.v1.engine.exceptions.EngineDeadError: See root cause above.",
    ]
    lines = [("a", text) for text in wrong] + [("b", text) for text in served]
    journal = "\n".join(
        json.dumps({"MESSAGE": text, "_SYSTEMD_INVOCATION_ID": run, "_SYSTEMD_UNIT": "vllm.service"})
        for run, text in lines
    )
    diagnosis = diagnose(parse_input(journal))
    assert [start.cause for start in diagnosis.invocations] == ["configuration/bad-argument", "process/died-silently"]
    assert diagnosis.cause == "process/died-silently"
