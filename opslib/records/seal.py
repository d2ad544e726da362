"""Seals a record folder when its run has ended, and says later whether, by whom, and what was altered since."""

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from errno import EISDIR
from functools import partial
from pathlib import Path
from typing import Any

from opslib.domain.seal import (
    NOTEBOOK,
    SEAL_FILE,
    SIGNATURE_FILE,
    Alteration,
    FileSeal,
    Seal,
    cell_seals,
    find_alterations,
    make_seal,
)
from opslib.domain.states import State, Value
from opslib.errors import CouldNotFindOut, UnknownName, reason_of
from opslib.records.folder import atomic_write
from opslib.records.operator import login_name
from opslib.records.signing import PublicKey, Signature, check_signature, own_agent_keys, sign, signing_key

NOT_SEALED = "not sealed: its run has not come to an end, an older opslib made it, or its seal was taken away"
_OWN = {SEAL_FILE, SIGNATURE_FILE}


class SealReport(Value):
    """What verifying a record found."""

    record: str
    state: State
    summary: str
    sealed_at: datetime | None = None
    signature: Signature | None = None
    alterations: tuple[Alteration, ...] = ()


def seal_record(path: Path) -> Seal:
    """Write `seal.json` over all cells and files of a record, and its signature; unsigned it says why.

    A seal that was there before is replaced. Raises CouldNotFindOut where nothing can be written.
    """
    (path / SIGNATURE_FILE).unlink(missing_ok=True)
    key = signing_key()
    try:
        seal, signature = _signed(path, key)
        atomic_write(path / SEAL_FILE, _bytes(seal))
        if signature:
            atomic_write(path / SIGNATURE_FILE, signature)
    except OSError as error:
        raise CouldNotFindOut(f"{path} could not be sealed: {reason_of(error)}") from error
    return seal


def _signed(path: Path, key: PublicKey | str) -> tuple[Seal, bytes]:
    """The seal that names its key, and its signature; where that can't be had, one that says why, and no bytes."""
    make = partial(
        make_seal,
        path.name,
        datetime.now(UTC),
        _notebook(path) or {},
        list(_files(path)),
        sealed_by=f"{login_name()}@{socket.gethostname()}",
    )
    if isinstance(key, str):
        return make(why_unsigned=key), b""
    seal = make(signed_with=key.fingerprint)
    signature, problem = sign(_bytes(seal), key)
    return (seal, signature) if signature else (make(why_unsigned=problem), b"")


