"""What a record consisted of when it was sealed: each cell and file, chained, so that a later change has a name."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from difflib import SequenceMatcher
from typing import Any, Literal

from opslib.domain.states import Value

SCHEMA_VERSION = 1
SEAL_FILE = "seal.json"
SIGNATURE_FILE = "seal.json.sig"
NAMESPACE = "opslib"  # of the SSH signature: one made for something else doesn't count
NOTEBOOK = "notebook.ipynb"
_LONGEST = 60  # characters of a cell's title


class CellSeal(Value):
    """One cell: its place, a line of it, and the digests of what it said, what it showed and when it ran."""

    number: int  # from 1
    cell_id: str
    title: str  # what a finding calls it
    source: str
    outputs: str
    times: str
    chain: str = ""


class FileSeal(Value):
    """One file of the folder."""

    path: str
    size_bytes: int
    sha256: str
    chain: str = ""


class Seal(Value):
    """The manifest of one record; what is signed are the bytes of its file."""

    schema_version: int = SCHEMA_VERSION
    record: str
    sealed_at: datetime
    sealed_by: str = ""
    signed_with: str = ""  # fingerprint of the SSH key
    why_unsigned: str = ""
    cells: tuple[CellSeal, ...]
    files: tuple[FileSeal, ...]
    head: str = ""  # the last link: it depends on every entry, on their order, and on what stands above


class Alteration(Value):
    """One difference between a record and its seal."""

    what: Literal["changed", "added", "dropped", "reordered"]
    where: str
    detail: str = ""


def make_seal(
    record: str,
    sealed_at: datetime,
    notebook: Mapping[str, Any],
    files: Iterable[FileSeal],
    *,
    sealed_by: str = "",
    signed_with: str = "",
    why_unsigned: str = "",
) -> Seal:
    """The seal of a notebook's cells, in their order, and of files, by path."""
    open_seal = Seal(
        record=record,
        sealed_at=sealed_at,
        sealed_by=sealed_by,
        signed_with=signed_with,
        why_unsigned=why_unsigned,
        cells=cell_seals(notebook),
        files=tuple(sorted(files, key=lambda file: file.path)),
    )
    cells, head = _chained(open_seal.cells, _start(open_seal))
    sealed, head = _chained(open_seal.files, head)
    return open_seal.model_copy(update={"cells": tuple(cells), "files": tuple(sealed), "head": head})


def _start(seal: Seal) -> str:
    """The first link: all that a seal says besides its entries."""
    return digest(seal.model_dump(mode="json", exclude={"cells", "files", "head"}))


def cell_seals(notebook: Mapping[str, Any]) -> tuple[CellSeal, ...]:
    """The digests of each cell, not yet chained; a cell without an id goes by its number."""
    return tuple(_cell_seal(number, cell) for number, cell in enumerate(notebook.get("cells", []), start=1))


def find_alterations(
    seal: Seal, notebook: Mapping[str, Any] | None, files: Iterable[FileSeal]
) -> tuple[Alteration, ...]:
    """What differs from the seal, by name; empty for a record as it was sealed.

    `notebook` is None where it can't be read: then only its file says that it was changed.
    """
    now = {file.path: file for file in files}
    cells = _cell_alterations(seal.cells, cell_seals(notebook)) if notebook is not None else []
    return (
        *_chain_alterations(seal),
        *cells,
        *_file_alterations(seal, now, has_cells=bool(cells), is_read=notebook is not None),
    )


