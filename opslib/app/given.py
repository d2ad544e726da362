"""Parameters as they are given outside a notebook: YAML files and `name=value` words."""

import re
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from opslib.domain.parameters import takes_text
from opslib.errors import BadParameter, reason_of

_PLAIN_NUMBERS = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"[-+]?(?:[0-9][0-9_]*)?\.[0-9_]+(?:[eE][-+]?[0-9]+)?$|[-+]?[0-9][0-9_]*(?:\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)$"
        r"|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
    ),
}


def read_given(runbook: str, files: Sequence[Path], assignments: Iterable[str]) -> dict[str, Any]:
    """The parameters that files and `name=value` words give; the later one wins, words over files.

    A value is a YAML scalar or collection (`8001`, `[0, 1]`, `null`); for a text parameter it is taken as it stands.
    Raises BadParameter for a file that can't be read and a word without `=`; names and types are checked later.
    """
    given: dict[str, Any] = {}
    for file in files:
        given.update(_from_file(file))
    for word in assignments:
        name, equals, text = word.partition("=")
        if not equals or not name.strip():
            raise BadParameter(f"-p {word}: expected name=value")
        given[name.strip()] = read_value(runbook, name.strip(), text)
    return given


def _from_file(file: Path) -> dict[str, Any]:
    try:
        content = _load(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadParameter(f"{file}: can't be read: {reason_of(error)}") from error
    except yaml.YAMLError as error:
        raise BadParameter(f"{file}: no YAML: {_place_of(error)}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise BadParameter(f"{file}: expected lines of the form `name: value`")
    return {str(name): value for name, value in content.items()}


def read_value(runbook: str, name: str, text: str) -> Any:
    """The value that a typed text means for this parameter; raises BadParameter for what is no YAML."""
    if takes_text(runbook, name) and text not in ("null", "~"):
        return text
    try:
        return _load(text)
    except yaml.YAMLError as error:
        raise BadParameter(f"{name}: {text!r} is no YAML value: {_place_of(error)}") from error


class _Loader(yaml.SafeLoader):
    """YAML as its users read it: a key is given once, 0123 and 1:30 are no other numbers, and a date is a text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The mapping; raises ConstructorError where a key is given twice: the last one would rule in silence."""
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 reads an octal, a base-60 number and a date; 1.2, and the operator, read what stands there.
_Loader.yaml_implicit_resolvers = {
    sign: [(tag, _PLAIN_NUMBERS.get(tag, pattern)) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for sign, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _load(text: str) -> Any:
    """The value; raises YAMLError for what is none, a nesting too deep to be read included."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except RecursionError:
        raise yaml.YAMLError("nested too deep") from None


def _place_of(error: yaml.YAMLError) -> str:
    """Line and column, both from 1, and what is wrong there; a control character has a position only."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is not None:
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem or 'not understood'}"
    position = getattr(error, "position", None)
    where = f"character {position + 1}: " if isinstance(position, int) else ""
    return f"{where}{getattr(error, 'reason', None) or str(error) or 'not understood'}"
