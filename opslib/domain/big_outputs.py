"""Outputs that are too big for a notebook: their beginning and end stay there, the whole lies beside it."""

from collections.abc import Mapping
from html import escape
from typing import Any

LONGEST = 200_000  # characters of one output that stay in the notebook: GitHub shows no notebook of some megabytes
_HEAD, _TAIL = 6_000, 2_000
FOLDER = "outputs"
_SUFFIXES = {"text/html": "html", "text/markdown": "md", "application/json": "json"}


def shorten_outputs(notebook: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The notebook with its big outputs cut, and what was cut, whole, by the name of the file that is to hold it."""
    beside: dict[str, str] = {}
    cells = [
        {
            **cell,
            "outputs": [_short(output, f"{FOLDER}/cell-{number:02}-{at}", beside) for at, output in _numbered(cell)],
        }
        if cell.get("outputs")
        else cell
        for number, cell in enumerate(notebook.get("cells", []), start=1)
    ]
    return {**notebook, "cells": cells}, beside


def _numbered(cell: Mapping[str, Any]) -> enumerate[dict[str, Any]]:
    return enumerate(cell["outputs"], start=1)


def _short(output: dict[str, Any], name: str, beside: dict[str, str]) -> dict[str, Any]:
    if "text" in output and (text := _text(output["text"])) and len(text) > LONGEST:
        return {**output, "text": _cut(text, _keep(beside, f"{name}.txt", text))}
    data = output.get("data", {})
    big = {kind: _text(value) for kind, value in data.items() if _is_big(kind, value)}
    if not big:
        return output
    cut = dict(data)
    plain = _text(data.get("text/plain", ""))
    for kind, text in big.items():
        file = _keep(beside, f"{name}.{_SUFFIXES.get(kind, 'txt')}", text)
        short = _cut(text if kind == "text/plain" else plain, file)
        cut[kind] = f"<pre>{escape(short)}</pre>" if kind == "text/html" else short
    return {**output, "data": cut}


def _is_big(kind: str, value: Any) -> bool:
    return kind.startswith("text/") and len(_text(value)) > LONGEST


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "".join(map(str, value))
    return value if isinstance(value, str) else ""


def _keep(beside: dict[str, str], name: str, text: str) -> str:
    beside[name] = text
    return name


def _cut(text: str, name: str) -> str:
    """Beginning and end of a text, and between them where the whole is."""
    whole = f"[{len(text):,} characters in all: {name}]"
    if len(text) <= _HEAD + _TAIL:
        return f"{text}\n{whole}"
    return f"{text[:_HEAD]}\n[...]\n{text[-_TAIL:]}\n{whole}"
