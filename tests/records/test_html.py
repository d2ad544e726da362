"""The offline page: everything shows, nothing is asked of the network."""

import re
from datetime import UTC, datetime

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from opslib.domain.parameters import validate_parameters
from opslib.domain.record import SectionRecord, new_record
from opslib.domain.states import Outcome, State
from opslib.errors import CouldNotFindOut
from opslib.records.folder import RunFolder
from opslib.records.html import export_html, render_html
from opslib.records.offline import offline_html

NOW = datetime(2026, 11, 29, 18, 15, 3, tzinfo=UTC)
ASKED = re.compile(
    r"""(?:src|href|srcset|poster|data|action)\s*=\s*["']?\s*(?:https?:)?//|url\(\s*["']?(?:https?:)?//|@import|<script|<link|<iframe""",
    re.IGNORECASE,
)
FOREIGN = [
    "<script src='https://cdn.plot.ly/plotly.js'></script>",
    "<script>require(['https://x'])</script>",
    "<link rel=stylesheet href=//x.example/a.css>",
    "<iframe src='https://x.example'></iframe>",
    "<img src=https://x.example/a.png onerror=alert(1)>",
    "<IMG SRC='HTTP://x.example/a.png'>",
    "<img srcset='https://x.example/a.png 2x'>",
    "<style>@import 'https://x.example/a.css'; p { background: URL( 'https://x.example/a' ) }</style>",
    "<p style='background:url(//x.example/a)'>p</p>",
    "<svg><image xlink:href='https://x.example/a'/><use href='https://x.example/b#c'></use></svg>",
    "<svg><rect fill='url(https://x.example/a#b)'/></svg>",
    "<object data='https://x.example/a'></object><embed src='https://x.example/a'>",
    "<video poster='https://x.example/a'></video>",
    "<form action='https://x.example/a'></form>",
    "<a href='https://x.example/a'>x</a>",
    "<a href='javascript:alert(1)'>x</a>",
    "<base href='https://x.example/'>",
    "<meta http-equiv='refresh' content='0;url=https://x.example/'>",
]


def record():
    started = new_record("90-deploy", validate_parameters("90-deploy", {}), started_at=NOW)
    section = SectionRecord(name="verify", state=State.OK, summary="125 <shards>", started_at=NOW, duration_s=1.5)
    return started.with_section(section).finished(Outcome(state=State.CRITICAL, reason="a & b died"), NOW)


def page(*outputs, record=None):
    cells = [new_markdown_cell("# Is it up?\nChanges nothing."), new_code_cell("ask(run)", outputs=list(outputs))]
    return render_html(new_notebook(cells=cells), record)


def shown(**data):
    return new_output("display_data", data={name.replace("_", "/"): value for name, value in data.items()})


@pytest.mark.parametrize("foreign", FOREIGN)
def test_nothing_is_asked_of_the_network(foreign):
    """Whatever an output holds, the page asks for nothing outside itself and runs no script."""
    whole = page(shown(text_html=f"<p>before</p>{foreign}<p>after</p>"), record=record())
    assert not ASKED.search(whole)
    assert "alert(1)" not in whole
    assert "<p>after</p>" in whole


def test_outside_links_are_kept_as_text():
    """Where prose points outside, the address can still be read."""
    assert offline_html('<a href="https://docs.vllm.ai">docs</a>').endswith("(https://docs.vllm.ai)</span>")
    assert offline_html('<a href="https://a.b">https://a.b</a>') == "https://a.b"
    assert offline_html('<a href="evidence/a.txt">a</a>') == '<a href="evidence/a.txt">a</a>'


def test_page_says_the_outcome_first():
    """Title, badge, outcome and sections stand before the notebook; text is escaped."""
    whole = page(record=record())
    assert whole.index("✗ critical") < whole.index("a &amp; b died") < whole.index("125 &lt;shards&gt;")
    assert whole.index("125 &lt;shards&gt;") < whole.index("Changes nothing.")
    assert whole.count("Is it up?") == 2  # <title> and heading


def test_all_kinds_of_output_show():
    """Streams, HTML, Markdown, SVG, PNG, plain text and errors all show; a widget shows its text."""
    svg = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><path d="M0 0"/></svg>'
    whole = page(
        new_output("stream", name="stdout", text="\x1b[32mgreen\x1b[0m <b>"),
        shown(**{"text/html": "<b>bold</b>", "image/png": "iVBORw0KGgo="}),
        shown(**{"text/markdown": "*mark*"}),
        shown(**{"image/svg+xml": svg, "text/plain": "fig"}),
        shown(**{"application/vnd.jupyter.widget-view+json": {"model_id": "x"}, "text/plain": "the last state"}),
        new_output("error", ename="E", evalue="was wrong", traceback=["line 1"]),
    )
    for part in ('ansi-green-fg">green', "&lt;b&gt;", "<b>bold</b>", "data:image/png;base64,iVBO", "<em>mark</em>"):
        assert part in whole
    whole = whole.replace("viewBox", "viewbox")  # browsers read both
    for part in ('viewbox="0 0 1 1"', "the last state", "E: was wrong", "line 1"):
        assert part in whole


def test_export_needs_a_notebook(tmp_path):
    """Without an executed notebook there is no page."""
    with pytest.raises(CouldNotFindOut, match=r"no notebook\.ipynb"):
        export_html(RunFolder(tmp_path))


def test_attached_pictures_show():
    """A picture attached to a cell is part of the page; one that is missing leaves the page whole."""
    cell = new_markdown_cell(
        "![a](attachment:a.png) ![b](attachment:b.png)", attachments={"a.png": {"image/png": "iVBORw0K"}}
    )
    whole = render_html(new_notebook(cells=[cell]), record())
    assert 'src="data:image/png;base64,iVBORw0K"' in whole
    assert "attachment:" not in whole
