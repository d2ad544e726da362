"""A systemd unit file as a value: read, changed by one engine flag, written back with everything else as it was."""

import difflib
import re
from collections.abc import Sequence

from opslib.domain import vllm_flags
from opslib.domain.states import Value
from opslib.domain.unit_words import Word, group_by_flag, quote_word, split_words
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

        A flag that wasn't there goes before the last one, so that a diff shows one added line.
        """
        words = [quote_word(_canonical(name)), *([] if value is None else [quote_word(value)])]
        lines, position = self._lines_without(name)
        lines.insert(max(1, len(lines) - 1) if position is None else position, words)
        return self._with_engine_lines(lines)

    def without_engine_flag(self, name: str) -> "UnitFile":
        """The same unit with every mention of one engine flag taken out; itself where there's none."""
        lines, position = self._lines_without(name)
        return self if position is None else self._with_engine_lines(lines)

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

    def _lines_without(self, name: str) -> tuple[list[list[str]], int | None]:
        """ExecStart's raw words, one flag per line, without flag `name`; and where it first stood."""
        canonical = _canonical(name)
        kept: list[list[str]] = []
        position: int | None = None
        for line in group_words(self._engine_words()):
            flag = vllm_flags.read_flag_name(line[0].text) if vllm_flags.is_flag(line[0].text) else None
            if flag is None or flag.name != canonical:
                kept.append([word.raw for word in line])
                continue
            position = len(kept) if position is None else position
            kept.extend([word.raw] for word in line[1 + _n_values(flag, line) :])  # a model behind the flag stays
        return kept, position

    def _with_engine_lines(self, lines: list[list[str]]) -> "UnitFile":
        entry = self._engine_entry()
        separator = _CONTINUATION if "\\\n" in entry.raw else " "
        raw = f"{entry.key}={separator.join(' '.join(line) for line in lines)}\n"
        changed = parse_unit_file(f"[{entry.section}]\n{raw}").entries[1]
        return UnitFile(entries=tuple(changed if known is entry else known for known in self.entries))


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
