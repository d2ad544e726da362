"""Looks for a secret in any byte of a folder, written in any way that a reader could turn back."""

import base64
import binascii
import html
import json
import re
import zlib
from pathlib import Path
from urllib.parse import unquote_plus

_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{8,}={0,2}")
_HEX = re.compile(rb"(?:[0-9a-fA-F]{2}){8,}")


def leaks(folder: Path, secret: str) -> list[str]:
    """The files that give `secret` away, and how: plain, escaped, URL-encoded, base64, or compressed."""
    found = []
    for path in (path for path in sorted(folder.rglob("*")) if path.is_file()):
        content = path.read_bytes()
        found += [f"{path.relative_to(folder)}: {how}" for how in _ways(content, secret)]
    return found


def _ways(content: bytes, secret: str) -> list[str]:
    needle = secret.encode()
    text = content.decode("utf-8", "replace")
    readings = {
        "plain": content,
        "URL-encoded": unquote_plus(text).encode(),
        "in HTML": html.unescape(text).encode(),
        "in JSON": _unescaped(text).encode(),
        "in JSON, twice": _unescaped(_unescaped(text)).encode(),
        "base64": b"\n".join(_decoded(content)),
        "hexadecimal": b"\n".join(binascii.unhexlify(match) for match in _HEX.findall(content)),
        "compressed": b"\n".join(_inflated(content)),
    }
    return [how for how, reading in readings.items() if needle in reading]


def _unescaped(text: str) -> str:
    return re.sub(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])', lambda match: json.loads(f'"{match[0]}"'), text)


def _decoded(content: bytes):
    """Every base64 text, from each of the four characters that it may begin at; also one that is broken into lines."""
    joined = re.sub(rb"(?:\\n|\n)(?=[A-Za-z0-9+/=]{4,})", b"", content)
    for source in (content, joined):
        for match in _BASE64.findall(source):
            plain = match.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
            for start in range(4):
                piece = plain[start:]
                piece = piece[: len(piece) // 4 * 4]
                yield base64.b64decode(piece) if piece else b""


def _inflated(content: bytes):
    """Every stream of a PDF, and the compressed texts of pictures."""
    for match in re.finditer(rb"stream\r?\n|zTXt[^\0]*\0\0|iTXt", content):
        try:
            yield zlib.decompressobj().decompress(content[match.end() :])
        except zlib.error:
            continue
