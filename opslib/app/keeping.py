"""Keeps a notebook that a person runs in JupyterLab as its record: each save of it is copied there, redacted.

`make lab` loads this module as an extension of the Jupyter server. Headless, papermill writes the record itself.
"""

import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from opslib.app.catalogue import default_runs_dir
from opslib.app.completing import complete_record
from opslib.domain.parameters import validate_parameters
from opslib.errors import OpslibError
from opslib.hosts.inventory import inventory_path
from opslib.records.folder import NOTEBOOK_FILE, RunFolder
from opslib.records.secrets import reference_secrets
from opslib.views.records import record_note

METADATA_KEY = "opslib_record"  # of the output that names a run's record folder


def show_record_note(folder: Path) -> None:
    """Say in the notebook where its record is; the saving server reads the output's metadata."""
    from IPython import get_ipython  # noqa: PLC0415 - only where somebody looks
    from IPython.display import display  # noqa: PLC0415

    if get_ipython() is not None:
        display(record_note(folder.name), metadata={METADATA_KEY: folder.name})  # type: ignore[no-untyped-call]


def record_named_in(notebook: dict[str, Any]) -> str:
    """The record folder that a saved notebook says it belongs to: the last one named by an output; else empty."""
    names = [
        str(output.get("metadata", {}).get(METADATA_KEY, ""))
        for cell in notebook.get("cells", [])
        for output in cell.get("outputs", [])
    ]
    return next((Path(name).name for name in reversed(names) if name), "")


def keep_saved(os_path: str, runs_dir: Path) -> Path | None:
    """Copy a saved notebook into its record, redacted, its links made to fit there; None for one without a record."""
    notebook = json.loads(Path(os_path).read_text("utf-8"))
    name = record_named_in(notebook)
    path = runs_dir / name
    if not name or not path.is_dir() or path / NOTEBOOK_FILE == Path(os_path):
        return None
    folder = RunFolder.open(path, secrets=_secrets_of(path))
    inside = f"{os.path.relpath(path, Path(os_path).parent)}/"  # as a link from the saved notebook begins
    folder.write_notebook(notebook, replace=(inside, ""))
    record = folder.read_record()
    if record is not None and record.is_ended:
        threading.Thread(target=complete_record, args=(folder,), name="opslib-complete").start()
    return folder.notebook_path


def _secrets_of(path: Path) -> tuple[str, ...]:
    """The secrets that a record's parameters refer to, where they can still be read."""
    with suppress(OpslibError):
        record = RunFolder.open(path).read_record()
        if record is not None:
            return tuple(reference_secrets(validate_parameters(record.runbook, record.parameters).references))
    return ()


def _load_jupyter_server_extension(server: Any) -> None:
    """Jupyter's entry point: after each save of a notebook, keep it; the kernels find the same hosts.toml."""
    inventory = inventory_path()
    if inventory is not None:
        os.environ.setdefault("OPSLIB_HOSTS", str(inventory.resolve()))

    def after_save(os_path: str, model: dict[str, Any], **_: Any) -> None:
        if model["type"] == "notebook":
            keep_saved(os_path, default_runs_dir())

    server.contents_manager.register_post_save_hook(after_save)
