"""The offline page of a record: the executed notebook as one self-contained HTML file."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import nbformat
from nbconvert.exporters import HTMLExporter

from opslib.domain.record import RunRecord
from opslib.errors import CouldNotFindOut
from opslib.records.folder import HTML_FILE, NOTEBOOK_FILE, RunFolder
from opslib.records.offline import offline_html

_TEMPLATES = files("opslib.records").joinpath("templates")
_SYMBOLS = {"ok": "✓", "warning": "!", "critical": "✗", "unknown": "?", "interrupted": "✗", "running": "…"}
# ansi2html's classes, in colours that read on both papers
_ANSI = {
    "red": "#cf222e",
    "green": "#2da44e",
    "yellow": "#bf8700",
    "blue": "#388bfd",
    "magenta": "#a371f7",
    "cyan": "#1b9ea8",
}


def export_html(folder: RunFolder) -> Path:
    """Write `record.html` from the folder's notebook and record; raises CouldNotFindOut where there is neither.

    A run that was killed before its first save has no notebook: its page has the record's facts alone.
    """
    record = folder.read_record()
    try:
        notebook = nbformat.reads(folder.notebook_path.read_text("utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        if record is None:
            raise CouldNotFindOut(f"{folder.path} holds no {NOTEBOOK_FILE}") from None
        notebook = nbformat.v4.new_notebook()  # type: ignore[no-untyped-call]
    return folder.write_text(HTML_FILE, render_html(notebook, record))


def render_html(notebook: nbformat.NotebookNode, record: RunRecord | None) -> str:
    """One HTML page without any outside address: outcome and sections on top, prose and outputs, code folded."""
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]
        template_name="opslib", extra_template_basedirs=[str(_TEMPLATES)], exclude_anchor_links=True
    )
    title = _title(notebook, record)
    resources = {
        "record": record,
        "title": title,
        "symbols": _SYMBOLS,
        "style": _TEMPLATES.joinpath("opslib/style.css").read_text("utf-8"),
        "ansi_style": "".join(
            f".ansi-{name}-fg, .ansi-{name}-intense-fg {{ color: {code}; }}" for name, code in _ANSI.items()
        ),
        "started_at": record.started_at.strftime("%Y-%m-%d %H:%M:%S UTC") if record else "",
        "took": _took(record),
    }
    page, _ = exporter.from_notebook_node(_prepared(notebook, title), resources=resources)
    return offline_html(page)


def _title(notebook: nbformat.NotebookNode, record: RunRecord | None) -> str:
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            return str(cell.source.splitlines()[0][2:].strip())
    return record.runbook if record else "Record"


def _prepared(notebook: nbformat.NotebookNode, title: str) -> nbformat.NotebookNode:
    """The notebook without the heading that stands on top of the page already, attached pictures in their place."""
    for cell in notebook.cells:
        for name, bundle in cell.get("attachments", {}).items():
            cell.source = cell.source.replace(f"attachment:{name}", _picture(bundle))
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace("](attachment:", "](#not-attached:")
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith(f"# {title}"):
            cell.source = "\n".join(cell.source.splitlines()[1:])
            break
    return notebook


def _picture(bundle: Mapping[str, str]) -> str:
    """The address of an attached picture: the picture itself; one that isn't there leads nowhere."""
    return next((f"data:{kind};base64,{bundle[kind]}" for kind in bundle if kind.startswith("image/")), "#not-attached")


def _took(record: RunRecord | None) -> str:
    if record is None or record.ended_at is None:
        return ""
    seconds = (record.ended_at - record.started_at).total_seconds()
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
