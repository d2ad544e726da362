"""The end of a record: its page, its PDF where it is asked for, and its seal."""

import os
import threading
from collections.abc import Callable

from opslib.records.evidence import redact_again
from opslib.records.folder import RunFolder
from opslib.records.pdf import PDF_FILE, print_pdf
from opslib.records.seal import seal_record

Tell = Callable[[str], None]
_one_at_a_time = threading.Lock()  # two saves in JupyterLab, one soon after the other: the seal is the last word


def complete_record(folder: RunFolder, tell: Tell = lambda _text: None) -> None:
    """Page, PDF (with OPSLIB_RECORD_PDF=1) and seal; what can't be made is told, and takes no outcome away."""
    with _one_at_a_time:
        _try(lambda: redact_again(folder), "its files could not be redacted anew", tell)
        _try(lambda: _export_page(folder), "the HTML page could not be made", tell)
        if os.environ.get("OPSLIB_RECORD_PDF") == "1":
            _try(lambda: print_pdf(folder.html_path, folder.path / PDF_FILE), "the PDF could not be made", tell)
        _try(lambda: seal_record(folder.path), "the record could not be sealed", tell)


def _export_page(folder: RunFolder) -> None:
    from opslib.records.html import export_html  # noqa: PLC0415 - brings nbconvert, which a run needs at its end alone

    export_html(folder)


def _try(work: Callable[[], object], otherwise: str, tell: Tell) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - a record without its page is still a record
        tell(f"{otherwise}: {error}")
