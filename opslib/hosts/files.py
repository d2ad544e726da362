"""Read and replace files on a host with coreutils, the same way for every adapter."""

import hashlib
import posixpath
import secrets
from datetime import UTC, datetime

from opslib.domain.host import CommandResult, Host, WriteReceipt
from opslib.errors import BadParameter, OpslibError, PrivilegeRefused, UnexpectedAnswer

_TIMEOUT_S = 60.0
_DENIED = ("permission denied", "operation not permitted", "read-only file system")


def read_file(host: Host, path: str, *, sudo: bool = False) -> bytes | None:
    """The file's bytes, or None where there is no such file; raises PrivilegeRefused, UnexpectedAnswer."""
    result = host.run(["cat", "--", path], timeout_s=_TIMEOUT_S, sudo=sudo)
    if result.is_success:
        return result.stdout
    if result.error_text.endswith(("No such file or directory", "Not a directory")):
        return None
    raise _error(host, result, f"cannot read {path}")


def write_file(
    host: Host, path: str, content: bytes, *, mode: int = 0o644, owner: str | None = None, sudo: bool = False
) -> WriteReceipt:
    """Replace the file by a finished copy beside it; the previous content is kept as `<path>.<UTC time>.bak`.

    `owner` is `user` or `user:group`; without it a privileged write keeps the previous owner. Nothing is written when
    content, mode and owner are there already. Raises BadParameter (no such directory), PrivilegeRefused,
    UnexpectedAnswer.
    """
    if not path.startswith("/") or path.endswith("/"):
        raise BadParameter(f"{path!r} is no absolute path of a file", host=host.settings.alias)
    digest = hashlib.sha256(content).hexdigest()
    previous = read_file(host, path, sudo=sudo)
    backup_path = None
    if previous is not None:
        found_mode, found_owner = _mode_and_owner(host, path, sudo=sudo)
        if previous == content and found_mode == mode and _is_owned(found_owner, owner):
            return WriteReceipt(path=path, sha256=digest, is_changed=False)
        owner = owner or (found_owner if sudo else None)
        backup_path = f"{path}.{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.bak"
    _replace(host, path, content, digest, mode=mode, owner=owner, sudo=sudo, backup_path=backup_path)
    return WriteReceipt(path=path, sha256=digest, backup_path=backup_path)


def _replace(
    host: Host,
    path: str,
    content: bytes,
    digest: str,
    *,
    mode: int,
    owner: str | None,
    sudo: bool,
    backup_path: str | None,
) -> None:
    folder, name = posixpath.split(path)
    beside = posixpath.join(folder, f".{name[:200]}.{secrets.token_hex(4)}.new")
    try:
        install = ["install", f"--mode={mode:04o}", *_owner_options(owner), "--", "/dev/stdin", beside]
        _must(host, install, f"cannot write {path}", sudo=sudo, given=content)
        answer = _must(host, ["sha256sum", "--", beside], f"cannot check {path}", sudo=sudo)
        if answer.text.lstrip("\\")[:64] != digest:
            raise UnexpectedAnswer(f"{path} arrived with other content; nothing was replaced", host=host.settings.alias)
        if backup_path is not None:
            # A second name for the old file is there whole or not at all; a copy could be cut short.
            _must(host, ["cp", "--archive", "--link", "--", path, backup_path], f"cannot back up {path}", sudo=sudo)
        move = ["mv", "--force", "--no-target-directory", "--", beside, path]
        _must(host, move, f"cannot replace {path}", sudo=sudo)
    except OpslibError:
        host.run(["rm", "--force", "--", beside], sudo=sudo)
        raise


def _must(host: Host, argv: list[str], what: str, *, sudo: bool, given: bytes | None = None) -> CommandResult:
    result = host.run(argv, input=given, timeout_s=_TIMEOUT_S, sudo=sudo)
    if not result.is_success:
        raise _error(host, result, what)
    return result


def _error(host: Host, result: CommandResult, what: str) -> OpslibError:
    reason = result.error_text.rpartition("\n")[2] or f"exit status {result.exit_status}"
    alias = host.settings.alias
    if any(sign in reason.lower() for sign in _DENIED):
        return PrivilegeRefused(f"{what}: {reason}", host=alias, hint="use sudo, or a login with the rights")
    if reason.endswith("No such file or directory"):
        return BadParameter(f"{what}: its directory does not exist", host=alias, hint="create the directory first")
    return UnexpectedAnswer(f"{what}: {reason}", host=alias)


def _mode_and_owner(host: Host, path: str, *, sudo: bool) -> tuple[int, str]:
    stat = ["stat", "--dereference", "--format=%a %U:%G", "--", path]
    mode, _, owner = _must(host, stat, f"cannot look at {path}", sudo=sudo).text.strip().partition(" ")
    return int(mode, 8), owner


def _is_owned(found: str, wanted: str | None) -> bool:
    return wanted is None or found == wanted or (":" not in wanted and found.partition(":")[0] == wanted)


def _owner_options(owner: str | None) -> list[str]:
    if owner is None:
        return []
    user, _, group = owner.partition(":")
    return [f"--owner={user}", *([f"--group={group}"] if group else [])]
