"""What a machine looks like to the rest of the kit: a protocol and the values that cross it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, Self

from pydantic import Field, field_validator, model_validator

from opslib.domain.redaction import redact, says_secret
from opslib.domain.states import Value


class CommandResult(Value):
    """What a command gave back: argument vector, exit status, both outputs, seconds taken."""

    argv: tuple[str, ...]
    exit_status: int
    stdout: bytes
    stderr: bytes
    duration_s: float

    @property
    def text(self) -> str:
        """Standard output as text (UTF-8; undecodable bytes become U+FFFD)."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """Standard error as text, stripped."""
        return self.stderr.decode("utf-8", "replace").strip()

    @property
    def is_success(self) -> bool:
        """Whether the exit status is 0."""
        return self.exit_status == 0


class HostSettings(Value):
    """One inventory entry: how to reach a host and where things lie on it."""

    alias: str
    address: str  # name or IP address, as ~/.ssh/config may know it
    port: int | None = Field(None, ge=1, le=65535)
    user: str | None = None
    identity_file: str | None = None
    known_hosts_file: str | None = None  # default: ~/.ssh/known_hosts; for jump hosts as well
    # [USER@]HOST[:PORT], several with commas, the first one first, as in ssh_config(5); the same identity_file logs in.
    # Default: what ~/.ssh/config says for the address
    proxy_jump: str | None = Field(None, pattern=r"^[^\s,@]+(@[^\s,@]+)?(,[^\s,@]+(@[^\s,@]+)?)*$")
    labels: tuple[str, ...] = ()
    # Whether privileged commands go through `sudo -n`; ignored for root. "listed": the login may run only what
    # `opslib sudoers` lists, so each command goes to sudo as it is, and no program does.
    sudo: bool | Literal["listed"] = True
    # Whose systemd: the machine's, or the login's own (`systemctl --user`, no sudo at all; needs `user` or the two
    # directories below, which default to ~/.config/systemd/user and ~/.local/state/opslib then).
    scope: Literal["system", "user"] = "system"
    unit_dir: str = "/etc/systemd/system"
    state_dir: str = "/var/lib/opslib"
    models_dir: str = "/srv/models"
    vllm: str = "/opt/vllm/bin/vllm"  # the engine's program
    python: str = "python3"
    is_rehearsal: bool = False
    environment: Mapping[str, str] = {}  # environment variables that the installed unit gives the engine

    @property
    def has_sudo(self) -> bool:
        """Whether privileged commands go through `sudo -n`."""
        return bool(self.sudo)

    @model_validator(mode="before")
    @classmethod
    def _of_a_login(cls, given: Any) -> Any:
        """What follows from scope = "user": no sudo, and directories in the login's home."""
        if not isinstance(given, Mapping) or given.get("scope") != "user":
            return given
        home = "/root" if given.get("user") == "root" else f"/home/{given.get('user')}"
        own = {"sudo": False, "unit_dir": f"{home}/.config/systemd/user", "state_dir": f"{home}/.local/state/opslib"}
        return {**own, **given}

    @field_validator("environment")
    @classmethod
    def _environment_holds_no_secret(cls, environment: Mapping[str, str]) -> Mapping[str, str]:
        literal = [name for name, value in environment.items() if says_secret(name) or redact(value) != value]
        if literal:  # the inventory is shared, and the unit that it would be written to is readable by everybody
            raise ValueError(
                f"{', '.join(literal)} holds a secret: give it to the run, -p environment={{NAME: env:NAME}}"
            )
        return environment

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.scope == "user" and self.sudo:
            raise ValueError('scope = "user" uses no sudo')
        if self.scope == "user" and "/home/None/" in self.unit_dir + self.state_dir:
            raise ValueError('scope = "user" needs user, or unit_dir and state_dir')
        return self


class WriteReceipt(Value):
    """What writing a file did: the digest written, and where the previous content was kept."""

    path: str
    sha256: str
    backup_path: str | None = None
    is_changed: bool = True


class LineStream(Protocol):
    """The lines (bytes, without the newline) of a running remote command; closing it ends the command."""

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None:
        """End the remote command with its whole process group; safe to call twice, from any thread."""


class Host(Protocol):
    """A machine that can be asked and changed; every call raises only errors of `opslib.errors`."""

    @property
    def settings(self) -> HostSettings: ...

    def connect(self) -> None:
        """Connect now; what is asked first would do it otherwise. Raises HostUnreachable, HostKeyRefused, ..."""

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,  # noqa: A002 - the standard library's own name for it
        timeout_s: float = 30.0,
        sudo: bool = False,
    ) -> CommandResult:
        """Run one command and wait; a non-zero exit status is a result, not an error.

        Raises CommandTimedOut (the remote process group is dead by then), HostUnreachable,
        PrivilegeRefused (`sudo=True` and `sudo -n` says no).
        """

    def run_program(
        self,
        main: str,
        arguments: Mapping[str, object],
        *,
        timeout_s: float = 60.0,
        sudo: bool = False,
    ) -> CommandResult:
        """Run the module `opslib.onhost.<main>` on the host's own Python, sent over standard input."""

    def stream(self, argv: Sequence[str], *, sudo: bool = False) -> AbstractContextManager[LineStream]:
        """Start a command and hand over its lines as they come; leaving the context ends it."""

    def stream_program(
        self, main: str, arguments: Mapping[str, object], *, sudo: bool = False, python: str = ""
    ) -> AbstractContextManager[LineStream]:
        """Like `stream`, for the module `opslib.onhost.<main>`; the program also ends when the link is lost.

        `python` is another Python of the host's than its settings name, as an engine's own.
        """

    def read_file(self, path: str, *, sudo: bool = False) -> bytes | None:
        """The file's bytes, or None where there is no such file."""

    def write_file(
        self, path: str, content: bytes, *, mode: int = 0o644, owner: str | None = None, sudo: bool = False
    ) -> WriteReceipt:
        """Replace the file atomically; the previous content is kept beside it with a UTC time in its name."""

    def forward_port(self, remote_port: int) -> AbstractContextManager[int]:
        """A loopback port of this machine that reaches `remote_port` on the host's loopback, while open."""

    def close(self) -> None: ...
