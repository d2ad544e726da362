"""Which runbooks there are, where their notebooks lie, and where records go."""

import json
import os
from pathlib import Path

import opslib
from opslib.domain.parameters import RUNBOOKS
from opslib.domain.problems import nearest
from opslib.errors import UnknownName


def notebooks_dir() -> Path:
    """Where the runbooks lie: $OPSLIB_NOTEBOOKS, else the checkout's `notebooks/`, else those inside the wheel."""
    override = os.environ.get("OPSLIB_NOTEBOOKS")
    if override:
        return Path(override).resolve()
    checkout = _checkout()
    return checkout / "notebooks" if checkout else _package() / "notebooks"


def default_runs_dir() -> Path:
    """Where records go: $OPSLIB_RUNS, else the checkout's `runs/`, else `./runs`."""
    override = os.environ.get("OPSLIB_RUNS")
    if override:
        return Path(override).resolve()
    return (_checkout() or Path.cwd()) / "runs"


def list_runbooks() -> dict[str, Path]:
    """Name and notebook of each runbook that has one, by number."""
    return {path.stem: path for path in sorted(notebooks_dir().glob("[0-9][0-9]-*.ipynb"))}


def find_runbook(name: str) -> tuple[str, Path]:
    """Full name and notebook of a runbook given by its name, its number or the words after it.

    Raises UnknownName with the nearest name; nothing is contacted to find out.
    """
    runbooks = list_runbooks()
    wanted = Path(name).name.removesuffix(".ipynb").lower()
    for known, path in runbooks.items():
        number, _, words = known.partition("-")
        if wanted in (known, number, words):
            return known, path
    if wanted in RUNBOOKS:
        raise UnknownName(f"the runbook {wanted} has no notebook in {notebooks_dir()}")
    names = sorted({*runbooks, *RUNBOOKS})
    hint = nearest(wanted, names)
    if "did you mean" not in hint:  # the name without its number
        by_words = nearest(wanted, [known.partition("-")[2] for known in names])
        hint = by_words if "did you mean" in by_words else hint
    raise UnknownName(f"unknown runbook {name!r}{hint}")


def effect_of(notebook: Path) -> str:
    """What a runbook does to the host by its own metadata: `read` or `write` (also where it says nothing)."""
    metadata = json.loads(notebook.read_text("utf-8")).get("metadata", {})
    return str(metadata.get("opslib", {}).get("effect", "write"))


def _package() -> Path:
    return Path(opslib.__file__).resolve().parent


def _checkout() -> Path | None:
    """The checkout that the package lies in, or None for an installed wheel."""
    root = _package().parent
    return root if (root / "pyproject.toml").is_file() and (root / "notebooks").is_dir() else None
