"""The verdict card: the same lines in a notebook and in a terminal."""

import re
from html import unescape

from opslib.domain.diagnosis import Diagnosis, Evidence, RuledOut
from opslib.domain.diagnosis_catalogue import Remedy
from opslib.domain.verdict_card import VerdictCard
from opslib.views.diagnosis import verdict_panel, verdict_text

CARD = VerdictCard(
    diagnosis=Diagnosis(
        cause="configuration/port-in-use",
        confidence="high",
        summary="The port is taken.",
        evidence=(Evidence(line=4, text="OSError: <98>", process="APIServer", logged_at="12:00"),),
        consequences=(Evidence(line=9, text="exited"),),
        ruled_out=(RuledOut(cause="process/killed", reason="printed later"),),
        remedies=(
            Remedy(text="Move.", flag="--port", value="8001", diff="--- a\n+++ b\n+    --port 8001\n", cost="clients", check="ask"),
            Remedy(text="Find the holder.", command="ss -ltnp"),
        ),
    ),
    missing=("kernel messages: no sudo",),
)  # fmt: skip


def test_html_and_text_say_the_same():
    """Every line of the text stands in the page, escaped."""
    shown = verdict_panel("h1", CARD)
    page = " ".join(unescape(re.sub(r"<[^>]+>", " ", shown.html)).split())
    for line in shown.text.splitlines():
        words = " ".join(re.sub(r"^\s*(?:\||\d+\.)?\s*", "", line).rstrip(":").split())
        assert words.replace("✗ critical h1: ", "") in page.replace(" : ", ": "), line
    assert "<98>" not in shown.html


def test_ways_out_stand_in_order_with_all_that_is_known():
    """Number, change, cost, check, command."""
    text = verdict_text("", CARD)
    assert text.startswith("✗ critical  configuration/port-in-use (high confidence): The port is taken.")
    assert (
        text.index("1. Move.") < text.index("+    --port 8001") < text.index("costs: clients") < text.index("2. Find")
    )
    assert "line 5  12:00 APIServer: OSError: <98>" in text
    assert "type: ss -ltnp" in text
