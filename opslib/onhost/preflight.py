"""Gathers, in one look and without changing anything, what a launch depends on; prints one JSON document.

It is a survey (whose arguments it takes) and what a survey doesn't ask: samples of GPU memory, who owns the processes
that hold it, the installed engine's flags, the model as the unit's user sees it, its receipts, limits, caches, the
lock. More arguments: {"n_samples", "pause_s", "user": who the engine runs as, "" for the unit's own or else
"default_user", "model_path", "state_dir", "cache_dir", "lock_path"}; more commands: "gpu_detail", "settings" of the
unit, "owners" (names appended).
"""

import json
import os
import pwd
import re
import resource
import time
from typing import Any, Callable, Dict, List, Optional

from opslib.onhost.digest_receipts import Receipts, marks_of, receipt_folders
from opslib.onhost.engine_package import read_engine_package
from opslib.onhost.identity import login
from opslib.onhost.lock import is_running, read_lock, started_ticks
from opslib.onhost.processes import ancestors, command_line, read_text, unit_of_cgroup
from opslib.onhost.survey import Background, ask, filesystem_at, look
from opslib.onhost.verify_files import list_files, reader_for, resolve_root

_FILES_S = 15.0  # a network file system may hang
_MAX_HOLDERS = 64
_INVOCATION = b"INVOCATION_ID="


def main(arguments: Dict[str, Any]) -> int:
    """Print everything that is asked; always exit status 0."""
    settings = ask(arguments["commands"]["settings"], arguments["timeout_s"])["text"]
    background = Background(
        {
            "samples": lambda: _samples(arguments),
            "engine": lambda: read_engine_package(arguments["vllm"]),
            "places": lambda: _places(arguments, settings),
        }
    )
    survey = look(arguments)
    found = background.answers(_FILES_S)
    document = {
        "survey": survey,
        "settings": settings,
        "samples": found.get("samples", []),
        "owners": _owners(arguments, survey["answers"].get("gpu_processes", {}).get("text", "")),
        "engine": found.get("engine"),
        "places": found.get("places"),
        "limits": _limits(),
        "lock": _lock(arguments["lock_path"]),
    }
    print(json.dumps(document), flush=True)
    return 0


def _samples(arguments: Dict[str, Any]) -> List[str]:
    """GPU memory again and again; nothing where there is no nvidia-smi."""
    texts = []  # type: List[str]
    argv = arguments["commands"].get("gpus")
    for _ in range(arguments["n_samples"] if argv else 0):
        time.sleep(arguments["pause_s"])
        answer = ask(argv, arguments["timeout_s"])
        if answer["exit_status"] != 0:
            break
        texts.append(answer["text"])
    return texts


def _owners(arguments: Dict[str, Any], holders: str) -> List[Dict[str, Any]]:
    """What tells a left-over engine from one that a unit runs, for each process that holds GPU memory."""
    pids = sorted({int(pid) for pid in re.findall(r"^[^,]*,\s*(\d+)", holders, re.MULTILINE)})[:_MAX_HOLDERS]
    owners = [_owner(pid) for pid in pids]
    names = sorted({owner["cgroup_unit"] for owner in owners if owner["cgroup_unit"]})
    shown = ask([*arguments["commands"]["owners"], "--", *names], arguments["timeout_s"]) if names else {"text": ""}
    units = {}  # type: Dict[str, Dict[str, str]]
    for block in shown["text"].split("\n\n"):
        properties = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        units[properties.get("Id", "")] = properties
    for owner in owners:
        unit = units.get(owner["cgroup_unit"], {})
        owner["unit_state"] = unit.get("ActiveState", "")
        owner["unit_invocation_id"] = unit.get("InvocationID", "")
        main_pid = int(unit.get("MainPID") or 0)
        owner["is_of_main_process"] = bool(main_pid) and main_pid in ancestors(owner["pid"])
    return owners


def _owner(pid: int) -> Dict[str, Any]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            words = [word for word in file.read(200000).split(b"\0") if word.startswith(_INVOCATION)]
    except OSError:
        words = []  # one variable is looked at; the others may be secret
    return {
        "pid": pid,
        "name": read_text("/proc/%d/comm" % pid).strip(),
        "is_engine_command": bool(re.search(r"\bvllm\b|sglang|llama-server", " ".join(command_line(pid)))),
        "started_ticks": started_ticks(pid),
        "cgroup_unit": unit_of_cgroup(read_text("/proc/%d/cgroup" % pid)),
        "invocation_id": words[0][len(_INVOCATION) :].decode("ascii", "replace") if words else "",
    }


