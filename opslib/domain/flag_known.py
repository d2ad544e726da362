"""Whether an engine takes a flag: what the installed one says of itself goes before the kit's own table."""

import difflib
from collections.abc import Collection, Sequence

from opslib.domain.vllm_flags import UNKNOWN_FLAG, is_flag, parse_serve_arguments


def flags_of(words: Sequence[str]) -> list[str]:
    """The flags among words of a command line, without what stands behind an equals sign.

    >>> flags_of(["--port=1", "-tp", "2"])
    ['--port', '-tp']
    """
    return [word.partition("=")[0] for word in words if is_flag(word)]


def is_known(flag: str, known: Collection[str]) -> bool:
    """Whether vLLM's parser takes it: underscores, `--no-`, `--config.key`, `-O3` and unique beginnings included."""
    if flag in known or (flag.startswith("-O") and "-O" in known):
        return True
    stem = flag.partition(".")[0]
    stem = stem.replace("_", "-") if stem.startswith("--") else stem
    plain = "--" + stem.removeprefix("--no-")
    begun = [name for name in known if len(stem) > 3 and name.startswith(stem)]
    return stem in known or (stem.startswith("--no-") and plain in known) or len(begun) == 1


def no_such_flag(strange: Sequence[str], known: Collection[str]) -> str:
    """The sentence about flags that the installed engine doesn't know, with the name nearest to the first.

    >>> no_such_flag(["--max-num-sequences"], ["--max-num-seqs", "--port"])
    'the installed engine has no flag --max-num-sequences; did you mean --max-num-seqs?'
    """
    near = difflib.get_close_matches(strange[0].replace("_", "-"), known, n=1, cutoff=0.6)
    return f"the installed engine has no flag {', '.join(strange)}{f'; did you mean {near[0]}?' if near else ''}"


def flag_fault(flag: str, value: str | None, known: Collection[str]) -> str:
    """Why an engine that knows the flags `known` would not start with this one, "" where nothing speaks against it.

    Where `known` is empty, the kit's table says which flags there are.

    >>> flag_fault("--max-num-seqs", "many", ["--max-num-seqs"])
    "--max-num-seqs=many: invalid literal for int() with base 10: 'many'"
    >>> flag_fault("--new-in-next-year", "1", ["--new-in-next-year"]), flag_fault("--max-num-seqs", "8", [])
    ('', '')
    """
    if known and not is_known(flag, known):
        return no_such_flag([flag], known)
    findings = parse_serve_arguments([flag if value is None else f"{flag}={value}"]).findings
    return next((finding.summary for finding in findings if not known or finding.name != UNKNOWN_FLAG), "")
