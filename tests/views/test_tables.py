"""Small tables: escaped, aligned, readable without a style sheet."""

import pytest

from opslib.domain.states import State
from opslib.views.tables import Html, table, text_table
from opslib.views.theme import MUTED, STATE_COLOURS, badge


def luminance(colour):
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("state", list(State))
def test_badges_have_enough_contrast(state):
    """White on each state's colour is at least 4.5:1 (WCAG AA), and the word is there without the colour."""
    assert contrast("#ffffff", STATE_COLOURS[state]) >= 4.5
    assert state.value in badge(state)


def test_quiet_text_reads_on_light_and_dark():
    """Notes keep 3.9:1 on white and on JupyterLab's dark."""
    assert min(contrast(MUTED, "#ffffff"), contrast(MUTED, "#111111")) >= 3.9


def test_cells_are_escaped_unless_they_are_html():
    """What a host said is never markup."""
    html = table([("<script>", Html("<b>x</b>"))], ["a", "b"])
    assert "&lt;script&gt;" in html
    assert "<b>x</b>" in html


def test_states_are_badges_and_none_is_a_dash():
    """A state cell is a badge in HTML and a symbol with its word in text."""
    assert badge(State.WARNING) in table([(State.WARNING,)], ["state"])
    assert text_table([(State.WARNING, None)], ["state", "n"]).splitlines()[1].split() == ["!", "warning", "-"]


def test_numbers_stand_right_in_both_forms():
    """Columns of numbers are aligned by attribute too, since GitHub strips styles."""
    assert '<td align="right"' in table([(1,), (1000,)], ["n"])
    assert text_table([(1,), (1000,)], ["n"]).splitlines() == ["    n", "    1", "1,000"]


def test_rows_may_be_mappings():
    """A mapping gives its columns by name; a missing one is a dash."""
    assert text_table([{"b": "y"}], ["a", "b"]).splitlines()[1] == "-  y"


def test_no_rows_are_a_head():
    """A table without rows still names its columns."""
    assert "<th" in table([], ["a"])
    assert text_table([], ["a", "b"]) == "a  b"