def _places(arguments: Dict[str, Any], settings: str) -> Dict[str, Any]:
    """What lies on disks: the model as its user sees it, its receipts, and where the engine writes its caches."""
    named = re.search(r"^User=(.+)$", settings, re.MULTILINE)
    user = arguments["user"] or (named.group(1).strip() if named else "") or arguments["default_user"] or login()
    return {
        "user": user,
        "model": _model(arguments["model_path"], user, arguments["state_dir"]),
        "cache": _filesystem_for(arguments["cache_dir"] or os.path.join(_home(user), ".cache")),
        "tmp": _filesystem_for("/tmp"),  # noqa: S108 - only looked at
    }


def _home(user: str) -> str:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return "/"


def _filesystem_for(path: str) -> Dict[str, Any]:
    """The file system that a path lies on, or would lie on."""
    there = path
    while not os.path.exists(there) and there not in ("", "/"):
        there = os.path.dirname(there)
    return dict(filesystem_at(there or "/"), path=path)


def _model(path: str, user: str, state_dir: str) -> Dict[str, Any]:
    root = resolve_root(path)[0] if path else ""
    facts = {"path": path, "problem": "", "n_files": 0, "unreadable": [], "size_bytes": 0}  # type: Dict[str, Any]
    if not root.startswith("/"):
        return dict(facts, problem="is no path on this host")
    if not os.path.isdir(root):
        return dict(facts, problem="no such directory")
    try:
        files = list_files(root, _reader(user))
    except KeyError:
        return dict(facts, problem="the user %s does not exist" % user)
    own = [file for file in files if not file["path"].startswith(".cache")]
    unreadable = [file["path"] for file in own if not file["is_readable"]]
    facts.update(n_files=len(own), unreadable=unreadable[:5], n_unreadable=len(unreadable))
    facts.update(size_bytes=sum(file["size"] for file in own), receipts=_receipts(root, own, state_dir))
    return facts


def _reader(user: str) -> Callable[[str, os.stat_result], bool]:
    return reader_for(None if user == login() else user)


def _receipts(root: str, files: List[Dict[str, Any]], state_dir: str) -> Optional[Dict[str, Any]]:
    """How many files were hashed and are as they were then, changed since, or were never hashed."""
    for folder in receipt_folders(state_dir):
        receipts = Receipts(folder, root)
        if not receipts.known:
            continue
        counts = {"n_fresh": 0, "n_changed": 0, "n_missing": 0}
        for file in files:
            row = receipts.known.get(file["path"])
            kind = "n_missing" if row is None else "n_fresh" if row["marks"] == _marks(root, file) else "n_changed"
            counts[kind] += 1
        return dict(counts, kept_at=os.stat(str(receipts.path)).st_mtime)
    return None


def _marks(root: str, file: Dict[str, Any]) -> List[int]:
    try:
        return marks_of(os.stat(os.path.join(root, file["path"])))
    except OSError:
        return []


def _limits() -> Dict[str, Any]:
    """What the kernel, PID 1 and this login allow; -1 for no limit."""
    kinds = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK}
    own = {name: resource.getrlimit(kind)[1] for name, kind in kinds.items()}
    text = read_text("/proc/1/limits")
    rows = {"nofile": "Max open files", "memlock": "Max locked memory"}
    first = {name: re.search(r"^%s\s+\S+\s+(\S+)" % row, text, re.MULTILINE) for name, row in rows.items()}
    return {
        "own": own,
        "system": {name: _limit(match.group(1)) for name, match in first.items() if match},
        "nr_open": int(read_text("/proc/sys/fs/nr_open").strip() or 0),
    }


def _limit(word: str) -> int:
    return int(word) if word.isdigit() else -1


def _lock(path: str) -> Dict[str, Any]:
    """Who a lock file names, and whether the program that holds it runs."""
    found = read_lock(path)
    return {"holder": found.get("holder"), "pid": found.get("pid"), "is_held": is_running(found)}
