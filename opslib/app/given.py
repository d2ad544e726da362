"""Parameters as they are given outside a notebook: YAML files and `name=value` words."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from opslib.domain.parameters import takes_text
from opslib.errors import BadParameter, reason_of


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
        content = yaml.safe_load(file.read_text("utf-8"))
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
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadParameter(f"{name}: {text!r} is no YAML value: {_place_of(error)}") from error


def _place_of(error: yaml.YAMLError) -> str:
    """Line and column, both from 1, and what is wrong there; a control character has a position only."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is not None:
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem or 'not understood'}"
    position = getattr(error, "position", None)
    where = f"character {position + 1}: " if isinstance(position, int) else ""
    return f"{where}{getattr(error, 'reason', None) or 'not understood'}"
