"""The first page in JupyterLab: runbooks by question, the newest records, the hosts."""

import json
import os
from pathlib import Path

from opslib.app.catalogue import default_runs_dir, effect_of, list_runbooks, notebooks_dir
from opslib.app.reviewing import document_of, facts_of, select_records
from opslib.hosts.inventory import load_inventory
from opslib.views.records import records_table
from opslib.views.runbooks import HostLine, RunbookLine, hosts_list, runbooks_table
from opslib.views.shown import Shown

N_RECORDS = 12
REHEARSAL = HostLine("rehearsal", "a practice host, started on first use (rehearsal:SCENARIO for another)", "", "")


def show_runbooks() -> Shown:
    """Every runbook: the question it answers, what it changes, and a link that opens it."""
    return runbooks_table([_line(name, path) for name, path in list_runbooks().items()])


def show_records(limit: int = N_RECORDS) -> Shown:
    """The newest records, each with a link to its page or notebook."""
    entries = select_records(default_runs_dir(), limit=limit)
    links = [link_to(document_of(entry)) for entry in entries]
    return records_table([facts_of(entry) for entry in entries], links)


def show_hosts() -> Shown:
    """The hosts that can be named: those of the inventory, and the practice host."""
    inventory = load_inventory()
    hosts = [HostLine(host.alias, host.address, host.user or "", host.models_dir) for host in inventory.hosts.values()]
    return hosts_list([*hosts, REHEARSAL], Path(inventory.path).name if inventory.path else "")


def link_to(path: Path, base: Path | None = None) -> str:
    """A relative link from the notebook that runs here (or lies in `base`)."""
    return Path(os.path.relpath(path, base or Path.cwd())).as_posix()


def _line(name: str, path: Path) -> RunbookLine:
    first, third = _opening(path)
    effect = effect_of(path)
    return RunbookLine(first, effect, third, name, link_to(notebooks_dir() / path.name))


def _opening(path: Path) -> tuple[str, str]:
    """The question of a runbook and what it changes."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    lines = "".join(cells[0]["source"]).splitlines()
    changes = lines[2].partition("**")[2].partition("**")[0] if len(lines) > 2 else ""
    return lines[0].removeprefix("# ").strip(), changes.removeprefix("Changes ").partition(";")[0].rstrip(".")
