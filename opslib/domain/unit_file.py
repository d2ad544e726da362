"""A systemd unit file as a value: read, changed by one engine flag, written back with everything else as it was."""

import difflib
import re
from collections.abc import Sequence

from opslib.domain import vllm_flags
from opslib.domain.states import Value
from opslib.domain.unit_words import Word, group_by_flag, locate_words, quote_word, split_words
from opslib.errors import UnexpectedAnswer

_PREFIXES = "@-:+!|"  # of an executable, systemd.service(5)
_CONTINUATION = " \\\n    "


class Entry(Value):
    """One line of a unit file with its continuations; key and value are empty for comments, blanks and headings."""

    raw: str
    section: str = ""
    key: str = ""
    value: str = ""


class UnitFile(Value):
    """A unit file, entry by entry, in the order and wording of the file."""

    entries: tuple[Entry, ...]

    def render(self) -> str:
        """The file's text; what was parsed comes back byte for byte."""
        return "".join(entry.raw for entry in self.entries)

    def values(self, section: str, key: str) -> tuple[str, ...]:
        """All values of a repeatable key; an empty assignment forgets those before it."""
        found: list[str] = []
        for entry in self.entries:
            if (entry.section, entry.key) == (section, key):
                found = [*found, entry.value] if entry.value else []
        return tuple(found)

    def value(self, section: str, key: str) -> str | None:
        """The effective value of a key that is given once."""
        return next(reversed(self.values(section, key)), None)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the Environment= lines set."""
        words = [
            word.text
            for value in self.values("Service", "Environment")
            for word in split_words(value, is_command=False)
        ]
        return dict(word.split("=", 1) for word in words if "=" in word)

    @property
    def engine_argv(self) -> tuple[str, ...]:
        """The argument vector of ExecStart=, as the program gets it; empty where there is none."""
        return tuple(word.text for word in self._engine_words())

    @property
    def serve_arguments(self) -> tuple[str, ...]:
        """The words after `vllm serve` (or after the API server's module): model and flags."""
        argv = self.engine_argv
        for marker in ("serve", "vllm.entrypoints.openai.api_server"):
            if marker in argv:
                return argv[argv.index(marker) + 1 :]
        return ()

    def with_engine_flag(self, name: str, value: str | None = None) -> "UnitFile":
        """The same unit with one engine flag set (None: a flag without a value), in place of any earlier mention.

        A flag that wasn't there goes before the last one, so that a diff shows one added line; nothing else is touched.
        """
        words = " ".join([quote_word(_canonical(name)), *([] if value is None else [quote_word(value)])])
        entry = self._changeable_entry()
        mentions, starts = _find_flag(entry, name)
        if mentions:
            (start, end, _), *others = mentions
            raw = _cut(entry.raw, others)
            return self._with_engine_raw(raw[:start] + words + raw[end:])
        if len(starts) < 2:  # nothing but the program and its first words
            end = len(_masked(entry.raw).rstrip())
            return self._with_engine_raw(f"{entry.raw[:end]} {words}{entry.raw[end:]}")
        at, gap = starts[-1]
        return self._with_engine_raw(f"{entry.raw[:at]}{words}{gap}{entry.raw[at:]}")

    def without_engine_flag(self, name: str) -> "UnitFile":
        """The same unit with every mention of one engine flag taken out; itself where there's none."""
        entry = self._changeable_entry()
        mentions, _ = _find_flag(entry, name)
        return self._with_engine_raw(_cut(entry.raw, mentions)) if mentions else self

    def _engine_entry(self) -> Entry:
        found = [
            entry for entry in self.entries if (entry.section, entry.key) == ("Service", "ExecStart") and entry.value
        ]
        if not found:
            raise UnexpectedAnswer("the unit has no ExecStart=")
        return found[-1]

    def _engine_words(self) -> list[Word]:
        if self.value("Service", "ExecStart") is None:
            return []
        words = list(split_words(self._engine_entry().value))
        if any(word.raw == ";" for word in words):
            raise UnexpectedAnswer("ExecStart= holds several commands")
        first = words[0].text.lstrip(_PREFIXES) if words else ""
        return [Word(raw=words[0].raw, text=first), *words[1:]] if words else []

    def _changeable_entry(self) -> Entry:
        self._engine_words()  # raises where there are several commands
        return self._engine_entry()

    def _with_engine_raw(self, raw: str) -> "UnitFile":
        entry = self._engine_entry()
        changed = parse_unit_file(f"[{entry.section}]\n{raw}").entries[1]
        return UnitFile(entries=tuple(changed if known is entry else known for known in self.entries))


def _masked(raw: str) -> str:
    """An entry with its continuations, and the comments between them, blanked out; every other sign keeps its place."""
    lines, is_first = [], True
    for line in split_lines(raw):
        is_comment = not is_first and line.lstrip()[:1] in {"#", ";"}
        content = line.rstrip("\r\n")
        if is_comment:
            content = " " * len(content)
        elif _is_continued(line):
            content = f"{content[:-1]} "
        lines.append(content + " " * (len(line) - len(content)))
        is_first = False
    return "".join(lines)


def _find_flag(entry: Entry, name: str) -> tuple[list[tuple[int, int, int]], list[tuple[int, str]]]:
    """Each mention of a flag in a command: where it begins and ends, and where the word before it ends.

    And where each flag of the command begins, with the blanks (a continuation, too) before it; the program comes first.
    """
    masked = _masked(entry.raw)
    offset = masked.index("=") + 1
    located = [(word, offset + at) for word, at in locate_words(masked[offset:])]
    ends = [at + len(word.raw) for word, at in located]
    mentions, starts, first = [], [], 0
    for line in group_words([word for word, _ in located]):
        at, before = located[first][1], ends[first - 1] if first else offset
        starts.append((at, entry.raw[before:at]))
        flag = vllm_flags.read_flag_name(line[0].text) if vllm_flags.is_flag(line[0].text) else None
        if flag is not None and flag.name == _canonical(name):
            mentions.append((at, ends[first + _n_values(flag, line)], before))
        first += len(line)
    return mentions, starts


def _cut(raw: str, mentions: Sequence[tuple[int, int, int]]) -> str:
    for _, end, before in reversed(mentions):
        raw = raw[:before] + raw[end:]
    return raw


def group_words(words: Sequence[Word]) -> list[list[Word]]:
    """Words in lines, each flag with the values after it."""
    remaining = iter(words)
    return [[next(remaining) for _ in line] for line in group_by_flag([word.text for word in words])]


def _canonical(name: str) -> str:
    flag = vllm_flags.read_flag_name(name)
    return flag.name if flag else name


def _n_values(flag: vllm_flags.FlagName, line: Sequence[Word]) -> int:
    spec = vllm_flags.flag_table()[flag.name]
    if spec.kind == "bool" or flag.inline is not None:
        return 0
    return len(line) - 1 if spec.many else min(1, len(line) - 1)


def parse_unit_file(text: str) -> UnitFile:
    """Reads a unit file: sections, comments, continuations (comments between them are passed over), repeated keys."""
    entries: list[Entry] = []
    section = ""
    lines = split_lines(text)
    while lines:
        raw = line = lines.pop(0)
        stripped = line.strip()
        if stripped.startswith("[") and stripped.endswith("]"):
            section = stripped[1:-1]
        if not stripped or stripped[0] in "#;[":
            entries.append(Entry(raw=raw, section=section))
            continue
        joined = ""
        while _is_continued(line) and lines:
            joined += line.rstrip("\r\n")[:-1] + " "
            line = lines.pop(0)
            raw += line
            while line.lstrip()[:1] in {"#", ";"} and lines:
                line = lines.pop(0)
                raw += line
        key, _, value = (joined + line).strip().partition("=")
        entries.append(Entry(raw=raw, section=section, key=key.strip(), value=value.strip()))
    return UnitFile(entries=tuple(entries))


def split_lines(text: str) -> list[str]:
    """Lines with their newline, cut at newlines only: Unicode's other separators are plain characters to systemd."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _is_continued(line: str) -> bool:
    content = line.rstrip("\r\n")
    return (len(content) - len(content.rstrip("\\"))) % 2 == 1


def render_exec_start(argv: Sequence[str]) -> str:
    """An ExecStart= entry with one flag per line, each argument quoted so that it arrives unchanged."""
    lines = [" ".join(quote_word(word) for word in line) for line in group_by_flag(argv)]
    return f"ExecStart={_CONTINUATION.join(lines)}\n"


def unified_diff(old: str | None, new: str, path: str) -> str:
    """The change of a file as a unified diff; `old` is None where there's no such file. "" when nothing changes."""
    before = [] if old is None else split_lines(old)
    name = "/dev/null" if old is None else path
    lines = difflib.unified_diff(before, split_lines(new), name, path)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
