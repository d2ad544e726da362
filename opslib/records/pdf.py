"""A record's page as PDF, printed by Chromium where there is one; it never gets to the network."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from opslib.errors import CouldNotFindOut, reason_of
from opslib.records.folder import atomic_write

PDF_FILE = "record.pdf"
TIMEOUT_S = 60
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no name has an address
    "--proxy-server=127.0.0.1:9",  # and no address an answer
    "--no-pdf-header-footer",
)


def find_chromium() -> str | None:
    """The browser that prints, None where there is none."""
    return next((path for name in _PROGRAMS if (path := shutil.which(name))), None)


def print_pdf(page: Path, target: Path) -> Path:
    """Print an HTML page; raises CouldNotFindOut where there is no browser, or it makes no PDF in a minute."""
    browser = find_chromium()
    if browser is None:
        raise CouldNotFindOut(
            "no Chromium on this machine prints the PDF", hint="install it, or print the page by hand"
        )
    with tempfile.TemporaryDirectory(prefix="opslib-pdf-", ignore_cleanup_errors=True) as place:
        made = Path(place) / PDF_FILE
        # Debian's sandbox needs user namespaces, which containers and root seldom have; the page runs no script.
        argv = [browser, *_FLAGS, "--no-sandbox", f"--user-data-dir={place}/profile", f"--print-to-pdf={made}"]
        try:
            said = subprocess.run(
                [*argv, page.resolve().as_uri()],
                capture_output=True,
                check=False,
                timeout=TIMEOUT_S,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CouldNotFindOut(f"{browser} could not print {page.name}: {reason_of(error)}") from error
        if not made.is_file():
            last = (said.stderr.decode("utf-8", "replace").strip().splitlines() or ["no word"])[-1]
            raise CouldNotFindOut(f"{browser} printed no {page.name}: {last}")
        try:
            atomic_write(target, made.read_bytes())
        except OSError as error:
            raise CouldNotFindOut(f"{target} could not be written: {reason_of(error)}") from error
    return target
