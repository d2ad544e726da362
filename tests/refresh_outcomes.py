"""Run every runbook and keep the outputs of its NBVAL_CHECK_OUTPUT cells, for nbval to compare with later.

A maintainer's tool: `python tests/refresh_outcomes.py [NAME...]`; read the diff before you commit it.
"""

import sys
import tempfile
from pathlib import Path

import nbformat

from opslib.app.catalogue import list_runbooks
from opslib.app.headless import run_headless

MARK = "NBVAL_CHECK_OUTPUT"


def refresh(name: str, path: Path) -> str:
    """Execute one runbook with its defaults; the outcome that it came to."""
    with tempfile.TemporaryDirectory() as runs:
        result = run_headless(name, {}, runs_dir=Path(runs))
        executed = nbformat.read(result.folder / "notebook.ipynb", as_version=4)
    outputs = {cell.source: cell.outputs for cell in executed.cells if MARK in cell.source}
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.source in outputs:
            cell.outputs = outputs[cell.source]
            cell.execution_count = 1  # nbval takes a cell without one for a cell that was never run
            for output in cell.outputs:
                if "execution_count" in output:
                    output["execution_count"] = 1
    nbformat.write(notebook, path)
    return f"{name}: {result.outcome.state.value}: {result.outcome.reason}"


if __name__ == "__main__":
    wanted = sys.argv[1:]
    for known, notebook_path in list_runbooks().items():
        if not wanted or known in wanted:
            print(refresh(known, notebook_path))
