"""JupyterLab as an operator uses it: a deploy by hand, the form, what stays in the file, the index, a way on."""

import json
import os
import re
import signal
import time

import pytest
from playwright.sync_api import expect

from opslib.records.seal import verify_record
from tests.rig.judgement import apart_from_load

pytestmark = pytest.mark.browser

WIDGET = "application/vnd.jupyter.widget-view+json"


def sections(folder):
    record = json.loads((folder / "record.json").read_text())
    return record, {section["name"]: section for section in record["sections"]}


def test_deploy_by_hand_is_cured_by_the_pressed_button(deployed):
    """Cell by cell with consent and remedy given by buttons, the deploy ends ok, and the record says who agreed."""
    record, named = sections(deployed)
    assert apart_from_load(record) == ("ok", 0), record["outcome"]
    assert record["status"] == "finished"
    assert record["parameters"]["apply_remedies"] == []
    assert named["confirm"]["summary"] == "consented by the operator"
    assert named["launch"]["value"]["state"] == "crashed"
    assert named["remedy"]["value"]["consent"] == "consented by the operator"
    assert re.search(r"^\+\s+--max-num-seqs 256\b", named["remedy"]["value"]["diff"], re.MULTILINE)
    assert named["relaunch"]["value"]["running_flags"]["--max-num-seqs"] == "256"
    assert (deployed / "record.html").is_file()


