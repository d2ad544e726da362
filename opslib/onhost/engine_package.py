"""What an installed vLLM is, read from its files: nothing is imported, which would take 20 seconds.

Its command line's flags, the CUDA version that its torch was built for, and where the package lies.
"""

import glob
import json
import os
import re
from typing import Any, Dict, Set

from opslib.onhost.installed import package_folders
from opslib.onhost.processes import read_text

_SOURCES = (  # vLLM 0.8 to 0.32: the engine's flags, then the server's
    "vllm/engine/arg_utils.py",
    "vllm/entrypoints/*/cli_args.py",
    "vllm/entrypoints/cli/serve.py",
)
_MAX_BYTES = 4000000
_LITERAL = re.compile(r"""["'](--?[A-Za-z][A-Za-z0-9_-]*)["']""")
# vllm/entrypoints/*/cli_args.py: each field of these classes is a flag
_FLAG_CLASS = re.compile(r"^class \w*FrontendArgs\b.*?(?=^\S(?!.*FrontendArgs)|\Z)", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^    ([a-z]\w*)\s*:", re.MULTILINE)


def main(arguments: Dict[str, Any]) -> int:
    """Print what the vLLM beside the program `vllm` is."""
    print(json.dumps(read_engine_package(arguments["vllm"])), flush=True)
    return 0


def read_engine_package(program: str) -> Dict[str, Any]:
    """Facts about the vLLM beside `program`: is_program, flags (none: not known), torch and its CUDA version."""
    facts = {"is_program": os.access(program, os.X_OK) and os.path.isfile(program), "flags": [], "cuda": ""}
    for folder in package_folders([program]):
        flags = _flags(folder)
        if flags and not facts["flags"]:
            facts["flags"] = sorted(flags)
        build = read_text(os.path.join(folder, "torch", "version.py"), 20000)
        found = re.search(r"^cuda\b[^=]*= '([\d.]+)'", build, re.MULTILINE)
        if found and not facts["cuda"]:
            facts["cuda"] = found.group(1)
    return facts


def _flags(folder: str) -> Set[str]:
    if not os.path.isfile(os.path.join(folder, _SOURCES[0])):
        return set()
    paths = [path for pattern in _SOURCES for path in glob.glob(os.path.join(glob.escape(folder), pattern))]
    flags = set()  # type: Set[str]
    for path in paths:
        flags |= flags_in(read_text(path, _MAX_BYTES))
    return flags


def flags_in(source: str) -> Set[str]:
    r"""The flags that a source file of vLLM defines: literals, and the fields of its argument classes.

    >>> sorted(flags_in("add('--model')\nclass FrontendArgs:\n    allow_credentials: bool = False\n"))
    ['--allow-credentials', '--model']
    """
    fields = [name for block in _FLAG_CLASS.findall(source) for name in _FIELD.findall(block)]
    return {name.replace("_", "-") for name in _LITERAL.findall(source)} | {
        "--" + name.replace("_", "-") for name in fields
    }
