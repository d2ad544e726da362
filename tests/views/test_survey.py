"""What a survey shows: tables that fit a terminal and a page, the worst first, nothing a host says as markup."""

import json
import shutil
import subprocess
from datetime import timedelta

from opslib.domain.survey import LastRun, unreached
from opslib.views.survey import WIDTH, attention, checks_table, gpus_table, one_host, units_table
from opslib.views.survey_matrix import WIDTH as MATRIX_WIDTH
from opslib.views.survey_matrix import hosts_table
from tests.conftest import not_here
from tests.domain.test_survey import AT, judge


def test_every_view_names_its_hosts_and_fits():
    """Each table fits 118 columns as text, its HTML has neither script nor style sheet, and a long sentence is cut."""
    why = unreached("gpu-x", "nothing answered " * 20, "is it up?", surveyed_at=AT, duration_s=10.0)
    surveys = [judge({}), judge({"kernel": None}).model_copy(update={"host": "a-host-with-quite-a-long-name"}), why]
    for shown in (hosts_table(surveys), units_table(surveys), gpus_table(surveys), checks_table(surveys[0])):
        assert all(len(line) <= WIDTH for line in shown.text.splitlines()), shown.text
        assert "gpu-a" in shown.text
        assert "gpu-a" in shown.html
        assert "<script" not in shown.html
    assert "…" in hosts_table(surveys).text
    assert "4-7" in gpus_table(surveys).text


def run_of(days, state="ok", throughput=None):
    at = AT - timedelta(days=days)
    return LastRun(record="r", runbook="90-deploy", state=state, at=at, output_throughput=throughput)


def fleet():
    """Eight hosts: one unreachable, one crashed, one with another driver and model, the others alike."""
    crashed = {"show": {"NRestarts": "4"}, "unit": {"health": {"status_code": None, "problem": "closed"}}}
    hosts = [judge(crashed if n == 3 else {}).model_copy(update={"host": f"practice-{n}"}) for n in range(1, 8)]
    told = {"last_deploy": run_of(3), "last_benchmark": run_of(2, throughput=2310.4)}
    hosts = [host.model_copy(update=told) for host in hosts]
    odd = judge({"unit": {"model": "/srv/models/another-model-of-everything"}})
    hosts[4] = odd.model_copy(update={"host": "practice-5", "driver_version": "575.57.08"})
    return [*hosts, unreached("practice-8", "nothing answered (x)", "is it up?", surveyed_at=AT, duration_s=10.0)]


def test_a_fleet_is_a_row_each_in_a_hundred_columns():
    """Unit, GPUs, free memory, last deploy and benchmark of each; what differs or is shared stands below, by group."""
    text = hosts_table(fleet()).text
    lines = text.splitlines()
    assert max(map(len, lines)) <= MATRIX_WIDTH
    assert lines[0].startswith("✗ critical  8 hosts: 1 critical (practice-3), 1 unknown (practice-8), 6 ok")
    rows = {line.split()[0]: line for line in lines[3:11]}
    assert list(rows) == [f"practice-{n}" for n in range(1, 9)]
    assert "✓ vllm-minimax ready for 3 h" in rows["practice-1"]
    assert rows["practice-1"].endswith("✓ 4/8  3.6 GiB   ✓ 3 d   2,310 tok/s 2 d")
    assert "? unknown   nothing answered" in rows["practice-8"]
    assert "✗ critical  ✗ vllm-minimax crash-loop" in rows["practice-3"]
    assert [line.split(":")[0] for line in lines[12:] if line[0] != " "] == ["model", "vLLM", "driver"]
    assert "driver: 580.95.05 on 6 hosts; 575.57.08 on practice-5; not known on practice-8" in lines
    assert "vLLM: 0.15.1 on 7 hosts; not known on practice-8" in lines
    assert "another-model-of-everything on practice-5" in " ".join(text.split())
    page = hosts_table(fleet()).html
    assert all(f">{name}<" in page for name in ("unit", "GPUs", "headroom", "deploy", "benchmark"))
    assert "another-model-of-everything on practice-5" in page


def test_one_host_is_said_to_be_ok_once():
    """A single host's state is said once for the host and once for each topic; there is no second and third headline."""
    text = one_host(judge({}))
    assert [line for line in text.splitlines() if line.startswith("✓ ok")] == [text.splitlines()[0]]
    assert "nothing needs attention" not in text
    assert "VLLM::Worker_TP3" in text
    assert "next: mkdir /var/log/journal" in one_host(judge({"journal": {"var": False, "run": True}}))


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
