"""SSH signatures with the operator's own key, by ssh-keygen(1) or an agent; no passphrase is ever asked for."""

import base64
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from opslib.domain.seal import NAMESPACE
from opslib.domain.states import Value

OFF = "none"
TIMEOUT_S = 20  # an agent that asks somebody, or a key that waits for a touch
_DEFAULTS = ("id_ed25519", "id_ecdsa", "id_rsa")  # as ssh(1) tries them; a key that needs a touch is not asked


class PublicKey(Value):
    """A public key as it stands in a `.pub` file, and the file that `ssh-keygen -f` is given."""

    line: str
    path: str = ""  # "": held by an agent only

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` prints it."""
        blob = base64.b64decode(self.line.split()[1])
        return f"SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"


class Signature(Value):
    """Whose signature it is: the key, and the names that an allowed signers file has for it."""

    is_good: bool
    fingerprint: str = ""
    principals: tuple[str, ...] = ()
    problem: str = ""


def signing_key(environment: Mapping[str, str] | None = None) -> PublicKey | str:
    """The key to sign with, or why there is none.

    $OPSLIB_SIGNING_KEY names its file (private or public; `none`: unsigned), else ~/.ssh/id_*, else the agent's first.
    """
    environment = os.environ if environment is None else environment
    named = environment.get("OPSLIB_SIGNING_KEY", "")
    if named == OFF:
        return "signing is switched off (OPSLIB_SIGNING_KEY=none)"
    if named:
        return _key_of(Path(named).expanduser()) or f"no key in {named} (OPSLIB_SIGNING_KEY)"
    home = Path(environment.get("HOME", "~")).expanduser()
    for name in _DEFAULTS:
        if key := _key_of(home / ".ssh" / f"{name}.pub"):
            return key
    held = own_agent_keys()
    return held[0] if held else "no SSH key in ~/.ssh and none in an agent"


def own_agent_keys() -> list[PublicKey]:
    """The keys that the agent holds, certificates left out."""
    if not os.environ.get("SSH_AUTH_SOCK"):
        return []
    lines = _ask("ssh-add", "-L")[1].splitlines()
    return [PublicKey(line=line) for line in lines if re.match(r"(ssh|ecdsa)-[a-z0-9-]+ [A-Za-z0-9+/=]+", line)]


def sign(content: bytes, key: PublicKey) -> tuple[bytes, str]:
    """The armoured signature of `content`, or no bytes and why there is none."""
    with _key_file(key) as path:
        status, signature, said = _ask_bytes(["ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f", path], content)
    if status == 0 and signature.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        return signature, ""
    return b"", f"ssh-keygen could not sign with {key.fingerprint}: {_first_line(said) or f'exit status {status}'}"


def check_signature(content: bytes, signature: Path, *, allowed_signers: Path | None, signed_at: datetime) -> Signature:
    """Whether a signature is that of `content`, by which key, and whose that is at `signed_at`."""
    where = ["-n", NAMESPACE, "-s", str(signature)]
    status, out, said = _ask_bytes(["ssh-keygen", "-Y", "check-novalidate", *where], content)
    found = re.search(r"SHA256:[A-Za-z0-9+/]+", out.decode("utf-8", "replace"))
    if status != 0 or found is None:
        return Signature(is_good=False, problem=_first_line(said or out) or "not a signature of this seal")
    if allowed_signers is None:
        return Signature(is_good=True, fingerprint=found[0])
    return Signature(
        is_good=True,
        fingerprint=found[0],
        principals=tuple(_principals(content, where, allowed_signers, signed_at)),
    )


def _principals(content: bytes, where: Sequence[str], allowed: Path, signed_at: datetime) -> Iterator[str]:
    at = f"-Overify-time={signed_at.astimezone(UTC):%Y%m%d%H%M%SZ}"
    names = _ask("ssh-keygen", "-Y", "find-principals", at, "-f", str(allowed), *where[2:])[1].splitlines()
    for name in names:
        verify = ["ssh-keygen", "-Y", "verify", at, "-f", str(allowed), "-I", name, *where]
        if _ask_bytes(verify, content)[0] == 0:
            yield name


def _key_of(path: Path) -> PublicKey | None:
    """The public key of a file: its own line, the `.pub` beside it, or from a private key without passphrase."""
    public = path if path.suffix == ".pub" else path.with_name(f"{path.name}.pub")
    try:
        line = public.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        if path.suffix == ".pub" or not path.is_file():
            return None
        line = _ask("ssh-keygen", "-y", "-P", "", "-f", str(path))[1].strip()
    is_key = re.match(r"[a-z0-9@.-]+ [A-Za-z0-9+/=]+", line) is not None
    return PublicKey(line=line, path=str(path)) if is_key else None


@contextmanager
def _key_file(key: PublicKey) -> Iterator[str]:
    """A file that names the key: its own, or a passing one for a key that only the agent has."""
    if key.path:
        yield key.path
        return
    with tempfile.NamedTemporaryFile("w", prefix="opslib-", suffix=".pub") as file:
        file.write(f"{key.line}\n")
        file.flush()
        yield file.name


def _ask(*argv: str) -> tuple[int, str]:
    status, out, _ = _ask_bytes(argv, b"")
    return status, out.decode("utf-8", "replace")


def _ask_bytes(argv: Sequence[str], content: bytes) -> tuple[int, bytes, bytes]:
    """Run a tool of OpenSSH without a terminal and without an askpass program, so that it can't ask anything."""
    environment = {**os.environ, "SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"}
    environment.pop("DISPLAY", None)
    try:
        done = subprocess.run(
            argv,
            input=content,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
            start_new_session=True,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return (
            255,
            b"",
            f"{argv[0]}: {'no answer in time' if not isinstance(error, OSError) else error.strerror}".encode(),
        )
    return done.returncode, done.stdout, done.stderr


def _first_line(said: bytes) -> str:
    return next(iter(said.decode("utf-8", "replace").strip().splitlines()), "")
