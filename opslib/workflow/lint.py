"""Judge a unit before it is started: by the kit's own rules and by the host's own systemd."""

import json
from contextlib import suppress

from opslib.domain.container import container_of
from opslib.domain.facts.systemd import unit_name
from opslib.domain.host import Host
from opslib.domain.states import CheckResult, State, Value, worst
from opslib.domain.unit_file import parse_unit_file
from opslib.domain.unit_lint import lint_unit, read_verify
from opslib.errors import CouldNotFindOut, OpslibError, UnexpectedAnswer
from opslib.workflow.unit_files import gather_unit_files


class LintReport(Value):
    """What is wrong with a unit, the worst first; what could not be asked, and what is only worth saying."""

    host: str
    unit: str
    findings: tuple[CheckResult, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """The worst finding's state, ok for none."""
        return worst(finding.state for finding in self.findings)

    @property
    def summary(self) -> str:
        """In one sentence: "nothing to say about vllm-a.service", "vllm-a.service: 1 fault, 2 warnings"."""
        n_critical = sum(finding.state is State.CRITICAL for finding in self.findings)
        counts = ((n_critical, "fault"), (len(self.findings) - n_critical, "warning"))
        said = [f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count]
        return f"{self.unit}: {', '.join(said)}" if said else f"nothing to say about {self.unit}"

    @property
    def lines(self) -> tuple[str, ...]:
        """Each finding for reading: its rule, what it means and what to write, and the words that it is about."""
        told = [
            f"{finding.name}: {finding.summary}{f' ({chr(59).join(finding.evidence)})' if finding.evidence else ''}"
            for finding in self.findings
        ]
        return (*told, *self.notes)


def lint_text(host: Host, unit: str, text: str) -> LintReport:
    """What is wrong with a unit's text, installed or not; systemd's own reading of it included."""
    findings, notes = list(lint_unit(text)), []
    with suppress(OpslibError):
        if container := container_of(parse_unit_file(text).engine_argv):
            notes.append(f"the engine runs in {container.words}: its flags are read, and never changed")
    name = unit_name(unit)
    arguments = {"unit": name, "text": text, "scope": host.settings.scope}
    try:
        result = host.run_program("unit_verify", arguments)
        answer = json.loads(result.text)
        findings += read_verify(answer["text"], name)
        notes += [f"systemd-analyze was not asked: {answer['problem']}"] if answer["problem"] else []
    except (CouldNotFindOut, ValueError, RecursionError, KeyError) as error:
        notes.append(f"systemd-analyze was not asked: {error}")
    return LintReport(host=host.settings.alias, unit=name, findings=tuple(findings), notes=tuple(notes))


def lint_installed(host: Host, unit: str) -> LintReport:
    """What is wrong with an installed unit, its drop-ins included; raises UnknownName where there is none."""
    files = gather_unit_files(host, unit)
    if not files.text.strip():
        raise UnexpectedAnswer(f"the files of {unit} could not be read", host=host.settings.alias)
    return lint_text(host, unit, files.text)