def test_record_by_hand_holds_no_live_part(deployed):
    """The kept notebook has a static form of every output: no widget, no error, always plain text."""
    cells = json.loads((deployed / "notebook.ipynb").read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert len(outputs) >= 14
    assert not [output for output in outputs if output["output_type"] in ("error", "stream")]
    assert not [output for output in outputs if WIDGET in output["data"]]
    assert all("text/plain" in output["data"] for output in outputs)


def test_record_by_hand_is_sealed_and_says_who_did_what(deployed):
    """Saved after its outcome it is sealed by the server, and lists each section with who ran it in JupyterLab."""
    deadline = time.monotonic() + 20
    while not (deployed / "seal.json").is_file() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert verify_record(deployed).alterations == ()
    record, named = sections(deployed)
    assert {action["section"] for action in record["actions"]} == set(named)
    assert {(action["by"], action["what"]) for action in record["actions"]} == {("JupyterLab", "ran")}


def test_saved_file_without_a_kernel_shows_every_final_state(deployed, open_notebook):
    """Reopened with no kernel to be had, the file shows form, consent, launch, verdict, diff, table and figure."""
    book = open_notebook(f"runs/{deployed.name}/notebook.ipynb", kernel=False)
    for source, words in {
        "parameter_form(": "apply_remedies, concurrency_levels, benchmark_repeats changed in the form",
        "verify_download(run)": "125 of 125 shards",
        "plan_memory(run)": "weights",
        "await confirm(run)": "Yes, said the operator",
        "await launch(run)": "crashed",
        "investigate(run)": "when warming up sampler with 1024 dummy requests",
        "await remedy(run)": "--max-num-seqs 256",
        "await relaunch(run)": "ready",
        "await benchmark(run)": "ttft_ms p99",
        "outcome(run)": "cured by --max-num-seqs 256",
    }.items():
        expect(book.outputs(source)).to_contain_text(words)
    figure = book.outputs("await benchmark(run)").locator("img").first
    assert figure.evaluate("image => image.naturalWidth") > 300
    expect(book.page.get_by_text("Error displaying widget")).to_have_count(0)


def test_form_refuses_a_wrong_value_at_once(open_notebook):
    """The schema's sentence stands beside the field, a run is refused, and the mended value is what the run uses."""
    book = open_notebook("notebooks/10-verify-download.ipynb")
    book.run('host = "rehearsal"')
    book.run("parameter_form(")
    book.type_in("unit", "no unit!")
    problem = book.page.locator(".opslib-problem")
    expect(problem).to_have_text("✗ expected a unit name: letters, digits, _ . @ : -, not 'no unit!'")
    expect(book.page.locator(".opslib-status")).to_contain_text("No run can start with this: mend unit.")
    book.run("begin_run(")
    expect(book.outputs("begin_run(")).to_contain_text("unit: expected a unit name")
    book.type_in("unit", "vllm-other")
    expect(problem).to_have_count(0)
    book.run("begin_run(")
    expect(book.outputs("begin_run(")).to_contain_text("answers")
    expect(book.outputs("parameter_form(")).to_contain_text("unit changed in the form")
    expect(book.outputs("parameter_form(")).to_contain_text("'vllm-other'")


def test_interrupt_and_the_way_on_after_a_crash(lab, open_notebook):
    """Interrupt leaves a sentence and no traceback; a crash links to a filled-in copy of the runbook that goes on."""
    book = open_notebook("notebooks/30-launch.ipynb")
    for source in ('host = "rehearsal"', "begin_run(", "plan_unit(run)"):
        book.run(source)
    book.start("await confirm(run)")
    book.button("await confirm(run)", "Apply").wait_for()
    book.interrupt()
    book.wait("await confirm(run)")
    expect(book.outputs("await confirm(run)")).to_contain_text("interrupted: what was begun may go on there")
    expect(book.outputs("await confirm(run)")).not_to_contain_text("Traceback")
    book.answer("await confirm(run)", "Apply")
    for source in ("install(run)", "await launch(run)"):
        book.run(source)
    book.run("install(run)")
    expect(book.outputs("install(run)")).to_contain_text("was not run again: it succeeded in this record")
    expect(book.outputs("install(run)")).to_contain_text('run.unfreeze("install")')
    book.outputs("await launch(run)").get_by_role("link", name="40-investigate-crash").click()
    expect(book.cell("# Parameters")).to_contain_text('unit = "vllm-minimax"')
    expect(book.page.locator(".jp-mod-current")).to_contain_text("next-40-investigate-crash.ipynb")


LAUNCH = "await launch(run)"


def told_by(output):
    """What a panel says, each word parted by one space."""
    return " ".join(output.inner_text().split())


def press(book, button, words):
    """Press a button under the panel; what it says must stand there within a second."""
    book.button(LAUNCH, button).click()
    expect(book.outputs(LAUNCH)).to_contain_text(words, timeout=1_000)


def begin_slow_launch(book):
    book.run('host = "rehearsal"')
    book.run("parameter_form(")
    book.type_in("host", "rehearsal:slow-load")
    book.choose("consent", "given")
    for source in ("begin_run(", "plan_unit(run)", "await confirm(run)", "install(run)"):
        book.run(source)


def watch_until_loading(book):
    """Start the cell that waits; its panel must move while it does."""
    book.start(LAUNCH)
    expect(book.button(LAUNCH, "Abort watching")).to_be_visible()
    expect(book.outputs(LAUNCH)).to_contain_text("loading weights", timeout=30_000)
    before = told_by(book.outputs(LAUNCH))
    expect(book.outputs(LAUNCH)).not_to_have_text(before, timeout=3_000)
    expect(book.cell(LAUNCH).locator(".jp-InputPrompt").first).to_have_text("[*]:")


def test_launch_is_watched_with_buttons_and_outlives_its_kernel(lab, open_notebook):
    """While the cell waits the panel moves and buttons act within a second; after the kernel's death it is drawn again."""
    book = open_notebook("notebooks/30-launch.ipynb")
    begin_slow_launch(book)
    watch_until_loading(book)
    press(book, "Keep last journal", "entries are in evidence/journal-launch-")
    press(book, "Abort watching", "aborted: the operator ended the watch; the unit goes on")
    book.wait(LAUNCH, 3)
    expect(book.outputs(LAUNCH).get_by_role("button")).to_have_count(0)
    aborted = told_by(book.outputs(LAUNCH).locator(".jp-RenderedHTMLCommon").first)
    record = max(lab.root.glob("runs/*-30-launch"))
    kept = next(record.glob("evidence/journal-launch-*.txt")).read_text()
    assert "Starting to load model" in kept

    watch_until_loading(book)
    for level, lines in (("ERROR", "no line"), ("INFO", "the last lines")):
        book.outputs(LAUNCH).locator("select").select_option(level)
        expect(book.outputs(LAUNCH)).to_contain_text(f"Journal: {lines} of level {level} and worse.", timeout=2_000)
    for words in ("nccl", "NCCL=="):
        field = book.outputs(LAUNCH).get_by_placeholder("search it")
        field.fill(words)
        field.press("Enter")
        expect(book.outputs(LAUNCH)).to_contain_text(f"of level INFO and worse with '{words}'.", timeout=2_000)
    seen = book.outputs(LAUNCH).locator("table", has_text="what was seen").locator("tbody tr").all_inner_texts()
    os.kill(json.loads((record / "record.json").read_text())["process_id"], signal.SIGKILL)

    review = open_notebook("notebooks/60-review-runs.ipynb")
    for source in ('host = ""', "begin_run(", "show_launch(run)"):
        review.run(source)
    shown = review.outputs("show_launch(run)")
    assert aborted in told_by(shown)
    expect(shown).to_contain_text("without a verdict; the unit went on")
    drawn = shown.locator("table", has_text="what was seen").last.locator("tbody tr").all_inner_texts()
    assert drawn[: len(seen)] == seen


def seen_in(output):
    """The rows of what was seen, of the last panel."""
    return output.locator("table", has_text="what was seen").last.locator("tbody tr").all_inner_texts()


@pytest.mark.slow
def test_stop_unit_is_shown_confirmed_and_done(open_notebook):
    """*Stop unit* says what it would do, does nothing until it is confirmed, and then acts within a second."""
    book = open_notebook("notebooks/30-launch.ipynb")
    begin_slow_launch(book)
    watch_until_loading(book)
    press(book, "Stop unit", "Stop unit would: on rehearsal:slow-load stop vllm-minimax.service (`systemctl stop")
    press(book, "No, let it run", "not meant, the unit goes on")
    expect(book.outputs(LAUNCH)).to_contain_text("loading weights")
    press(book, "Stop unit", "then ask until its GPU memory is released.")
    book.button(LAUNCH, "Yes, stop it now").click()
    expect(book.outputs(LAUNCH)).to_contain_text("stopping", timeout=1_000)
    book.wait(LAUNCH, 30)
    expect(book.outputs(LAUNCH)).to_contain_text(
        "Stop unit: vllm-minimax.service stop: inactive (dead); GPU memory: released"
    )
    expect(book.outputs(LAUNCH)).to_contain_text("the unit is inactive: it was stopped on request")
    expect(book.outputs(LAUNCH)).not_to_contain_text("crashed")


@pytest.mark.slow
def test_a_launch_goes_on_without_its_tab(lab, open_notebook):
    """The tab is closed while the cell waits: the kernel watches on, and what is drawn later is the same and more."""
    book = open_notebook("notebooks/30-launch.ipynb")
    begin_slow_launch(book)
    watch_until_loading(book)
    record = max(lab.root.glob("runs/*-30-launch"))
    seen = seen_in(book.outputs(LAUNCH))
    book.page.close()
    events = record / "watch-launch.jsonl"
    size = events.stat().st_size
    time.sleep(3)
    assert events.stat().st_size > size
    review = open_notebook("notebooks/60-review-runs.ipynb")
    for source in ('host = ""', "begin_run(", "show_launch(run)"):
        review.run(source)
    drawn = seen_in(review.outputs("show_launch(run)"))
    assert drawn[: len(seen)] == seen
    expect(review.outputs("show_launch(run)").locator("[title^='crash seen']")).to_have_count(0)
    again = open_notebook("notebooks/30-launch.ipynb")  # the same kernel: its session is found by the file's name
    again.run("outcome(run)")
    deadline = time.monotonic() + 120
    while '"state": "ready"' not in (record / "record.json").read_text() and time.monotonic() < deadline:
        time.sleep(0.5)
    review.run("show_launch(run)")
    later = seen_in(review.outputs("show_launch(run)"))
    assert later[: len(seen)] == seen
    assert any("ready" in row for row in later)


def test_index_opens_runbooks_and_records(deployed, open_notebook):
    """The index lists each runbook by its question, and leads to a record's page inside JupyterLab."""
    index = open_notebook("notebooks/index.ipynb")
    for source in ("show_runbooks()", "show_records()", "show_hosts()"):
        index.run(source)
    expect(index.outputs("show_runbooks()")).to_contain_text("Why did the unit crash?")
    expect(index.outputs("show_hosts()")).to_contain_text("rehearsal")
    row = index.outputs("show_records()").locator("tr", has_text="cured by --max-num-seqs 256")
    row.get_by_role("link").click()
    page = index.page.frame_locator(".jp-HTMLViewer iframe")
    expect(page.locator("h1")).to_contain_text("Can this model be deployed on this host")
    expect(page.locator(".outcome")).to_contain_text("cured by --max-num-seqs 256")


def test_sliders_ask_the_planner_again(open_notebook):
    """A slider that is moved changes verdict, tokens and the bar at once; nothing is asked of the host."""
    book = open_notebook("notebooks/20-plan-memory.ipynb")
    for source in (
        'host = "rehearsal"',
        "begin_run(",
        "verify_download(run)",
        "plan_memory(run)",
        "memory_what_if(run)",
    ):
        book.run(source)
    answer = book.outputs("memory_what_if(run)")
    expect(answer).to_contain_text("--max-num-seqs 256 would be safe")
    expect(answer.locator(".js-plotly-plot .bars .point").first).to_be_visible()
    handle = answer.locator(".widget-hslider", has_text="max_num_seqs").locator(".noUi-handle")
    handle.focus()
    for _ in range(2):
        handle.press("ArrowLeft")
    expect(answer).to_contain_text("fits", timeout=5_000)
    expect(answer).not_to_contain_text("would be safe")
