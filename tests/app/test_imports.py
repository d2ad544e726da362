"""What a start does not pay for: modules that bring much and are needed late or never."""

import subprocess
import sys

import pytest

from opslib.cli.main import VERBS

LOADED = "import sys, {module}; print(*sorted({unwanted} & set(sys.modules)))"
ALL_VERBS = ", ".join(sorted({place.split(":")[0] for place, _ in VERBS.values()}))
# modules, and what a process that imports it must not have loaded by that
NOT_BROUGHT = {
    "opslib.app.sections": {
        "nbformat",
        "nbconvert",
        "papermill",
        "jsonschema",
        "pandas",
        "lark",
        "matplotlib",
        "plotly",
    },
    "opslib.app.headless": {"nbconvert", "pandas", "matplotlib", "plotly", "lark"},
    ALL_VERBS: {"nbconvert", "pandas", "matplotlib", "plotly", "IPython", "prefect", "asyncssh"},
}


@pytest.mark.parametrize("module", NOT_BROUGHT, ids=["kernel", "headless", "verbs"])
def test_a_start_brings_what_it_needs(module: str) -> None:
    """A kernel, or a headless run's process, loads no library at its start that only its end needs, and no grammar of IRIs.

    No verb of the command line loads what draws.
    """
    code = LOADED.format(module=module, unwanted=NOT_BROUGHT[module])
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split() == []
