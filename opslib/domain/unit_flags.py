"""Where the flags of an engine stand in a unit's command, and the command with one of them set or taken out."""

import posixpath
import re
from collections.abc import Sequence

from opslib.domain import vllm_flags
from opslib.domain.states import Value
from opslib.domain.unit_words import Word, group_by_flag, locate_words, quote_word
from opslib.errors import Refused
from opslib.onhost.engine_argv import engine_of

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "fish"})
_MANY_WORDS = re.compile(r"\$(?!\{)\w+")  # systemd.service(5): $NAME becomes as many words as its value has
_ONE_WORD = re.compile(r"\$\{\w+\}")


class _Mention(Value):
    """A flag in a command: where it begins and ends, and where the word before it ends."""

    start: int
    end: int
    before: int


class _Found(Value):
    """What a command says of one flag, and where another one may go."""

    mentions: tuple[_Mention, ...]
    starts: tuple[tuple[int, str], ...]  # each flag's place, with the blanks (a continuation, too) before it
    expands_at: int = -1  # where the last variable stands that may bring flags of its own, -1: none does
    variables: tuple[str, ...] = ()


def set_flag(raw: str, name: str, value: str | None) -> str:
    """The ExecStart= entry with one engine flag set (None: a flag without a value), in place of any earlier mention.

    A new flag goes before the last one, so that a diff shows one added line; behind a variable that may bring the same
    flag, the end of the command is the only place where it counts: the last mention rules. Raises Refused for a shell.
    """
    found, words = _find(raw, name, takes_value=value is not None), _spelled(name, value)
    first = next(iter(found.mentions), None)
    if first and first.start > found.expands_at:
        cut = _cut(raw, found.mentions[1:])
        return cut[: first.start] + words + cut[first.end :]
    raw = _cut(raw, found.mentions)
    if found.expands_at >= 0 or not found.starts:
        end = len(masked(raw).rstrip())
        return f"{raw[:end]} {words}{raw[end:]}"
    at, gap = found.starts[-1]
    return f"{raw[:at]}{words}{gap}{raw[at:]}"


def unset_flag(raw: str, name: str) -> str:
    """The ExecStart= entry without any mention of one engine flag.

    Raises Refused where only a variable could bring it, whose value stands elsewhere, and for a shell.
    """
    found = _find(raw, name, takes_value=None)
    if not found.mentions and found.variables:
        raise Refused(
            f"{name} doesn't stand in ExecStart= itself, and {', '.join(found.variables)} may bring it",
            hint="change it where Environment= or EnvironmentFile= sets the variable",
        )
    return _cut(raw, found.mentions)


def engine_start(words: Sequence[str]) -> int:
    """The place of the first word that is the engine's own: behind `serve`, `python -m MODULE`, or its program.

    >>> engine_start("/usr/bin/nice -n 5 /v/vllm serve /m --port 1".split())
    5
    >>> engine_start("/v/python -u -m sglang.launch_server --tp 4".split()), engine_start(["/llama-server", "-m", "x"])
    (4, 1)
    """
    if "serve" in words[1:]:
        return words.index("serve", 1) + 1
    pythons = [at for at, word in enumerate(words) if posixpath.basename(word).startswith("python")]
    if pythons and "-m" in words[pythons[0] :]:
        return words.index("-m", pythons[0]) + 2
    named = [at for at, word in enumerate(words) if engine_of(posixpath.basename(word)) and not word.startswith("-")]
    return named[0] + 1 if named else 1


def shell_of(words: Sequence[str]) -> str:
    """The shell or script that starts the engine, "" where the unit does: its arguments are its own affair."""
    start = engine_start(words)
    shells = (word for at, word in enumerate(words) if posixpath.basename(word) in _SHELLS and (at == 0 or "/" in word))
    if start == 1 and (shell := next(shells, "")):
        return shell
    return next((word for word in words[:start] if posixpath.basename(word) in _SHELLS or word.endswith(".sh")), "")


def masked(raw: str) -> str:
    """An entry with its continuations, and the comments between them, blanked out; every other sign keeps its place."""
    lines, is_first = [], True
    for line in split_lines(raw):
        is_comment = not is_first and line.lstrip()[:1] in {"#", ";"}
        content = line.rstrip("\r\n")
        if is_comment:
            content = " " * len(content)
        elif is_continued(line):
            content = f"{content[:-1]} "
        lines.append(content + " " * (len(line) - len(content)))
        is_first = False
    return "".join(lines)


