"""Options of a headless run beside its parameters, and the message about its end."""

from datetime import UTC, datetime

import pytest

from opslib.domain.headless import split_options
from opslib.domain.notice import is_due, killed_notice, notice_of, refusal_notice
from opslib.domain.reading import is_reading
from opslib.domain.record import RunRecord, SectionRecord
from opslib.domain.states import Outcome, State
from opslib.errors import BadParameter

AT = datetime(2026, 11, 29, 3, 30, tzinfo=UTC)
REMEDY = {"text": "serve fewer sequences", "command": "edit --max-num-seqs", "flag": "--max-num-seqs"}


def record(state=State.OK, cause=None, **more):
    """The record of a deploy that has ended so."""
    value = {"diagnosis": {"cause": cause, "remedies": [REMEDY]}} if cause else None
    section = SectionRecord(name="investigate", state=state, value=value, started_at=AT)
    first = RunRecord(runbook="90-deploy", parameters={}, host="gpu-a", unit="vllm-a", started_at=AT, controller="desk")
    ended = first.with_section(section).finished(Outcome(state=state, reason=f"it is {state}"), AT)
    return ended.model_copy(update={"cause": cause, **more})


def test_options_and_parameters_may_stand_in_one_file():
    """What is no option is a parameter; both have their defaults, and a single place needs no list."""
    options, parameters = split_options("30-launch", {"notify": "env:OPS", "timeout_s": 60, "port": 8001})
    assert (options.notify, options.notify_on, options.timeout_s, options.retries) == (("env:OPS",), "problem", 60, 2)
    assert parameters.port == 8001


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"notfy": "env:OPS"}, "notfy: unknown parameter of 30-launch; did you mean notify?"),
        ({"timeout": 60}, "timeout: unknown parameter of 30-launch; did you mean timeout_s?"),
        ({"timeout_s": 0}, "timeout_s: expected at least 1, not 0"),
        ({"timeout_s": "1h"}, "timeout_s: expected a whole number, not '1h'"),
        ({"retries": 21}, "retries: expected at most 20, not 21"),
        ({"notify_on": "never"}, "notify_on: expected 'always', 'change' or 'problem', not 'never'"),
        ({"notify": "slack://hunter2/x/y"}, "notify: give env:NAME or file:PATH, never the address itself"),
        ({"notify": ["env:OPS", "json://hunter2"]}, "notify: give env:NAME or file:PATH, never the address itself"),
        ({"notify": 7}, "notify: give env:NAME or file:PATH"),
        ({"dry_run": "yes"}, "dry_run: "),
    ],
)
def test_a_wrong_option_is_refused_by_name(given, sentence):
    """A misspelt, ill-typed or literal option is one sentence that offers the nearest name and repeats no address."""
    with pytest.raises(BadParameter) as caught:
        split_options("30-launch", given)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_all_that_is_wrong_is_said_at_once():
    """Options and parameters are judged together, one line each."""
    with pytest.raises(BadParameter) as caught:
        split_options("30-launch", {"retries": -1, "prot": 1})
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["retries", "prot"]


FAILED = record(State.CRITICAL, "gpu-memory/sampler-warmup")


@pytest.mark.parametrize(
    ("notify_on", "now", "before", "is_told"),
    [
        ("always", record(), record(), True),
        ("problem", record(), FAILED, False),
        ("problem", record(State.WARNING), None, True),
        ("problem", FAILED, FAILED, True),
        ("change", record(), None, True),
        ("change", record(), record(), False),
        ("change", record(cause="gpu-memory/sampler-warmup"), record(), False),  # cured on the way: still ok
        ("change", FAILED, record(), True),
        ("change", FAILED, FAILED, False),
        ("change", FAILED, record(State.CRITICAL, "configuration/port-in-use"), True),
        ("change", record(), FAILED, True),
        ("change", record(State.UNKNOWN, status="interrupted"), record(State.UNKNOWN), True),
    ],
)
def test_when_somebody_is_told(notify_on, now, before, is_told):
    """Always; on a problem; on a change of state or cause, the first run being one."""
    assert is_due(notify_on, now, before) is is_told


def test_a_message_says_all_that_is_needed():
    """Host, unit, outcome, cause, remedy, next command, and where the record is, in one message."""
    notice = notice_of(FAILED, "/runs/a", record())
    assert notice.title == "gpu-a: vllm-a critical (90-deploy)"
    assert notice.kind == "failure"
    assert notice.body.splitlines() == [
        "host: gpu-a, started on desk",
        "unit: vllm-a",
        "outcome: critical (was ok): it is critical",
        "cause: gpu-memory/sampler-warmup",
        "remedy: serve fewer sequences (edit --max-num-seqs)",
        "next: opslib investigate gpu-a vllm-a",
        "record: /runs/a",
    ]


@pytest.mark.parametrize(
    ("ended", "word", "kind"),
    [
        (record(), "ok", "success"),
        (record(State.WARNING), "warning", "warning"),
        (record(State.UNKNOWN, exit_code=4), "refused", "failure"),
        (record(State.UNKNOWN, status="interrupted"), "interrupted", "failure"),
    ],
)
def test_the_title_says_how_it_ended(ended, word, kind):
    """What stands on a lock screen is host, unit and the word for the end."""
    notice = notice_of(ended, "/runs/a")
    assert (notice.title, notice.kind) == (f"gpu-a: vllm-a {word} (90-deploy)", kind)
    assert "remedy" not in notice.body


def test_runs_without_a_record_are_told_of_as_well():
    """A run that was refused or killed names host and unit, and says that or where there is a record."""
    refused = refusal_notice("90-deploy", {"host": "gpu-b", "unit": "vllm-a"}, "no host 'gpu-b'", "desk")
    assert refused.title == "gpu-b: 90-deploy was refused"
    assert "outcome: refused: no host 'gpu-b'" in refused.body
    killed = killed_notice("nightly", "gpu-a", "vllm-a", "oom-kill KILL", "/runs")
    assert "oom-kill KILL" in killed.body
    assert "journalctl -u opslib-nightly.service" in killed.body


@pytest.mark.parametrize(
    ("argv", "is_read"),
    [
        (("cat", "--", "/etc/x"), True),
        (("env", "TZ=UTC", "systemctl", "show", "--property=A", "--", "x.service"), True),
        (("systemctl", "--user", "show", "--", "x"), True),
        (("journalctl", "-o", "json", "-u", "x"), True),
        (("/usr/bin/nvidia-smi", "--query-gpu=name", "--format=csv"), True),
        (("/opt/vllm/bin/vllm", "--version"), True),
        (("systemctl", "start", "--", "x"), False),
        (("systemctl", "--no-block", "restart", "--", "x"), False),
        (("systemctl", "daemon-reload"), False),
        (("env", "A=1", "rm", "x=y"), False),
        (("env", "A=1"), False),
        (("journalctl", "--vacuum-size=1M"), False),
        (("loginctl", "enable-linger", "ana"), False),
        (("nvidia-smi", "--gpu-reset", "-i", "0"), False),
        (("nvidia-smi", "-pl", "300"), False),
        (("nvidia-smi", "topo", "-m"), True),
        (("sh", "-c", "cat /etc/x"), False),
        (("a-new-program",), False),
    ],
)
def test_reads_are_known_and_all_else_counts_as_a_change(argv, is_read):
    """Only commands that are known to ask may be sent in a dry run or asked again."""
    assert is_reading(argv) is is_read
