"""What every test run needs, the runbooks under nbval included: nobody to click, and records out of the way."""

import os
import tempfile

os.environ.setdefault("OPSLIB_HEADLESS", "1")
os.environ.setdefault("OPSLIB_RUNS", tempfile.mkdtemp(prefix="opslib-runs-"))
