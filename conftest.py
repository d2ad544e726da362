"""What every test run needs, the runbooks under nbval included: nobody to click, and records out of the way."""

import atexit
import os
import shutil
import signal
import tempfile
from pathlib import Path

os.environ.setdefault("OPSLIB_HEADLESS", "1")
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, what the tests start would go on ignoring it
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in the background of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)
if "PYTEST_XDIST_WORKER" in os.environ or "OPSLIB_RUNS" not in os.environ:  # no process lists what another is writing
    os.environ["OPSLIB_RUNS"] = tempfile.mkdtemp(prefix="opslib-runs-")
    atexit.register(shutil.rmtree, os.environ["OPSLIB_RUNS"], ignore_errors=True)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Count the tests that ended, over all processes of a parallel run (the names are only for a reader)."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        with Path(os.environ["OPSLIB_TRANSCRIPT"] + ".ended").open("a") as file:
            file.write(f"{nodeid}\n")