def digest(value: object) -> str:
    """SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _cell_seal(number: int, cell: Mapping[str, Any]) -> CellSeal:
    metadata = cell.get("metadata", {})
    source = _text(cell.get("source", ""))
    rest = {name: value for name, value in metadata.items() if name not in ("papermill", "execution")}
    return CellSeal(
        number=number,
        cell_id=str(cell.get("id") or f"#{number}"),
        title=_title(source, is_code=cell.get("cell_type") == "code"),
        source=digest([cell.get("cell_type"), source, rest, cell.get("attachments", {})]),
        outputs=digest(cell.get("outputs", [])),
        times=digest([cell.get("execution_count"), metadata.get("papermill"), metadata.get("execution")]),
    )


def _title(source: str, *, is_code: bool) -> str:
    """The line that says most: the last of code, the first of prose."""
    lines = [line.strip() for line in source.splitlines() if line.strip()] or ["empty"]
    return lines[-1 if is_code else 0][:_LONGEST]


def _text(source: str | Sequence[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _chained(entries: Iterable[Any], head: str) -> tuple[list[Any], str]:
    """The entries with their links: each is the digest of the one before and of the entry itself."""
    linked = []
    for entry in entries:
        head = _link(head, entry)
        linked.append(entry.model_copy(update={"chain": head}))
    return linked, head


def _link(before: str, entry: Value) -> str:
    return digest([before, entry.model_dump(mode="json", exclude={"chain"})])


def _chain_alterations(seal: Seal) -> list[Alteration]:
    """Where the manifest itself was edited: the first entry that doesn't follow from those before it."""
    head = _start(seal)
    entries: tuple[CellSeal | FileSeal, ...] = (*seal.cells, *seal.files)
    for at, entry in enumerate(entries):
        head = _link(head, entry)
        if entry.chain != head:
            where = f"{'what stands above its entries, or ' if at == 0 else ''}its entry of {_name(entry)}"
            return [Alteration(what="changed", where=SEAL_FILE, detail=where)]
    return [] if seal.head == head else [Alteration(what="changed", where=SEAL_FILE, detail="its end")]


def _name(entry: CellSeal | FileSeal) -> str:
    return entry.path if isinstance(entry, FileSeal) else f"cell {entry.number} ({entry.title})"


def _cell_alterations(then: Sequence[CellSeal], now: Sequence[CellSeal]) -> list[Alteration]:
    before, after = _by_id(then), _by_id(now)
    found = [Alteration(what="dropped", where=_name(cell)) for key, cell in before.items() if key not in after]
    found += [Alteration(what="added", where=_name(cell)) for key, cell in after.items() if key not in before]
    for key, cell in before.items():
        parts = _changed_parts(cell, after.get(key, cell))
        if parts:
            run_again = " (it was run again)" if "times" in parts and "source" not in parts else ""
            found.append(Alteration(what="changed", where=_name(cell), detail=f"{', '.join(parts)}{run_again}"))
    kept_before, kept_after = [key for key in before if key in after], [key for key in after if key in before]
    found += [
        Alteration(what="reordered", where=_name(before[key]), detail=f"now cell {after[key].number}")
        for key in _moved(kept_before, kept_after)
    ]
    return found


def _by_id(cells: Sequence[CellSeal]) -> dict[tuple[str, int], CellSeal]:
    """Cells by id, and by how often it was there before: a cell pasted twice counts as added."""
    seen: dict[str, int] = {}
    found = {}
    for cell in cells:
        seen[cell.cell_id] = seen.get(cell.cell_id, 0) + 1
        found[cell.cell_id, seen[cell.cell_id]] = cell
    return found


def _changed_parts(then: CellSeal, now: CellSeal) -> list[str]:
    return [part for part in ("source", "outputs", "times") if getattr(then, part) != getattr(now, part)]


def _moved(before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """The fewest entries that were moved: those outside the longest runs that kept their order."""
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    kept = {key for block in blocks for key in before[block.a : block.a + block.size]}
    return [key for key in before if key not in kept]


def _file_alterations(seal: Seal, now: Mapping[str, FileSeal], *, has_cells: bool, is_read: bool) -> list[Alteration]:
    before = {file.path: file for file in seal.files}
    found = [Alteration(what="dropped", where=path) for path in before if path not in now]
    found += [Alteration(what="added", where=path) for path in sorted(now) if path not in before]
    holders = {file.sha256: path for path, file in before.items()}
    for path, file in before.items():
        if path not in now or now[path].sha256 == file.sha256:
            continue
        if path == NOTEBOOK and has_cells:
            continue  # its cells say it better
        other = holders.get(now[path].sha256)
        whereabouts = ("outside its cells" if is_read else "it can't be read") if path == NOTEBOOK else ""
        detail = f"it holds what was {other}" if other else whereabouts
        found.append(Alteration(what="changed", where=path, detail=detail))
    return found
