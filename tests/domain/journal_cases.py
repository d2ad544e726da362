"""The handed journals with their right answers, and ways to change them without changing what happened."""

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "cases" / "journals"


@dataclass(frozen=True)
class Case:
    """One journal: its text, whether it is journald JSON, and the right answer."""

    name: str
    text: bytes
    is_json: bool
    truth: dict

    @property
    def family(self):
        return self.truth["cause"].partition("/")[0]

    def accepts(self, cause):
        return cause == self.truth["cause"] or cause in self.truth["also_accept"]

    def is_decided_by(self, diagnosis):
        """Whether the first quoted line is a deciding one (true where there is none to quote)."""
        decisive = self.truth["decisive_lines"]
        if not decisive or diagnosis.cause in {"none", "unknown"}:
            return True
        return bool(diagnosis.evidence) and diagnosis.evidence[0].line in decisive


def load_cases():
    """All handed cases, by name."""
    cases = []
    for path in sorted(FOLDER.glob("*.truth.json")):
        name = path.name.removesuffix(".truth.json")
        journal = FOLDER / f"{name}.jsonl"
        is_json = journal.exists()
        text = (journal if is_json else FOLDER / f"{name}.txt").read_bytes()
        cases.append(Case(name, text, is_json, json.loads(path.read_text("utf-8"))))
    return cases


def _each_message(case, change):
    """The case's text with `change(message)` applied to each text message."""
    if not case.is_json:
        return "\n".join(change(line) for line in case.text.decode("utf-8", "replace").split("\n")).encode()
    lines = []
    for line in case.text.splitlines():
        if not line.strip():
            continue
        fields = json.loads(line)
        if isinstance(fields.get("MESSAGE"), str):
            fields["MESSAGE"] = change(fields["MESSAGE"])
        lines.append(json.dumps(fields, ensure_ascii=False).encode())
    return b"\n".join(lines)


def crlf(case):
    return case.text.replace(b"\n", b"\r\n")


def coloured(case):
    return _each_message(case, lambda text: re.sub(r"^(\([A-Z]\w* ?[^)]*\))", "\x1b[1;36m\\1\x1b[0;0m", text))


def other_pids(case):
    return re.sub(rb"pid=(\d+)", lambda m: b"pid=%d" % (int(m[1]) + 70001), case.text)


def other_paths(case):
    return case.text.replace(b"/opt/vllm/", b"/srv/stacks/blue-7/").replace(b"dist-packages", b"site-packages")


def other_ranks(case):
    return re.sub(rb"Worker_TP(\d)", lambda m: b"Worker_TP%d" % (int(m[1]) + 8), case.text)


def other_times(case):
    return re.sub(rb"(DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:", rb"\1 02-03 23:", case.text)


def other_version(case):
    return re.sub(rb"\.py:\d+\]", b".py:4711]", re.sub(rb"\.py\", line \d+", b'.py", line 99', case.text))


def as_byte_numbers(case):
    """Journald writes a message with control bytes as numbers."""
    if not case.is_json:
        return case.text
    lines = []
    for index, line in enumerate(case.text.splitlines()):
        fields = json.loads(line)
        if index % 3 == 0 and isinstance(fields.get("MESSAGE"), str):
            fields["MESSAGE"] = list(fields["MESSAGE"].encode())
        lines.append(json.dumps(fields).encode())
    return b"\n".join(lines)


def interleaved(case):
    """Lines of different processes swap places; each process keeps its own order."""
    if not case.is_json:
        return case.text
    lines, chance = case.text.splitlines(), random.Random(7)
    pids = [json.loads(line).get("_PID") for line in lines]
    for at in range(len(lines) - 1):
        is_program = pids[at] != "1" and pids[at + 1] != "1" and pids[at] and pids[at + 1]
        if is_program and pids[at] != pids[at + 1] and chance.random() < 0.5:
            lines[at], lines[at + 1], pids[at], pids[at + 1] = lines[at + 1], lines[at], pids[at + 1], pids[at]
    return b"\n".join(lines)


def without_head(case):
    """The first lines are lost, up to some way before the first deciding one."""
    lines = case.text.split(b"\n")
    first = min(case.truth["decisive_lines"], default=0)
    return b"\n".join(lines[max(0, first - 45) :])


def without_tail(case):
    """Everything after the deciding lines' neighbourhood is lost."""
    lines = case.text.split(b"\n")
    last = max(case.truth["decisive_lines"], default=len(lines))
    return b"\n".join(lines[: last + 25])


def composed(case):
    """As `docker compose logs` prints it."""
    if case.is_json:
        return case.text
    return b"\n".join(b"engine-1  | " + line for line in case.text.split(b"\n"))


def stamped(case):
    """As `kubectl logs --timestamps` prints it."""
    if case.is_json:
        return case.text
    return b"\n".join(b"2026-03-04T05:06:07.123456789Z " + line for line in case.text.split(b"\n"))


def as_plain_text(case):
    """Only the messages, as a user pastes them."""
    if not case.is_json:
        return case.text
    texts = []
    for line in case.text.splitlines():
        fields = json.loads(line)
        message = fields.get("MESSAGE")
        if isinstance(message, list):
            message = bytes(message).decode("utf-8", "replace").replace("\r", " ")
        host, name = fields.get("_HOSTNAME", "host"), fields.get("SYSLOG_IDENTIFIER", "kernel")
        pid = f"[{fields['_PID']}]" if "_PID" in fields else ""
        texts.append(f"Nov 29 12:00:00 {host} {name}{pid}: {message or ''}")
    return "\n".join(texts).encode()


MUTATIONS = {
    function.__name__: function
    for function in (
        crlf,
        coloured,
        other_pids,
        other_paths,
        other_ranks,
        other_times,
        other_version,
        as_byte_numbers,
        interleaved,
        without_head,
        without_tail,
        composed,
        stamped,
        as_plain_text,
    )
}
