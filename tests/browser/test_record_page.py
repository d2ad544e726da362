"""A kept record opened with the network off: page, PDF and notebook show everything, and nothing is asked of anybody."""

import json
import re
import shutil
from html import unescape
from pathlib import Path

import pytest
from nbconvert.exporters import HTMLExporter

from opslib.domain.record import RunRecord
from opslib.records.folder import RunFolder
from opslib.records.html import export_html
from opslib.records.pdf import print_pdf

pytestmark = pytest.mark.browser
EXAMPLES = Path(__file__).parents[2] / "runs" / "examples"
RECORDS = sorted(path.parent for path in EXAMPLES.glob("*/record.json"))


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium, without the JupyterLab that other browser tests need."""
    from tests.browser.lab import CHROMIUM, chromium
    from tests.conftest import not_here

    if not Path(CHROMIUM).exists():
        not_here("no Chromium on this machine (make system-deps installs it)")
    with chromium() as running:
        yield running


@pytest.fixture(scope="module", params=RECORDS, ids=lambda path: path.name)
def record(request, tmp_path_factory):
    """A kept record with its page and PDF made by the code of today."""
    path = tmp_path_factory.mktemp("record") / request.param.name
    shutil.copytree(request.param, path)
    folder = RunFolder.open(path)
    export_html(folder)
    print_pdf(folder.html_path, path / "record.pdf")
    return folder


def opened(browser, address, **options):
    """A page without any network, and what it asked for."""
    context = browser.new_context(offline=True, viewport={"width": 1100, "height": 900}, **options)
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    return page, asked


def plain(text):
    return re.sub(r"\s+", "", unescape(text))


def final_values(folder):
    """What a reader must be able to find: outcome, every section's sentence, every level's throughput."""
    record: RunRecord = folder.read_record()
    levels = next((one.value["levels"] for one in record.sections if one.name == "benchmark"), [])
    throughputs = [f"{level['output_throughput']:,.0f}" for level in levels]
    return [record.outcome.reason, *(section.summary for section in record.sections), *throughputs]


def test_page_asks_nobody_and_shows_everything(browser, record):
    """With the network off the page loads itself alone; every sentence, figure and number is visible."""
    page, asked = opened(browser, record.html_path.as_uri())
    assert asked == [record.html_path.as_uri()]
    shown = plain(page.locator("body").inner_text())
    assert not [value for value in final_values(record) if plain(value) not in shown]
    pictures = page.locator("img, svg")
    assert pictures.count() >= 1
    for picture in pictures.all():
        box = picture.bounding_box()
        assert box["width"] > 100
        assert box["height"] > 50
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1100


def test_pdf_opens_and_asks_nobody(browser, record):
    """Chromium's own viewer opens the PDF with the network off; it has pages and links nowhere."""
    address = (record.path / "record.pdf").as_uri()
    page, asked = opened(browser, address)
    page.wait_for_timeout(500)
    outside = [url for url in asked if not url.startswith((address, "chrome-extension://", "chrome://"))]
    assert outside == []
    assert any(url.startswith("chrome-extension://") for url in asked)  # the viewer has opened it
    content = (record.path / "record.pdf").read_bytes()
    assert len(re.findall(rb"/Type /Page\b", content)) >= 3
    assert not re.findall(rb"/URI \(http", content)


def test_print_shows_what_a_screen_folds(browser, record):
    """Printed, the parameters are open; only code stays folded."""
    page, _ = opened(browser, record.html_path.as_uri())
    folded = page.locator("details:not(.code) td", has_text="gpu_memory_utilization").first
    assert not folded.is_visible()
    page.emulate_media(media="print")
    assert folded.is_visible()
    assert not page.locator("details.code").first.is_visible()


def test_notebook_without_javascript_shows_every_final_value(browser, record, tmp_path):
    """As GitHub would show it (nbconvert's basic HTML, scripts off), the notebook has every value and every figure."""
    html, _ = HTMLExporter(template_name="basic").from_filename(str(record.notebook_path))
    (tmp_path / "basic.html").write_text(f"<!DOCTYPE html><meta charset=utf-8>{html}")
    page, _ = opened(browser, (tmp_path / "basic.html").as_uri(), java_script_enabled=False)
    shown = plain(page.locator("body").inner_text())
    assert not [value for value in final_values(record) if plain(value) not in shown]
    assert page.locator("img").count() >= 1
    notebook = json.loads(record.notebook_path.read_text())
    kinds = {kind for cell in notebook["cells"] for out in cell.get("outputs", []) for kind in out.get("data", {})}
    assert "application/vnd.jupyter.widget-view+json" not in kinds
