"""A systemd unit file as a value: read, changed by one engine flag, written back with everything else as it was."""

import difflib
from collections.abc import Sequence

from opslib.domain.states import Value
from opslib.domain.unit_flags import is_continued, set_flag, split_lines, unset_flag
from opslib.domain.unit_words import Word, group_by_flag, quote_word, split_words
from opslib.errors import Refused, UnexpectedAnswer

_PREFIXES = "@-:+!|"  # of an executable, systemd.service(5)
_MARKERS = ("serve", "vllm.entrypoints.openai.api_server")  # the word before vLLM's own arguments
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
        return next((argv[argv.index(marker) + 1 :] for marker in _MARKERS if marker in argv), ())

    def with_engine_flag(self, name: str, value: str | None = None) -> "UnitFile":
        """The same unit with one engine flag set (None: a flag without a value), in place of any earlier mention.

        A flag that wasn't there goes where a diff shows one added line; nothing else is touched. Raises Refused where
        the flags are no words of the command: several commands in one line, or a shell's.
        """
        return self._with_engine_raw(set_flag(self._changeable_entry().raw, name, value))

    def without_engine_flag(self, name: str) -> "UnitFile":
        """The same unit with every mention of one engine flag taken out; itself where there's none."""
        entry = self._changeable_entry()
        raw = unset_flag(entry.raw, name)
        return self if raw == entry.raw else self._with_engine_raw(raw)

    @property
    def command_text(self) -> str:
        """The ExecStart= entries that count, in their own wording; "" where there is none."""
        counted = self._commands()
        return "".join(entry.raw if entry.raw.endswith("\n") else f"{entry.raw}\n" for entry in counted)

    def _commands(self) -> list[Entry]:
        found: list[Entry] = []
        for entry in self.entries:
            if (entry.section, entry.key) == ("Service", "ExecStart"):
                found = [*found, entry] if entry.value else []
        return found

    def _engine_entry(self) -> Entry:
        """The command that runs an engine; where several could be, or none is, the last one."""
        found = self._commands()
        if not found:
            raise UnexpectedAnswer("the unit has no ExecStart=")
        return next((entry for entry in reversed(found) if _has_marker(entry.value.split())), found[-1])

    def _engine_words(self) -> list[Word]:
        if not self._commands():
            return []
        commands: list[list[Word]] = [[]]
        for word in split_words(self._engine_entry().value):
            if word.raw == ";":
                commands.append([])
            else:
                commands[-1].append(word)
        words = next((words for words in commands if _has_marker([word.text for word in words])), commands[-1])
        first = words[0].text.lstrip(_PREFIXES) if words else ""
        return [Word(raw=words[0].raw, text=first), *words[1:]] if words else []

    def _changeable_entry(self) -> Entry:
        entry = self._engine_entry()
        if any(word.raw == ";" for word in split_words(entry.value)):
            raise Refused("ExecStart= holds several commands in one line", hint="give each an ExecStart= of its own")
        return entry

    def _with_engine_raw(self, raw: str) -> "UnitFile":
        entry = self._engine_entry()
        changed = parse_unit_file(f"[{entry.section}]\n{raw}").entries[1]
        return UnitFile(entries=tuple(changed if known is entry else known for known in self.entries))


def _has_marker(words: Sequence[str]) -> bool:
    return not set(_MARKERS).isdisjoint(words)


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
        while is_continued(line) and lines:
            joined += line.rstrip("\r\n")[:-1] + " "
            line = lines.pop(0)
            raw += line
            while line.lstrip()[:1] in {"#", ";"} and lines:
                line = lines.pop(0)
                raw += line
        key, _, value = (joined + line).strip().partition("=")
        entries.append(Entry(raw=raw, section=section, key=key.strip(), value=value.strip()))
    return UnitFile(entries=tuple(entries))


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