def split_lines(text: str) -> list[str]:
    """Lines with their newline, cut at newlines only: Unicode's other separators are plain characters to systemd."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def is_continued(line: str) -> bool:
    """Whether a line of a unit file goes on in the next one: it ends with an odd number of backslashes."""
    content = line.rstrip("\r\n")
    return (len(content) - len(content.rstrip("\\"))) % 2 == 1


def group_words(words: Sequence[Word]) -> list[list[Word]]:
    """Words in lines, each flag with the values after it."""
    remaining = iter(words)
    return [[next(remaining) for _ in line] for line in group_by_flag([word.text for word in words])]


def _find(raw: str, name: str, *, takes_value: bool | None) -> _Found:
    text = masked(raw)
    offset = text.index("=") + 1
    located = [(word, offset + at) for word, at in locate_words(text[offset:])]
    words = [word for word, _ in located]
    texts = [word.text for word in words]
    if program := shell_of(texts):
        raise Refused(
            f"{program} starts the engine, so its flags are no words of ExecStart=",
            hint="change what the shell runs, or let ExecStart= run the engine itself",
        )
    first = engine_start(texts)
    ends = [at + len(word.raw) for word, at in located]
    own = group_words(words[first:])
    mentions, starts, expands_at, variables = [], [], -1, []
    for line in own:
        at, before = located[first][1], ends[first - 1]
        n_values = 0
        if vllm_flags.is_flag(line[0].text):
            starts.append((at, raw[before:at]))
            n_values = _n_values(line, takes_value=takes_value)
            if _is_meant(line[0].text, name):
                if takes_value is None and n_values and vllm_flags.is_flag(own[0][0].text):
                    _refuse_guess(line)
                mentions.append(_Mention(start=at, end=ends[first + n_values], before=before))
        for index in _expanding(line, n_values):
            variables.append(line[index].raw)
            expands_at = located[first + index][1]
        first += len(line)
    return _Found(mentions=tuple(mentions), starts=tuple(starts), expands_at=expands_at, variables=tuple(variables))


def _expanding(line: Sequence[Word], n_values: int) -> list[int]:
    """The places of the variables in a flag's line that may bring flags: not those that are its one value."""
    plain = [word.raw.strip("\"'") for word in line]
    many = [at for at, word in enumerate(plain) if _MANY_WORDS.fullmatch(word) and not (at == n_values == 1)]
    return sorted({*many, *(at for at, word in enumerate(plain) if at > n_values and _ONE_WORD.fullmatch(word))})


def _cut(raw: str, mentions: Sequence[_Mention]) -> str:
    for mention in reversed(mentions):
        raw = raw[: mention.before] + raw[mention.end :]
    return raw


def _spelled(name: str, value: str | None) -> str:
    """The words that say it: an alias by the flag's own name, a value that looks like a flag behind an equals sign."""
    flag = vllm_flags.read_flag_name(name)
    if flag is not None and not name.startswith("-O"):
        known = f"--no-{flag.name[2:]}" if flag.is_negated else flag.name
        name = f"{known}.{flag.member}" if flag.member else known
    if value is not None and vllm_flags.is_flag(value):
        return quote_word(f"{name}={value}")
    return " ".join(quote_word(word) for word in (name, value) if word is not None)


def _key(word: str) -> tuple[str, str]:
    """What a word of a command sets: the flag, negated or not, and the member of its value."""
    stem = word.partition("=")[0]
    if stem.startswith("-O") and "." not in stem:  # vllm/utils/argparse_utils.py: a level of its own in newer versions
        return "-O", ""
    if flag := vllm_flags.read_flag_name(word):
        return flag.name, flag.member
    head, _, member = stem.partition(".")
    if head.startswith("--"):
        head = "--" + head.replace("_", "-").removeprefix("--").removeprefix("no-")
    return head, member


def _is_meant(word: str, name: str) -> bool:
    """Whether a word sets what `name` sets; a whole object's flag means each of its members, too."""
    flag, member = _key(name)
    word_flag, word_member = _key(word)
    return word_flag == flag and member in {word_member, ""}


def _refuse_guess(line: Sequence[Word]) -> None:
    """Raise Refused where the model may stand behind a flag that no table knows."""
    if vllm_flags.read_flag_name(line[0].text) is None:
        raise Refused(
            f"whether {line[1].text!r} is the value of {line[0].text} or the model can't be told",
            hint="put the model before the flags, right behind `serve`",
        )


def _n_values(line: Sequence[Word], *, takes_value: bool | None) -> int:
    """How many of the words behind a flag are its values; of a flag that no table knows, as many as the new one has."""
    word, others = line[0].text, len(line) - 1
    if "=" in word or re.fullmatch(r"-O\d", word):
        return 0
    flag = vllm_flags.read_flag_name(word)
    if flag is not None:
        spec = vllm_flags.flag_table()[flag.name]
        return 0 if spec.kind == "bool" else others if spec.many else min(1, others)
    if takes_value is False:
        return 0
    return min(1, others) if takes_value else others
