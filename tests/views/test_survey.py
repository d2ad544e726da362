"""What a survey shows: tables that fit a terminal and a page, the worst first, nothing a host says as markup."""

import json
import shutil
import subprocess

from opslib.domain.survey import unreached
from opslib.views.survey import WIDTH, attention, checks_table, gpus_table, hosts_table, units_table
from tests.conftest import not_here
from tests.domain.test_survey import AT, judge


def test_every_view_names_its_hosts_and_fits():
    """Each table fits 118 columns as text, its HTML has neither script nor style sheet, and a long sentence is cut."""
    surveys = [
        judge({}),
        judge({"kernel": None}).model_copy(update={"host": "a-host-with-quite-a-long-name", "summary": "x" * 300}),
    ]
    for shown in (hosts_table(surveys), units_table(surveys), gpus_table(surveys), checks_table(surveys[0])):
        assert all(len(line) <= WIDTH for line in shown.text.splitlines()), shown.text
        assert "gpu-a" in shown.text
        assert "gpu-a" in shown.html
        assert "<script" not in shown.html
    assert "…" in hosts_table(surveys).text
    assert "4-7" in gpus_table(surveys).text


def test_attention_is_sorted_and_complete():
    """The worst comes first; evidence and next step stand below; a host in order has a sentence."""
    bad = judge(
        {"journal": {"var": False, "run": True}, "answers": {"gpus": {"problem": "timeout", "error": "no answer"}}}
    )
    text = attention([bad]).text
    assert text.index("✗ critical") < text.index("! warning")
    assert "  next: mkdir /var/log/journal" in text
    assert attention([judge({})]).text == "✓ ok  nothing needs attention: all 10 checks are ok"


def test_no_markup_of_a_host_reaches_the_page():
    """What a host says is text, also where it looks like HTML."""
    survey = judge(
        {
            "kernel": {
                "n_lines": 1,
                "lines": [json.dumps({"MESSAGE": "NVRM: Xid (PCI:0): 13, <script>alert(1)</script>"})],
                "problem": "",
            }
        }
    )
    assert "<script>" not in attention([survey]).html + hosts_table([survey]).html + checks_table(survey).html


def test_chromium_draws_the_table(tmp_path):
    """The table of four hosts is no wider than a page of 1,000 pixels."""
    if shutil.which("chromium") is None:
        not_here("no chromium on this machine")
    surveys = [judge({}), judge({"kernel": None}).model_copy(update={"host": "gpu-b"})]
    body = hosts_table(surveys).html + units_table(surveys).html + gpus_table(surveys).html + attention(surveys).html
    page = tmp_path / "page.html"
    measure = "<script>document.title = document.documentElement.scrollWidth</script>"
    page.write_text(f"<!doctype html><meta charset=utf-8><body>{body}{measure}")
    argv = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1000,800",
        "--dump-dom",
        page.as_uri(),
    ]
    dom = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
    assert int(dom.partition("<title>")[2].partition("</title>")[0]) <= 1000


def test_a_crash_leads_to_the_runbook_that_continues():
    """The page links the runbook and says its command with host and unit; a command in a hint is never broken."""
    shown = attention(
        [judge({"show": {"NRestarts": "1"}, "unit": {"health": {"status_code": None, "problem": "closed"}}})]
    )
    assert '<a href="40-investigate-crash.ipynb">' in shown.html
    assert "opslib run investigate-crash -p host=gpu-a -p unit=vllm-minimax" in shown.text
    hint = f"only when it is right: `ssh-keygen -R 'gpu-e' -f {'/long' * 30}`"
    refused = unreached("gpu-e", "changed", hint, surveyed_at=AT, duration_s=0.1, is_refused=True)
    assert hint in attention([refused]).text
    assert "<code>ssh-keygen -R &#x27;gpu-e&#x27;" in attention([refused]).html
