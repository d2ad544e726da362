"""A unit's files as settings, command and variables: comments and spelling don't count, secrets don't leave."""

import json

import pytest

from opslib.domain.redaction import secret_rule
from opslib.onhost.unit_settings import Reader, file_variables, read_unit, weights_content

READER = Reader("salt", dict(secret_rule()), [["/data/a/models", "{models_dir}"], ["gpu-a", "{hostname}"]])
TEXT = r"""# written by a run at 2026-11-29T19:46:14Z
[Unit]
Description=engine on gpu-a
; another comment
[Service]
Environment=A=1 "B=two words" HF_TOKEN=hf_canary_value
Environment=A=3
EnvironmentFile=-/etc/x.env
ExecStartPre=/usr/bin/guard --token canary_in_a_flag --wait-s 3
ExecStart=@/opt/vllm/bin/vllm serve /data/a/models/m \
    --api-key canary_key \
# in between
    --port=8000 --served-model-name "two words"
X-Made=by somebody
RestartSec=5
"""
DROP_IN = "[Service]\nRestartSec=\nRestartSec=7\nExecStart=\nExecStart=/opt/vllm/bin/vllm serve /m 100%%\n"


def test_settings_command_and_variables_are_told_apart():
    """Comments and X- lines are nothing; own places are placeholders; the last assignment of a variable counts."""
    unit = read_unit([TEXT], READER)
    settings = {key: value for _, key, value in unit["settings"]}
    assert set(settings) == {"Description", "EnvironmentFile", "ExecStartPre", "RestartSec"}
    assert settings["Description"] == "engine on {hostname}"
    assert unit["environment"] == {"A": "3", "B": "two words", "HF_TOKEN": "hf_canary_value"}
    assert unit["argv"][:3] == ["/opt/vllm/bin/vllm", "serve", "/data/a/models/m"]
    assert unit["argv"][-1] == "two words"


def test_drop_ins_rule():
    """A later file's value replaces; an empty assignment forgets."""
    unit = read_unit([TEXT, DROP_IN], READER)
    assert [value for _, key, value in unit["settings"] if key == "RestartSec"] == ["7"]
    assert unit["argv"] == ["/opt/vllm/bin/vllm", "serve", "/m", "100%"]


def test_no_secret_is_told():
    """Variables' values, and those of flags whose names say secret, are digests in whatever is told."""
    unit = read_unit([TEXT], READER)
    told = json.dumps([unit["settings"], READER.words(unit["argv"]), READER.variables(unit["environment"])])
    assert "canary" not in told
    assert "two words" in told  # a flag that is none
    assert READER.words(["x", "--api-key=canary", "--port", "1"])[2:] == ["--port", "1"]


def test_digests_tell_alike_from_different_and_nothing_more():
    """The same value has the same digest under one salt, another under another; own places are made alike first."""
    other = Reader("salt", dict(secret_rule()), [["/srv/b", "{models_dir}"]])
    assert READER.digest("/data/a/models/x") == other.digest("/srv/b/x")
    assert READER.digest("a") != READER.digest("b")
    assert READER.digest("a") != Reader("pepper", {}, []).digest("a")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('A="x y"\n# B=1\n\nC=\nD=1 2\n', {"A": "x y", "C": "", "D": "1 2"}),
        ("A='it''s'\nB=\"unclosed\n", {"A": "its", "B": '"unclosed'}),
        ("no assignment\n", {}),
    ],
)
def test_environment_files_are_read(text, expected):
    """Comments and blanks are nothing, quotes are undone, one that is never closed stays."""
    assert file_variables(text) == expected


def test_content_is_known_when_all_of_it_is():
    """One digest over all files, in whatever order they are listed; none where one file's isn't known."""
    known = {"a": "1", "b": "2"}
    assert weights_content(["a", "b"], known.get) == weights_content(["b", "a"], known.get)
    assert weights_content(["a", "c"], known.get) == (None, 1)
    assert weights_content([], known.get) == (None, 0)
