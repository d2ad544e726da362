"""Whether what answers is what was meant: the process of this invocation, with the flags of its unit."""

import re
from collections.abc import Sequence

from opslib.domain.facts.processes import descends_from, parse_process_parents, process_parents_command
from opslib.domain.facts.systemd import UnitStatus
from opslib.domain.host import Host
from opslib.domain.states import CheckResult, State
from opslib.domain.unit_files import UnitFiles
from opslib.domain.unit_flags import engine_start, shell_of
from opslib.errors import CouldNotFindOut
from opslib.onhost.engine_argv import EngineArguments, read_engine_arguments
from opslib.workflow.facts import gather_listeners, gather_unit_status
from opslib.workflow.running import running_argv


def endpoint_of(files: UnitFiles) -> EngineArguments | None:
    """What the unit's command line says about engine, port and address; None where it is no engine's."""
    return read_engine_arguments(list(files.merged.engine_argv))


def prove_answering(host: Host, files: UnitFiles, before: UnitStatus | None) -> tuple[CheckResult, ...]:
    """Three questions, asked again after a start: a new invocation, its own process on the port, the unit's own flags.

    `before` is the unit before the start; None where no new invocation is expected.
    """
    status = gather_unit_status(host, files.unit)
    checks = [_invocation(status, before)] if before else []
    endpoint = endpoint_of(files)
    if endpoint:
        checks.append(_listener(host, files, status, endpoint.port))
    return (*checks, check_flags(host, files))


def _invocation(status: UnitStatus, before: UnitStatus) -> CheckResult:
    name = "new-invocation"
    if status.invocation_id and status.invocation_id != before.invocation_id:
        return CheckResult(name=name, state=State.OK, summary=f"invocation {status.invocation_id[:8]} is a new one")
    summary = f"invocation {status.invocation_id[:8] or '-'} is the one from before"
    return CheckResult(name=name, state=State.CRITICAL, summary=summary)


def _listener(host: Host, files: UnitFiles, status: UnitStatus, port: int) -> CheckResult:
    name, pids = "answering-process", {at.pid for at in gather_listeners(host, port)}
    if not pids:
        return CheckResult(name=name, state=State.CRITICAL, summary=f"nobody listens on port {port}")
    if None in pids or files.container:
        why = f"the engine runs in {files.container.words}" if files.container else "the login may not see whose it is"
        return CheckResult(name=name, state=State.UNKNOWN, summary=f"somebody listens on port {port}: {why}")
    parents = parse_process_parents(host.run(process_parents_command()).text)
    foreign = [pid for pid in pids if not (status.main_pid and descends_from(pid or 0, status.main_pid, parents))]
    if foreign:
        summary = f"port {port} belongs to process {foreign[0]}, which is not of {files.unit}"
        return CheckResult(name=name, state=State.CRITICAL, summary=summary)
    own = ", ".join(str(pid) for pid in sorted(pid for pid in pids if pid))
    return CheckResult(name=name, state=State.OK, summary=f"port {port} belongs to process {own} of this invocation")


def check_flags(host: Host, files: UnitFiles) -> CheckResult:
    """Whether the running process has the arguments that the unit's files say now."""
    name, wanted = "running-flags", files.merged.engine_argv
    try:
        running = running_argv(host, files.unit)
    except CouldNotFindOut as error:
        return CheckResult(name=name, state=State.CRITICAL, summary=error.message)
    other = differing_word(wanted, running)
    if other is None:
        return CheckResult(name=name, state=State.OK, summary="the running process has the unit's own arguments")
    if program := shell_of(wanted):
        summary = f"{program} starts the engine: the running process's arguments can't be held against the unit"
        return CheckResult(name=name, state=State.UNKNOWN, summary=summary)
    summary = f"the running process has other arguments than its unit: {other}"
    return CheckResult(name=name, state=State.CRITICAL, summary=summary, evidence=(" ".join(running)[:400],))


def differing_word(wanted: Sequence[str], running: Sequence[str]) -> str | None:
    """The first argument of the unit that the process doesn't have at its place, None where all are there.

    What runs the engine (an interpreter, env, nice) may differ; words with specifiers and variables are known to
    systemd alone, and `$NAME` may be several of them.

    >>> differing_word(["/v/vllm", "serve", "--port", "1"], ["/v/python", "/v/vllm", "serve", "--port", "2"])
    '1'
    >>> differing_word("/bin/env A=1 /v/vllm serve /m $MORE".split(), "/v/python /v/vllm serve /m --seed 3".split())
    """
    pieces: list[list[str]] = [[]]
    for word in wanted[engine_start(wanted) :]:
        if re.fullmatch(r"\$\w+", word):
            pieces.append([])
        else:
            pieces[-1].append(word)
    *before, last = pieces
    rest = list(running)
    for piece in before:
        at = next((at for at in range(len(rest)) if _differs(piece, rest[at : at + len(piece)]) is None), None)
        if at is None:
            return piece[0]
        rest = rest[at + len(piece) :]
    return _differs(last, rest[len(rest) - len(last) :] if last else ())


def _differs(words: Sequence[str], others: Sequence[str]) -> str | None:
    if len(others) < len(words):
        return words[-1]
    pairs = zip(words, others, strict=False)
    return next((word for word, other in pairs if word != other and not {"%", "$"} & set(word)), None)
