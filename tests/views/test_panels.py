"""Panels: the same final state as HTML and as text, escaped, readable where styles are stripped."""

import html
import re

import pytest

from opslib.views.panels import diff_html, next_runbook, quote
from opslib.views.parameters import field_note, form_status
from opslib.views.records import records_table
from opslib.views.shown import Shown
from opslib.views.theme import TEXT_COLOURS
from tests.views.test_tables import contrast


def stripped(markup):
    """What a reader sees where styles and tags are stripped."""
    return html.unescape(re.sub(r"<[^>]+>", "", markup))


@pytest.mark.parametrize("colour", TEXT_COLOURS.values())
def test_coloured_text_reads_on_light_and_dark(colour):
    """Text in a state's colour keeps 4.2:1 on white and on JupyterLab's dark."""
    assert min(contrast(colour, "#ffffff"), contrast(colour, "#111111")) >= 4.2


def test_quoted_lines_stay_lines():
    """A quoted line is one line of text, and never markup."""
    assert stripped(quote(["one <b>", "two"])) == "one <b>\ntwo\n"
    assert "<b>" not in quote(["one <b>"])


def test_diff_keeps_its_marks():
    """Added and removed lines are told by their mark where colours are lost."""
    diff = "--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new\n same"
    assert stripped(diff_html(diff)) == diff + "\n"


def test_way_on_has_link_and_command():
    """The way on is a link for a person and a command for a shell, both escaped."""
    shown = next_runbook(Shown("", ""), "30-launch", "Start <it>", "opslib run 30-launch", href='next-"30".ipynb')
    assert 'href="next-&quot;30&quot;.ipynb"' in shown.html
    assert "Start &lt;it&gt;" in shown.html
    assert shown.text == "→ Start <it>: opslib run 30-launch"


def test_field_tells_its_problem_instead_of_its_meaning():
    """Beside a field stands what it means with its bounds, or why its value is refused."""
    assert "port of the engine (1 to 65,535)" in field_note("port of the engine", "1 to 65,535", None)
    assert field_note("port of the engine", "", "expected <int>").count("expected &lt;int&gt;") == 1
    assert "mend port" in form_status({"port": 1}, {"port": "x"}, {"port": "no"})
    assert "port = 2" in stripped(form_status({"port": 1}, {"port": 2}, {}))


@pytest.mark.parametrize("state", ["ok", "critical", "running", "interrupted", "unreadable"])
def test_records_are_listed_in_any_state(state):
    """A record that runs, was interrupted or can't be read is a row like the others."""
    entry = {"started_at": None, "host": "", "unit": "", "runbook": "", "state": state, "outcome": "<b>"}
    shown = records_table([entry], ["../runs/x/record.html"])
    assert state in shown.text
    assert 'href="../runs/x/record.html"' in shown.html
    assert "&lt;b&gt;" in shown.html


def test_no_records_is_a_sentence():
    """An empty list says so."""
    assert "no record matches" in records_table([], nothing="no record matches").text
