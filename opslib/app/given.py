"""Parameters as they are given outside a notebook: YAML files and `name=value` words."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from opslib.domain.parameters import takes_text
from opslib.errors import BadParameter


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
        raise BadParameter(f"{file}: can't be read: {error}") from error
    except yaml.YAMLError as error:
        raise BadParameter(f"{file}: no YAML: {' '.join(str(error).split())}") from error
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
        raise BadParameter(f"{name}: {text!r} is no YAML value: {' '.join(str(error).split())}") from error
