"""A record for somebody else: as it is with its seal, or under pseudonyms and sealed anew; as PDF as well."""

import json
import os
import shutil
import tempfile
from pathlib import Path

from opslib.domain.pseudonyms import pseudonyms_for, with_pseudonyms
from opslib.domain.record import RunRecord
from opslib.errors import CouldNotFindOut, Refused, reason_of
from opslib.records.folder import HTML_FILE, RunFolder, atomic_write
from opslib.records.html import export_html
from opslib.records.pdf import PDF_FILE, print_pdf
from opslib.records.seal import seal_record

COPY_NOTE = "a copy under pseudonyms; the record that it was made of has another seal"


def export_record(path: Path, to: Path, *, has_pdf: bool = False, has_pseudonyms: bool = False) -> Path:
    """Copy a record into the directory `to`; gives the copy's folder.

    The copy keeps the record's seal. Under pseudonyms, or with a PDF that it didn't have, it gets one of its own.
    Raises Refused where something lies there already, CouldNotFindOut where the copy or its PDF can't be made.
    """
    pairs = _pairs(path) if has_pseudonyms else {}
    target = to / with_pseudonyms(path.name, pairs)
    if os.path.lexists(target):
        raise Refused(f"{target} is there already", hint="give another directory with --to")
    try:
        with tempfile.TemporaryDirectory(dir=to, prefix=".opslib-") as place:  # half a copy would tell real names
            copy = Path(place) / target.name
            shutil.copytree(path, copy, symlinks=True)
            _prepare(copy, pairs, has_pdf=has_pdf, has_pseudonyms=has_pseudonyms)
            copy.rename(target)
    except shutil.Error as error:
        (source, _, why), *_ = error.args[0]
        raise CouldNotFindOut(f"{target} could not be written: {source}: {why}") from error
    except OSError as error:
        raise CouldNotFindOut(f"{target} could not be written: {reason_of(error)}") from error
    return target


def _prepare(copy: Path, pairs: dict[str, str], *, has_pdf: bool, has_pseudonyms: bool) -> None:
    """Make a plain copy what was asked for, and seal it where it is no longer as it was."""
    if has_pseudonyms:
        _rename_within(copy, pairs)
    is_printed = has_pdf and not (copy / PDF_FILE).exists()
    if is_printed:
        print_pdf(copy / HTML_FILE, copy / PDF_FILE)
    if is_printed or has_pseudonyms:
        seal_record(copy)


def _pairs(path: Path) -> dict[str, str]:
    record = RunFolder.open(path).read_record()
    facts = record.model_dump(mode="json") if record else {}
    return pseudonyms_for(facts, _texts(path).values())


def _texts(path: Path) -> dict[Path, str]:
    """Every file of a record that is text."""
    texts = {}
    for file in sorted(file for file in path.rglob("*") if file.is_file() and not file.is_symlink()):
        try:
            texts[file] = file.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue
    return texts


def _rename_within(target: Path, pairs: dict[str, str]) -> None:
    """Every text, and the page made anew; a PDF of before is dropped."""
    (target / PDF_FILE).unlink(missing_ok=True)
    for file, text in _texts(target).items():
        atomic_write(file, with_pseudonyms(text, pairs).encode())
    folder = RunFolder.open(target)
    record = folder.read_record()
    if record is not None:
        folder.write_record(_noted(record))
    export_html(folder)


def _noted(record: RunRecord) -> RunRecord:
    return record.model_copy(update={"notes": (*record.notes, COPY_NOTE)})


def exported(path: Path) -> str:
    """What was exported, as one JSON document."""
    files = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    return json.dumps({"record": str(path), "files": files}, ensure_ascii=False)
