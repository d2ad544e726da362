"""Which version of a Python package lies beside a program: read off the directory's name, nothing is imported."""

import glob
import os
import re
from typing import Any, Dict, List

_PLACES = ("lib*/python3*/site-packages", "lib*/python3*/dist-packages", "lib/python3/dist-packages")


def installed_version(programs: List[str], package: str) -> Dict[str, Any]:
    """The version in the environment of any of these programs, or why it isn't known."""
    known = [path for path in programs if path.startswith("/") and os.path.exists(path)]
    if not known:
        return {"version": "", "problem": "there is no %s" % (programs[0] if programs else package)}
    pattern = re.compile(r"%s(?:_[a-z]+)?-([^-]+)\.dist-info$" % re.escape(package), re.IGNORECASE)
    for folder in package_folders(known):
        names = glob.glob(os.path.join(glob.escape(folder), "%s*.dist-info" % package))
        found = [match.group(1) for match in map(pattern.search, sorted(names)) if match]
        if found:
            return {"version": found[0], "problem": ""}
    return {"version": "", "problem": "no %s-*.dist-info beside %s" % (package, known[0])}


def package_folders(programs: List[str]) -> List[str]:
    """Where the packages of these programs' environments lie, the nearest first."""
    folders = []  # type: List[str]
    for prefix in _prefixes([path for path in programs if path.startswith("/") and os.path.exists(path)]):
        for place in _PLACES:
            folders += sorted(glob.glob(os.path.join(glob.escape(prefix), place)))
    return folders


def _prefixes(programs: List[str]) -> List[str]:
    """Where environments may lie: above the program's bin/, its real file's, and its interpreter's."""
    prefixes = []  # type: List[str]
    for program in programs:
        for path in (program, os.path.realpath(program), _interpreter(program)):
            prefix = os.path.dirname(os.path.dirname(path))
            if prefix and prefix not in prefixes:
                prefixes.append(prefix)
    return [*prefixes, *(["/usr/local"] if "/usr" in prefixes else [])]


def _interpreter(program: str) -> str:
    """The interpreter that a script's first line names."""
    try:
        with open(program, "rb") as file:
            first = file.readline(512)
    except OSError:
        return ""
    words = first[2:].split() if first.startswith(b"#!") else []
    return words[0].decode("utf-8", "replace") if words else ""
