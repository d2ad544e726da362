"""Lets the host's own `systemd-analyze verify` read a unit that isn't installed, from a directory of its own.

Prints one JSON line {"text": what it said, "problem": why there is nothing}; the directory is gone afterwards.
"""

import json
import os
import subprocess
import tempfile
from typing import Any, Dict

TIMEOUT_S = 20


def main(arguments: Dict[str, Any]) -> int:
    """Run with {"unit": "vllm-a.service", "text": "[Unit]...", "scope": "system" | "user"}."""
    scope = ["--user"] if arguments.get("scope") == "user" else []
    text, problem = "", ""
    try:
        with tempfile.TemporaryDirectory(prefix="opslib-") as directory:
            path = os.path.join(directory, os.path.basename(arguments["unit"]))
            with open(path, "wb") as file:
                file.write(arguments["text"].encode("utf-8", "surrogateescape"))
            answer = subprocess.run(
                ["systemd-analyze", *scope, "verify", path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
                check=False,
            )
            text = answer.stdout.decode("utf-8", "replace")
    except OSError as error:
        problem = error.strerror or str(error)
    except subprocess.TimeoutExpired:
        problem = "no answer in %d s" % TIMEOUT_S
    print(json.dumps({"text": text, "problem": problem}), flush=True)
    return 0