def _bytes(seal: Seal) -> bytes:
    return (json.dumps(seal.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n").encode()


def allowed_signers_file() -> Path | None:
    """Who may sign, as in ssh-keygen(1): $OPSLIB_ALLOWED_SIGNERS, else ~/.config/opslib/allowed_signers; else None."""
    named = os.environ.get("OPSLIB_ALLOWED_SIGNERS")
    path = Path(named or "~/.config/opslib/allowed_signers").expanduser()
    return path if named or path.is_file() else None


def verify_record(path: Path, *, allowed_signers: Path | None = None) -> SealReport:
    """Whether a record is as it was sealed, by whom, and what is not.

    State: ok, warning (as it was sealed, but unsigned or by a key nobody knows), critical (altered, or signed by
    somebody who may not, or by nobody where `allowed_signers` says who may), unknown (not sealed). Raises UnknownName
    where there is no folder.
    """
    if not path.is_dir():
        raise UnknownName(f"no record folder {path}")
    try:
        content = _read(path / SEAL_FILE)
        seal = Seal.model_validate_json(content)
    except FileNotFoundError:
        return SealReport(record=path.name, state=State.UNKNOWN, summary=NOT_SEALED)
    except PermissionError as error:
        raise CouldNotFindOut(f"{path / SEAL_FILE} can't be read: {reason_of(error)}") from error
    except (OSError, ValueError):
        altered = (Alteration(what="changed", where=SEAL_FILE, detail="it can't be read"),)
        return SealReport(record=path.name, state=State.CRITICAL, summary="1 alteration", alterations=altered)
    signature = _signature(path, content, seal, allowed_signers)
    alterations = find_alterations(seal, _notebook(path), _files(path))
    whose, state = _judged(seal, signature, allowed_signers)
    named = "" if seal.record == path.name else f", then named {seal.record}"
    n_parts = f"{len(seal.cells)} cells and {len(seal.files)} files"
    count = f"{len(alterations)} alteration{'s' if len(alterations) > 1 else ''} since it was sealed"
    what = count if alterations else f"{n_parts} as they were sealed"
    return SealReport(
        record=path.name,
        state=State.CRITICAL if alterations else state,
        summary=f"{what} on {seal.sealed_at:%Y-%m-%d %H:%M:%S} UTC{named}; {whose}",
        sealed_at=seal.sealed_at,
        signature=signature,
        alterations=alterations,
    )


def _signature(path: Path, content: bytes, seal: Seal, allowed_signers: Path | None) -> Signature | None:
    file = path / SIGNATURE_FILE
    if not file.is_file():
        return None
    return check_signature(content, file, allowed_signers=allowed_signers, signed_at=seal.sealed_at)


def _judged(seal: Seal, signature: Signature | None, allowed_signers: Path | None) -> tuple[str, State]:
    """Who signed, in words, and what that is worth."""
    claimed = seal.signed_with
    if signature is None and claimed:
        whose, state = f"its signature by {claimed} is missing", State.CRITICAL
    elif signature is None and allowed_signers is not None:  # no better than one by a key that isn't allowed
        whose = f"not signed, as {allowed_signers} asks for: anybody may have sealed it anew"
        state = State.CRITICAL
    elif signature is None:
        whose, state = f"unsigned: {seal.why_unsigned or 'nobody signed it'}", State.WARNING
    elif not signature.is_good:
        whose, state = f"the signature is not of this seal ({signature.problem})", State.CRITICAL
    elif signature.fingerprint != claimed:
        by = f"signed by another key, {signature.fingerprint},"
        whose, state = f"{by} than the seal names ({claimed or 'none'})", State.CRITICAL
    elif signature.principals:
        whose, state = f"signed by {', '.join(signature.principals)} ({signature.fingerprint})", State.OK
    elif allowed_signers is not None:
        whose, state = f"signed by {signature.fingerprint}, which {allowed_signers} does not allow", State.CRITICAL
    elif signature.fingerprint in _own_fingerprints():
        whose, state = f"signed by this login's own key {signature.fingerprint}", State.OK
    else:
        whose, state = f"signed by {claimed}; no allowed signers file says whose key that is", State.WARNING
    return whose, state


def _own_fingerprints() -> set[str]:
    key = signing_key()
    return {one.fingerprint for one in (*own_agent_keys(), *([key] if isinstance(key, PublicKey) else []))}


def _notebook(path: Path) -> dict[str, Any] | None:
    """The notebook; None where there is none, or what is there is none."""
    try:
        notebook = json.loads(_read(path / NOTEBOOK))
        return notebook if isinstance(notebook, dict) and cell_seals(notebook) is not None else None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _read(file: Path) -> bytes:
    """The bytes of a file; of what would keep its reader waiting (a FIFO, a device) none, as if it were a folder."""
    if file.exists() and not file.is_file():
        raise IsADirectoryError(EISDIR, "it is no file", str(file))
    return file.read_bytes()


def _files(path: Path) -> Iterator[FileSeal]:
    """Every file of the folder but the seal's own; a link or a FIFO is sealed as the text that it is."""
    for file in sorted(path.rglob("*")):
        name = os.fsencode(file.relative_to(path)).decode("utf-8", "backslashreplace")
        if name in _OWN or (file.is_dir() and not file.is_symlink()):
            continue
        if file.is_symlink() or not file.is_file():
            target = os.fsencode(f"link to {file.readlink()}" if file.is_symlink() else "no file, link or folder")
            yield FileSeal(path=name, size_bytes=len(target), sha256=hashlib.sha256(target).hexdigest())
            continue
        try:
            with file.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            yield FileSeal(path=name, size_bytes=file.stat().st_size, sha256=sha256)
        except OSError as error:
            raise CouldNotFindOut(f"{file} can't be read: {reason_of(error)}") from error
