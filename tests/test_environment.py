"""environment.yml says the same as pyproject.toml, and the lock satisfies both."""

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())
CONDA = [Requirement(line) for line in ENVIRONMENT["dependencies"] if isinstance(line, str)]


def by_name(requirements: list[Requirement]) -> dict[str, str]:
    return {canonicalize_name(one.name): str(one.specifier) for one in requirements}


def test_environment_has_the_projects_dependencies():
    """Conda users get what pip users get: the same names with the same ranges, and Python's own range."""
    expected = by_name([Requirement(line) for line in PROJECT["dependencies"]])
    found = by_name(CONDA)
    assert found.pop("python") == PROJECT["requires-python"]
    assert found.pop("pip") == ""
    assert found == expected


def test_environment_installs_the_checkout_last():
    """The package itself comes from the checkout."""
    assert ENVIRONMENT["dependencies"][-1] == {"pip": ["--editable ."]}


def test_lock_satisfies_the_ranges():
    """Each version that the lock pins lies in the range that both files name."""
    lock = (ROOT / "requirements.lock").read_text()
    pinned = re.findall(r"^([A-Za-z0-9_.-]+)==([^ \\;]+)", lock, re.MULTILINE)
    versions: dict[str, list[str]] = {}
    for name, version in pinned:
        versions.setdefault(canonicalize_name(name), []).append(version)
    for requirement in CONDA:
        name = canonicalize_name(requirement.name)
        if name not in {"python", "pip"}:
            assert versions.get(name), f"{name} is not in the lock"
            assert all(requirement.specifier.contains(version) for version in versions[name]), name
