"""The diagnosis over reports and sentences that the patterns were not written from."""

import pytest

from opslib.domain.diagnosis import diagnose
from opslib.domain.journal_text import parse_input
from tests.domain.report_cases import (
    load_reports,
    load_sentences,
    report_accepts,
    report_entries,
    sentence_entries,
)

REPORTS = load_reports()
SENTENCES = dict(load_sentences())
_FRAMES = {
    "docker": lambda line: line,
    "compose": lambda line: f"vllm-1  | {line}",
    "kubernetes": lambda line: f"2026-01-02T03:04:05.123456789Z {line}",
    "doubled": lambda line: f"{line}\n{line}",
    "crlf": lambda line: f"{line}\r",
    "coloured": lambda line: f"\x1b[36m{line}\x1b[0m",
}


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["name"])
def test_reports(report):
    """The cause is the right one, or one that is as good."""
    assert report_accepts(report, diagnose(report_entries(report)).cause)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_sentences(sentence):
    """One sentence of an engine names its cause."""
    case = SENTENCES[sentence]
    assert diagnose(sentence_entries(case)).cause in {case["cause"], *case["also"]}


@pytest.mark.parametrize("frame", _FRAMES)
def test_frames_keep_the_verdict(frame):
    """What a container engine, a collector or a terminal puts around the lines changes nothing."""
    wrong = []
    for report in REPORTS:
        text = "\n".join(_FRAMES[frame](line) for line in report["text"].strip("\n").split("\n"))
        found = diagnose(parse_input(text))
        if not report_accepts(report, found.cause):
            wrong.append((report["name"], found.cause, found.confidence))
    assert len(wrong) <= 2, wrong


def test_no_report_is_confidently_wrong():
    """A wrong answer is at least no confident one."""
    found = [(report, diagnose(report_entries(report))) for report in REPORTS]
    wrong = [r["name"] for r, d in found if not report_accepts(r, d.cause) and d.confidence == "high"]
    assert not wrong
