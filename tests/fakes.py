"""A host that lives in memory: answers come from tables, files from a dict."""

import hashlib
import importlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout

from opslib.domain.host import CommandResult, HostSettings, LineStream, WriteReceipt

Answer = str | bytes | CommandResult | Exception | Callable[[tuple[str, ...]], CommandResult]


def answered(
    argv: Sequence[str] = (), stdout: str | bytes = b"", exit_status: int = 0, stderr: str = ""
) -> CommandResult:
    """A command result with the given outputs."""
    out = stdout.encode() if isinstance(stdout, str) else stdout
    return CommandResult(argv=tuple(argv), exit_status=exit_status, stdout=out, stderr=stderr.encode(), duration_s=0.01)


class FakeStream:
    """Lines that are already there."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self.lines = list(lines)
        self.is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.lines)

    def close(self) -> None:
        self.is_closed = True


class FakeHost:
    """Answers a command by the longest argument-vector prefix in `answers`; programs really run, in this process.

    A command without an answer exits with 127. `commands` keeps what was run, `files` what lies on the host.
    """

    def __init__(self, answers: Mapping[tuple[str, ...], Answer] | None = None, **settings: object) -> None:
        self.answers = dict(answers or {})
        self.programs: dict[str, Answer] = {}
        self.files: dict[str, bytes] = {}
        self.modes: dict[str, int] = {}
        self.commands: list[tuple[str, ...]] = []
        self._settings = HostSettings.model_validate({"alias": "fake", "address": "192.0.2.1", **settings})

    @property
    def settings(self) -> HostSettings:
        return self._settings

    def connect(self) -> None:
        """It is there."""

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,  # noqa: A002
        timeout_s: float = 30.0,
        sudo: bool = False,
    ) -> CommandResult:
        self.commands.append(tuple(argv))
        for length in range(len(argv), 0, -1):
            if tuple(argv[:length]) in self.answers:
                return self._give(self.answers[tuple(argv[:length])], tuple(argv))
        return answered(argv, exit_status=127, stderr=f"{argv[0]}: command not found")

    def run_program(
        self, main: str, arguments: Mapping[str, object], *, timeout_s: float = 60.0, sudo: bool = False
    ) -> CommandResult:
        if main in self.programs:
            return self._give(self.programs[main], (main,))
        module = importlib.import_module(f"opslib.onhost.{main}")
        with redirect_stdout(io.StringIO()) as output:
            exit_status = module.main(json.loads(json.dumps(arguments)))
        return answered((main,), output.getvalue(), exit_status)

    def stream(self, argv: Sequence[str], *, sudo: bool = False) -> AbstractContextManager[LineStream]:
        return self._stream(self.run(argv, sudo=sudo))

    def stream_program(
        self, main: str, arguments: Mapping[str, object], *, sudo: bool = False, python: str = ""
    ) -> AbstractContextManager[LineStream]:
        return self._stream(self.run_program(main, arguments, sudo=sudo))

    def read_file(self, path: str, *, sudo: bool = False) -> bytes | None:
        return self.files.get(path)

    def write_file(
        self, path: str, content: bytes, *, mode: int = 0o644, owner: str | None = None, sudo: bool = False
    ) -> WriteReceipt:
        digest = hashlib.sha256(content).hexdigest()
        old = self.files.get(path)
        if old == content:
            return WriteReceipt(path=path, sha256=digest, is_changed=False)
        backup = None if old is None else f"{path}.20261129T120000Z"
        if old is not None and backup is not None:
            self.files[backup] = old
        self.files[path] = content
        self.modes[path] = mode
        return WriteReceipt(path=path, sha256=digest, backup_path=backup)

    def forward_port(self, remote_port: int) -> AbstractContextManager[int]:
        @contextmanager
        def forward() -> Iterator[int]:
            yield remote_port

        return forward()

    def close(self) -> None:
        """Nothing to close."""

    @staticmethod
    def _give(answer: Answer, argv: tuple[str, ...]) -> CommandResult:
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, CommandResult):
            return answer.model_copy(update={"argv": argv})
        return answered(argv, answer) if isinstance(answer, str | bytes) else answer(argv)

    @staticmethod
    @contextmanager
    def _stream(result: CommandResult) -> Iterator[LineStream]:
        stream = FakeStream(result.stdout.splitlines())
        yield stream
        stream.close()
