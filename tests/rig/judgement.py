"""What a deploy's record says of the deploy, when the machine that runs the tests was busy beside it."""

import json
from pathlib import Path
from typing import Any


def apart_from_load(record: dict[str, Any]) -> tuple[str, int]:
    """The outcome's state and its exit code; a warning that says only "the client was disturbed" counts as ok.

    Anything else that was found, in the benchmark or in another section, leaves the warning as it is.
    """
    state, exit_code = record["outcome"]["state"], record["exit_code"]
    warned = [section for section in record["sections"] if section["state"] == "warning"]
    if state != "warning" or [section["name"] for section in warned] != ["benchmark"]:
        return state, exit_code
    value = warned[0]["value"]
    found = {check["name"] for check in [*value["checks"], value["steadiness"]] if check["state"] != "ok"}
    return ("ok", 0) if found == {"client"} else (state, exit_code)


def judged(folder: Path) -> tuple[str, int]:
    """The same of the record in a run's folder."""
    return apart_from_load(json.loads((folder / "record.json").read_text()))
