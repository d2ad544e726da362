"""Reads what hosts that should be alike are compared by, in one look, and prints one JSON document.

Gathers only, and changes nothing. Arguments: a survey's "units", "unit_dir", "vllm", "commands" (list_units, show,
gpus), "timeout_s"; "gpu_timeout_s", "state_dir", "salt" of the digests, "own" (what is this host's: [text,
placeholder] pairs), "secret" (which names say that a value is one).
"""

import errno
import hashlib
import json
import os
import re
import socket
from typing import Any, Dict, List, Optional

from opslib.onhost.digest_receipts import Receipts, marks_of, receipt_folders
from opslib.onhost.engine_argv import flag_value, read_engine_arguments
from opslib.onhost.identity import identity
from opslib.onhost.installed import installed_version, package_folders
from opslib.onhost.model_files import describe_model
from opslib.onhost.processes import command_line, read_text
from opslib.onhost.survey import Background, ask, properties_of, unit_blocks
from opslib.onhost.unit_settings import Reader, file_variables, read_unit, weights_content

_FILES_S = 10.0  # a network file system may hang
_WEIGHTS = (".safetensors", ".gguf", ".bin")


def main(arguments: Dict[str, Any]) -> int:
    """Print everything that is compared; always exit status 0."""
    print(json.dumps(look(arguments)), flush=True)
    return 0


def look(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Everything that is compared, as one JSON object."""
    who = identity()
    own = [*arguments["own"], [socket.gethostname(), "{hostname}"], *([each, "{address}"] for each in _addresses())]
    reader = Reader(arguments["salt"], arguments["secret"], own)
    jobs = {
        "gpus": lambda: ask(arguments["commands"]["gpus"], arguments["gpu_timeout_s"]),
        "engine": lambda: _engine(arguments["vllm"]),
    }
    background = Background(jobs)
    blocks, problem = unit_blocks(arguments)
    told = Background(
        {str(at): _unit_job(properties_of(block), arguments, reader) for at, block in enumerate(blocks)}
    ).answers(_FILES_S)
    found = background.answers(max(_FILES_S, arguments["gpu_timeout_s"] + 1.0))
    return {
        "identity": who,
        "gpus": found.get("gpus"),
        "engine": found.get("engine"),
        "units": [
            told.get(str(at)) or {"id": properties_of(block).get("Id", ""), "problem": "its files do not answer"}
            for at, block in enumerate(blocks)
        ],
        "units_problem": problem,
    }


def _addresses() -> List[str]:
    """The host's own IPv4 addresses, as the kernel's routes know them."""
    routes = read_text("/proc/net/fib_trie")
    found = set(re.findall(r"\|-- (\d+\.\d+\.\d+\.\d+)\n +/32 host LOCAL", routes))
    return sorted(address for address in found if not address.startswith("127."))


def _engine(program: str) -> Dict[str, Any]:
    """Version of the engine beside its program, and of the Python that it lies in."""
    folders = package_folders([program]) if program else []
    versions = [re.search(r"/python(3[.\d]*)/", folder + "/") for folder in folders]
    return dict(installed_version([program], "vllm"), python=next((found.group(1) for found in versions if found), ""))


def _unit_job(properties: Dict[str, str], arguments: Dict[str, Any], reader: Reader) -> Any:
    return lambda: _unit(properties, arguments, reader)


def _unit(properties: Dict[str, str], arguments: Dict[str, Any], reader: Reader) -> Dict[str, Any]:
    pid = int(properties.get("MainPID") or 0)
    paths = [properties.get("FragmentPath", ""), *properties.get("DropInPaths", "").split()]
    files = [_read(path) for path in paths if path]
    unread = [path for path, text in zip([path for path in paths if path], files) if text is None]
    unit = read_unit([text for text in files if text is not None], reader)
    declared, file_problem = _declared(unit)
    running = command_line(pid) if pid else []
    return {
        "id": properties.get("Id", ""),
        "load_state": properties.get("LoadState", ""),
        "active_state": properties.get("ActiveState", ""),
        "problem": "%s may not be read" % unread[0] if unread else "",
        "settings": unit["settings"],
        "argv": reader.words(unit["argv"]),
        "environment": reader.variables(declared),
        "environment_problem": file_problem,
        "process": _process(pid, running, reader) if pid else None,
        "model": _model(running or unit["argv"], arguments["state_dir"]),
    }


def _declared(unit: Dict[str, Any]) -> Any:
    """The variables that a unit's files set, those of environment files included; and which file can't be read."""
    variables, problem = dict(unit["environment"]), ""
    for named in unit["environment_files"]:
        path = named.lstrip("-")
        text = _read(path)
        if text is not None:
            variables.update(file_variables(text))
        elif os.path.exists(path) or not named.startswith("-"):
            problem = problem or "%s may not be read" % path
    return variables, problem


def _process(pid: int, running: List[str], reader: Reader) -> Dict[str, Any]:
    """What the kernel says of the main process: command line, environment, limits."""
    environ = _read("/proc/%d/environ" % pid)
    pairs = dict(word.partition("=")[::2] for word in (environ or "").split("\0") if "=" in word)
    rows = re.findall(r"^Max ([a-z ]+?) {2,}(\S+) +(\S+)", read_text("/proc/%d/limits" % pid), re.MULTILINE)
    return {
        "argv": reader.words(running),
        "environment": reader.variables(pairs),
        "environment_problem": "" if environ else "the environment of process %d may not be read" % pid,
        "limits": {name: "%s:%s" % (soft, hard) for name, soft, hard in rows},
    }


def _model(argv: List[str], state_dir: str) -> Optional[Dict[str, Any]]:
    """Which model lies at the path of the command line, and what is known of its content; None without a path."""
    said = read_engine_arguments(argv)
    root = said.model if said else ""
    if not root.startswith("/"):
        return None
    try:
        names = [name for name in os.listdir(root) if name.endswith(_WEIGHTS)]
    except OSError as error:
        return {"problem": "%s: %s" % (root, os.strerror(error.errno or errno.EIO))}
    template = flag_value(argv, ("--chat-template",))
    described = describe_model(root)
    digest = described.get("template_digest", "")
    problem = ""
    if template.startswith("/"):  # else it is the template itself, a word of the command line
        text = _read(template)
        digest = hashlib.sha256((text or "").encode()).hexdigest()
        problem = "" if text is not None else "%s can't be read" % template
    told = {name: described.get(name, "") for name in ("model_digest", "config_digest", "generation_digest")}
    return dict(told, template=digest, template_problem=problem, **_content(root, names, state_dir))


def _content(root: str, names: List[str], state_dir: str) -> Dict[str, Any]:
    """One digest over the receipts of all weight files; "" where one has no receipt that still holds."""
    most = 0
    for folder in receipt_folders(state_dir):
        receipts = Receipts(folder, root)
        whole, n_known = weights_content(names, lambda name, known=receipts: _receipt(known, root, name))
        if whole:
            return {"content": whole, "n_hashed": n_known, "n_files": len(names)}
        most = max(most, n_known)
    return {"content": "", "n_hashed": most, "n_files": len(names)}


def _receipt(receipts: Receipts, root: str, name: str) -> Optional[str]:
    try:
        marks = marks_of(os.stat(os.path.join(root, name)))
    except OSError:
        return None
    found = receipts.find(name, marks, ["sha256"])
    return found["sha256"] if found else None


def _read(path: str) -> Optional[str]:
    """A file's text; None where it can't be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1000000)
    except OSError:
        return None
