"""Makes docs/screens/*.png: `python -m tests.browser.screens [light|dark]`; each is looked at, then kept."""

import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from tests.browser.lab import ROOT, Lab, NotebookPage, chromium, running_lab, set_theme

SCREENS = ROOT / "docs" / "screens"
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
WIDTH = 1280
TALLEST = 2000
TICKET = "INC-4711"


def main(themes: list[str]) -> None:
    """One deploy by hand for each theme, a picture of each thing that is worth a look."""
    for theme in themes:
        with tempfile.TemporaryDirectory() as place, running_lab(Path(place)) as lab, chromium() as browser:
            set_theme(lab.root, THEMES[theme])
            context = browser.new_context(viewport={"width": WIDTH, "height": 900}, color_scheme=theme)
            _take(lab, context, theme)


def _take(lab: Lab, context: Any, theme: str) -> None:
    book = NotebookPage(lab, context.new_page(), "notebooks/90-deploy.ipynb")
    book.page.keyboard.press("Control+b")  # the file browser gives its room to the notebook
    book.run('host = "rehearsal"')
    book.run("parameter_form(")
    book.type_in("apply_remedies", "[]")
    book.type_in("ticket", TICKET)
    book.type_in("port", "80000")
    book.page.locator(".opslib-problem").wait_for()
    _keep(book, "parameter_form(", f"form-{theme}")
    book.type_in("port", "8000")
    for source in ("begin_run(", "verify_download(run)", "plan_memory(run)", "plan_unit(run)"):
        book.run(source)
    _keep(book, "plan_memory(run)", f"plan-{theme}")
    _keep(book, "plan_unit(run)", f"diff-{theme}")
    book.start("await confirm(run)")
    book.button("await confirm(run)", "Apply").wait_for()
    _keep(book, "await confirm(run)", f"consent-{theme}")
    book.button("await confirm(run)", "Apply").click()
    book.wait("await confirm(run)")
    book.run("install(run)")
    book.start("await launch(run)")
    book.page.wait_for_timeout(4000)
    _keep(book, "await launch(run)", f"launch-live-{theme}")
    book.wait("await launch(run)")
    _keep(book, "await launch(run)", f"launch-crashed-{theme}")
    book.run("investigate(run)")
    _keep(book, "investigate(run)", f"investigate-{theme}")
    book.answer("await remedy(run)", "Apply")
    _keep(book, "await remedy(run)", f"remedy-{theme}")
    book.run("await relaunch(run)")
    for source in ("await benchmark(run)", "outcome(run)"):
        book.run(source)
        _keep(book, source, f"{source.removeprefix('await ').partition('(')[0]}-{theme}")
    book.save()
    record = lab.kept_record("90-deploy")
    _take_way_on(lab, context, theme)
    _take_lists(lab, context, theme)
    _take_fleet(lab, context, theme)
    page = context.new_page()
    page.goto((record / "record.html").as_uri())
    _write(page.screenshot(), f"record-{theme}")


def _take_way_on(lab: Lab, context: Any, theme: str) -> None:
    """A launch that is not cured: the crash, and the link to the runbook that goes on."""
    book = NotebookPage(lab, context.new_page(), "notebooks/30-launch.ipynb")
    book.page.keyboard.press("Control+b")
    for source in ('host = "rehearsal"', "begin_run(", "plan_unit(run)"):
        book.run(source)
    book.answer("await confirm(run)", "Apply")
    for source in ("install(run)", "await launch(run)"):
        book.run(source)
    _keep(book, "await launch(run)", f"way-on-{theme}")


def _take_lists(lab: Lab, context: Any, theme: str) -> None:
    """The index, and the records in `60-review-runs`."""
    index = NotebookPage(lab, context.new_page(), "notebooks/index.ipynb")
    for source in ("show_runbooks()", "show_records()", "show_hosts()"):
        index.run(source)
    index.page.locator(".jp-Notebook .jp-Cell").first.scroll_into_view_if_needed()
    index.page.wait_for_timeout(500)
    _write(index.page.screenshot(), f"index-{theme}")
    book = NotebookPage(lab, context.new_page(), "notebooks/60-review-runs.ipynb")
    book.page.keyboard.press("Control+b")
    for source in ('host = ""', "parameter_form("):
        book.run(source)
    book.type_in("ticket", TICKET)
    for source in (
        "begin_run(",
        "reviewed_frame(run)",
        "show_timeline(run)",
        "compare_last(run)",
        "draft_incident(run)",
    ):
        book.run(source)
    _keep(book, "begin_run(", f"review-{theme}")
    _keep(book, "show_timeline(run)", f"timeline-{theme}")
    _keep(book, "draft_incident(run)", f"incident-{theme}")


def _take_fleet(lab: Lab, context: Any, theme: str) -> None:
    """A rollout over three practice hosts, paused behind its canary, and what came of it."""
    book = NotebookPage(lab, context.new_page(), "notebooks/70-fleet.ipynb")
    book.page.keyboard.press("Control+b")
    rollout = "await roll_out(run)"
    for source in ('hosts = ["rehearsal"]', "parameter_form(", "begin_run(", "await confirm_rollout(run)"):
        book.run(source)
    book.start(rollout)
    book.button(rollout, "Pause").click()
    book.outputs(rollout).get_by_text("1 of 3 hosts passed").wait_for(timeout=120_000)
    _keep(book, rollout, f"fleet-{theme}")
    book.button(rollout, "Resume").click()
    book.wait(rollout)
    book.run("show_fleet(run)")


def _keep(book: NotebookPage, source: str, name: str) -> None:
    cell = book.cell(source)
    cell.scroll_into_view_if_needed()
    book.page.wait_for_timeout(300)
    box = cell.bounding_box()
    assert box is not None
    if box["height"] > TALLEST:  # its beginning
        cell.evaluate("element => element.scrollIntoView()")
        book.page.wait_for_timeout(400)
        _write(book.page.screenshot(), name)
        return
    book.page.set_viewport_size({"width": WIDTH, "height": min(2400, max(900, int(box["height"]) + 250))})
    cell.scroll_into_view_if_needed()
    book.page.wait_for_timeout(400)
    _write(cell.screenshot(), name)
    book.page.set_viewport_size({"width": WIDTH, "height": 900})


def _write(png: bytes, name: str) -> None:
    """Write a picture in a palette of 128 colours, well under 200 kB."""
    SCREENS.mkdir(parents=True, exist_ok=True)
    picture = Image.open(BytesIO(png)).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    picture.save(SCREENS / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(THEMES))
