"""`opslib diagnose`: offline, from a file or standard input, in plain text or one JSON document."""

import gzip
import io
import json
import os
import sys
import unicodedata

import pytest

from opslib.cli.main import call

CRASH = """\
INFO 11-29 18:15:03 vLLM API server version 0.15.0
Traceback (most recent call last):
OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use
systemd[1]: vllm.service: Main process exited, code=exited, status=1/FAILURE
"""
CAUSE = "configuration/port-in-use"
KEYS = {"cause", "confidence", "summary", "evidence", "consequences", "ruled_out", "remedies", "invocations"}


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "engine.log"
    path.write_text(CRASH)
    return str(path)


def test_cause_is_named_with_its_lines(log, capsys):
    """A crash is exit code 2: its cause, the deciding line by number, and a way out."""
    assert call(["diagnose", log]) == 2
    told = capsys.readouterr().out
    assert told.startswith(f"✗ critical  {CAUSE} (high confidence)")
    assert "line 3" in told
    assert "Ways out:" in told


def test_json_has_the_shape_that_is_promised(log, capsys):
    """--json is one document with exactly the promised keys; lines are counted from 0."""
    assert call(["diagnose", log, "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert set(document) == KEYS
    assert document["cause"] == CAUSE
    assert 2 in [evidence["line"] for evidence in document["evidence"]]


def test_standard_input(capsys, monkeypatch):
    """- reads standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CRASH.encode())))
    assert call(["diagnose", "-", "--format", "text"]) == 2
    assert CAUSE in capsys.readouterr().out


def test_nothing_to_go_by_is_unknown(tmp_path, capsys):
    """An empty file is exit code 3: unknown rather than a guess."""
    (tmp_path / "empty").touch()
    assert call(["diagnose", str(tmp_path / "empty")]) == 3
    assert capsys.readouterr().out.startswith("? unknown  There are no lines")


def test_properties_are_read(log, tmp_path, capsys):
    """--show takes a saved `systemctl show`; one that isn't there is refused."""
    show = tmp_path / "properties.txt"
    show.write_text("LoadState=loaded\nActiveState=failed\nSubState=failed\nResult=exit-code\nNRestarts=1\n")
    assert call(["diagnose", log, "--show", str(show)]) == 2
    assert call(["diagnose", log, "--show", str(tmp_path / "none")]) == 4
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("content", [bytes(range(256)) * 40, gzip.compress(os.urandom(9000)), b"\x7fELF" + bytes(500)])
def test_binary_file_is_refused(content, tmp_path, capsys):
    """What is no text is refused with what to do; asked for by format, it is read all the same."""
    path = tmp_path / "core"
    path.write_bytes(content)
    assert call(["diagnose", str(path)]) == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{path} is not text. Next: unpack it" in said.err
    assert call(["diagnose", str(path), "--format", "text"]) == 3


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_text_with_odd_bytes_is_read(encoding, tmp_path, capsys):
    """A log that lost some blocks, or in another encoding of Unicode, is text."""
    path = tmp_path / "log"
    path.write_bytes((CRASH + "\0" * 100 + "Grüße 你好" * 900).encode(encoding))
    assert call(["diagnose", str(path)]) == 2
    assert CAUSE in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_quoted_line_cannot_command_the_terminal(options, tmp_path, capsys):
    """A quoted line's control characters (C0, DEL, C1) are shown, never passed on; a JSON document keeps them."""
    path = tmp_path / "log"
    path.write_text(CRASH.replace("OSError:", "OSError: \x1b]0;pwned\x07 \x9b2J \x7f\x08"))
    assert call(["diagnose", str(path), *options]) == 2
    told = capsys.readouterr().out
    assert not [char for char in told if unicodedata.category(char) == "Cc" and char not in "\n\t"]
    assert "pwned" in told
    if options:
        assert "\x9b2J" in json.dumps(json.loads(told), ensure_ascii=False)
