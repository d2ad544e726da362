"""What a model's family adds to its config.json: the model_type behind an architecture, and defaults of absent keys."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

_STEM = re.compile(r"[A-Za-z0-9_.]+?(?=For[A-Z]|Model|LMHead|$|[^A-Za-z0-9_.])")


@cache
def families() -> dict[str, dict[str, Any]]:
    """The table of data/models.toml, each row with what it takes from another one."""
    rows: dict[str, dict[str, Any]] = tomllib.loads(
        files("opslib.domain.data").joinpath("models.toml").read_text("utf-8")
    )
    return {name: _whole(rows, name) for name in rows}


def _whole(rows: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    row = dict(rows[name])
    other = row.pop("like", None)
    return {**_whole(rows, other), **row} if other else row


@cache
def _squeezed() -> dict[str, str]:
    return {name.replace("_", ""): name for name in families()}


def family_of(architecture: str, *model_types: object) -> str | None:
    """The table's row for a model: by the first model_type that is known, else by the architecture's name; or None.

    >>> family_of("MiniMaxM2ForCausalLM"), family_of("Qwen3_5ForConditionalGeneration"), family_of("NovelForCausalLM")
    ('minimax_m2', 'qwen3_5', None)
    """
    for given in model_types:
        for name in (str(given), str(given).removesuffix("_text")):
            if name in families():
                return name
    stem = _STEM.match(architecture)
    return _squeezed().get(stem[0].lower().replace("_", "").replace(".", "")) if stem else None
