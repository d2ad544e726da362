"""Big outputs: a summary stays in the notebook, the whole lies beside it, and nothing small is touched."""

import json

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from opslib.domain.big_outputs import LONGEST, shorten_outputs

BIG = "".join(f"line {number}\n" for number in range(100_000))


def test_big_outputs_are_cut_and_kept_whole():
    """Streams, tables and texts over the limit keep their beginning and end; the whole has a file that is named there."""
    table = f"<table>{'<tr><td>x</td></tr>' * 20_000}</table>"
    outputs = [
        new_output("stream", name="stdout", text=BIG),
        new_output("display_data", {"text/html": table, "text/plain": "a table of 20,000 rows"}),
        new_output("display_data", {"text/plain": BIG.splitlines(keepends=True), "image/png": "A" * 300_000}),
    ]
    notebook = new_notebook(cells=[new_markdown_cell("# x"), new_code_cell("x", outputs=outputs)])
    short, beside = shorten_outputs(notebook)
    assert beside == {
        "outputs/cell-02-1.txt": BIG,
        "outputs/cell-02-2.html": table,
        "outputs/cell-02-3.txt": BIG,
    }
    stream, shown, both = short["cells"][1]["outputs"]
    assert stream["text"].startswith("line 0\n")
    assert "line 99999\n" in stream["text"]
    assert f"[{len(BIG):,} characters in all: outputs/cell-02-1.txt]" in stream["text"]
    assert shown["data"]["text/html"].startswith("<pre>a table of 20,000 rows")
    assert both["data"]["image/png"] == "A" * 300_000
    assert len(json.dumps(short)) < LONGEST * 2
    assert shorten_outputs(short) == (short, {})


def test_small_outputs_stay_as_they_are():
    """A notebook without big outputs is the same, and nothing is written beside it."""
    cell = new_code_cell("x", outputs=[new_output("stream", name="stdout", text="x" * LONGEST)])
    notebook = new_notebook(cells=[cell])
    assert shorten_outputs(notebook) == (notebook, {})
