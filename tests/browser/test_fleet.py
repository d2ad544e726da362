"""`70-fleet` in JupyterLab: the matrix moves while its cell waits, and its three buttons act."""

import json
import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from opslib.records.rollout import read_rollout

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROLLOUT = "await roll_out(run)"


def press(book, name, told):
    book.button(ROLLOUT, name).click()
    expect(book.outputs(ROLLOUT)).to_contain_text(told, timeout=10_000)


def keep(book, name):
    """For whoever wants to look: pictures go to $OPSLIB_SHOTS."""
    if os.environ.get("OPSLIB_SHOTS"):
        book.cell(ROLLOUT).scroll_into_view_if_needed()
        book.page.screenshot(path=Path(os.environ["OPSLIB_SHOTS"]) / f"{name}.png")


def test_a_rollout_pauses_resumes_and_stops_by_buttons(lab, open_notebook):
    """Paused it begins no host, resumed it goes on, stopped it leaves the rest untouched; the file keeps who asked."""
    book = open_notebook("notebooks/70-fleet.ipynb")
    book.run('hosts = ["rehearsal"]')
    book.run("parameter_form(")
    book.type_in("wave", "1")
    for source in ("begin_run(", "await confirm_rollout(run)"):
        book.run(source)
    book.start(ROLLOUT)
    matrix = book.outputs(ROLLOUT)
    expect(book.button(ROLLOUT, "Pause")).to_be_visible(timeout=60_000)
    press(book, "Pause", "Pause: asked")
    keep(book, "running")
    expect(matrix).to_contain_text("paused", timeout=30_000)
    expect(matrix.get_by_role("row").filter(has_text="practice-1")).to_contain_text("passed", timeout=90_000)
    expect(matrix.get_by_role("row").filter(has_text="practice-2")).to_contain_text("untouched")
    keep(book, "paused")
    press(book, "Resume", "Resume: asked")
    expect(matrix.get_by_role("row").filter(has_text="practice-2")).to_contain_text("running", timeout=30_000)
    press(book, "Stop", "Stop: asked")
    book.wait(ROLLOUT)
    expect(matrix.get_by_role("button")).to_have_count(0)
    expect(matrix).to_contain_text("untouched: practice-3")
    book.run("show_fleet(run)")
    book.run("outcome(run)")
    keep(book, "stopped")
    book.save()
    kept = lab.kept_record("70-fleet")
    told = (kept / "events.jsonl").read_text()
    assert all(f"{name}: asked" in told for name in ("Pause", "Resume", "Stop"))
    state = read_rollout(max(lab.root.glob("runs/*-rollout-*")))
    assert [progress.step.value for progress in state.hosts] == ["passed", "passed", "untouched"]
    notebook = json.loads((kept / "notebook.ipynb").read_text())
    shown = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    assert not [output for output in shown if "application/vnd.jupyter.widget-view+json" in output["data"]]
