"""Redaction: secrets go, whatever they are written as; digests, pictures and commit ids stay."""

import base64
import json
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslib.domain.redaction import named_secrets, redact, redact_notebook, redact_value, says_secret
from tests.trust.canary import leaks

HUB = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345"
# text with a secret, the secret
LEAKS = [
    (f"HF_TOKEN is {HUB}.", HUB),
    ("key sk-proj-" + "a1B2c3D4" * 5, "a1B2c3D4a1B2"),
    ("token ghp_" + "a1B2c3D4e5" * 4, "a1B2c3D4e5"),
    ("github_pat_" + "A1b2_" * 12, "A1b2_A1b2"),
    ("AKIAIOSFODNN7EXAMPLE in the log", "AKIAIOSFODNN7EXAMPLE"),
    ("Authorization: Bearer s3cr3t-value.x/y==", "s3cr3t-value"),
    ('{"authorization": "bearer abcdefgh12"}', "abcdefgh12"),
    ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    ("http://user:hunter2@proxy:3128/", "hunter2"),
    ("postgresql://me:p%40ss-w0rd@db/x", "p%40ss-w0rd"),
    ("Namespace(api_key='abcd1234efgh', port=8000)", "abcd1234efgh"),
    ("args: {'api_key': ['abcd1234efgh'], 'port': 8000}", "abcd1234efgh"),
    ('{"api_key": "abcd1234efgh"}', "abcd1234efgh"),
    ('"text": "{\\"api_key\\": \\"abcd1234efgh\\"}"', "abcd1234efgh"),
    ("vllm serve m --api-key abcd1234efgh --port 8000", "abcd1234efgh"),
    ("vllm serve m --api-key=abcd1234efgh", "abcd1234efgh"),
    ("['vllm', '--api-key', 'abcd1234efgh']", "abcd1234efgh"),
    ('["vllm", "--hf-token", "abcd1234efgh"]', "abcd1234efgh"),
    ("Environment=MY_PASSWORD=abcd1234efgh", "abcd1234efgh"),
    ("DB_PASSWORD: abcd1234efgh", "abcd1234efgh"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N", "dozjgNryP4J3jVmNHl0w5N"),
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaA\nAAAA\n-----END OPENSSH PRIVATE KEY-----", "b3BlbnNzaA"),
    ("-----BEGIN RSA PRIVATE KEY-----\\nProc-Type: 4\\nMIIEow\\n", "MIIEow"),
]

KEPT = [
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "commit 3b18e512dba79e4c8300dd08aeb37f8e728b8dad",
    "etag 5a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15",
    "--max-num-batched-tokens 8192 --max-num-seqs 256",
    "max_tokens=64, stop_token_ids=[], bos_token_id=1, eos_token='</s>'",
    "TOKENIZERS_PARALLELISM=false",
    "tokens: 256 prompt, 64 generated",
    "api_key=None, hf_token=None, password=None",
    "'api_key': None, \"api_key\": null",
    "HF_TOKEN=env:HF_TOKEN, --api-key file:/etc/key",
    "http://127.0.0.1:8000/health",
    "ssh://user@host:22/path",
    "Worker_TP0 pid=123 (key_cache, value_cache)",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8d SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDJKH",
    "monkey=banana turkey: sandwich",
    "Bearer of bad news",
    "invocation 0123456789abcdef0123456789abcdef",
]


@pytest.mark.parametrize(("text", "secret"), LEAKS)
def test_what_looks_like_a_secret_goes(text, secret):
    """Tokens, keys and passwords are replaced by their kind, and the text around them stays."""
    redacted = redact(text)
    assert secret not in redacted
    assert "[redacted:" in redacted
    assert redact(redacted) == redacted


@pytest.mark.parametrize("text", KEPT)
def test_what_is_no_secret_stays(text):
    """Digests, commit ids, flags and figures are not eaten."""
    assert redact(text) == text


@given(st.text(min_size=1), st.text(min_size=6, alphabet=st.characters(exclude_categories=["Cs"])), st.text())
def test_known_secret_never_survives(before, secret, after):
    """A known secret is in no redacted text: plain, in JSON, in a URL, as a Python literal, in base64."""
    for written in (secret, json.dumps(secret), quote(secret, safe=""), repr(secret), json.dumps(json.dumps(secret))):
        redacted = redact(before + written + after, [secret])
        assert secret not in redacted.replace("[redacted:known]", "")
        assert written.strip("\"'") not in redacted.replace("[redacted:known]", "") or written.strip("\"'") == ""


@given(st.binary(max_size=20), st.text(min_size=8, alphabet=st.characters(exclude_categories=["Cs"])), st.binary())
def test_known_secret_does_not_survive_in_base64(before, secret, after):
    """Whatever bytes stand before and after it, a base64 text doesn't give the secret back."""
    encoded = base64.b64encode(before + secret.encode() + after).decode()
    redacted = redact(encoded, [secret])
    assert redacted != encoded


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_nested_values_lose_known_secrets(value):
    """Nested JSON is redacted in keys and values, and keeps its form."""
    secret = "kanarienvogel-4711"
    redacted = redact_value({"x": [value, f"a {secret}", {secret: 1}]}, [secret])
    assert secret not in json.dumps(redacted)
    assert redacted["x"][1] == "a [redacted:known]"


def test_values_under_secret_names_go_whole():
    """A value is a secret where its key says so, unless it is a reference or no text."""
    value = {"HF_TOKEN": "short", "api_key": "env:X", "max_tokens": "5", "key": None, "eos_token": "</s>"}
    assert redact_value(value) == {**value, "HF_TOKEN": "[redacted:named]"}


def test_notebook_is_redacted_everywhere_but_pictures_stay():
    """Sources, outputs, tracebacks, metadata and attachments are redacted; a PNG is unchanged."""
    png = base64.b64encode(bytes(range(256)) * 20).decode()
    leak = f"token {HUB}"
    notebook = {
        "metadata": {"papermill": {"parameters": {"x": leak}}, "widgets": {"state": {"a": leak}}},
        "cells": [
            {
                "cell_type": "markdown",
                "source": ["a hf_AbCdEfGhIjKl", "MnOpQrStUvWxYz\n", "b"],
                "attachments": {"a": leak},
            },
            {
                "cell_type": "code",
                "source": leak,
                "execution_count": 1,
                "outputs": [
                    {"output_type": "stream", "text": [leak + "\n", "x"]},
                    {"output_type": "error", "traceback": [leak], "evalue": leak, "ename": "E"},
                    {"output_type": "display_data", "data": {"image/png": png, "text/html": [leak]}},
                ],
            },
        ],
    }
    redacted = redact_notebook(notebook)
    assert HUB not in json.dumps(redacted)
    assert redacted["cells"][0]["source"] == ["a [redacted:hub-token]\n", "b"]
    assert redacted["cells"][1]["outputs"][2]["data"]["image/png"] == png
    assert redacted["cells"][1]["execution_count"] == 1


@pytest.mark.parametrize("unit", ["a", "A1", "a_", "hf_", "-", "--api-key ", "'api_key': '", "http://a:", "eyJ.", "\\"])
def test_time_is_linear(unit):
    """Ten times the text takes about ten times as long, also for text made of beginnings of patterns."""

    def seconds(n: int) -> float:
        text = unit * (n // len(unit))
        start = time.perf_counter()
        redact(text, ["kanarienvogel"])
        return time.perf_counter() - start

    seconds(1000)
    assert seconds(200_000) < max(40 * seconds(20_000), 0.5)
    assert seconds(200_000) < 5


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "OPENAI_API_KEY", "db-password", "--api-key", "PGPASSWORD", "client.secret"]
)
def test_names_that_say_secret(name):
    """Names with the word token, key, password or secret say secret."""
    assert says_secret(name)


@pytest.mark.parametrize("name", ["max_tokens", "TOKENIZERS_PARALLELISM", "eos_token", "keyboard", "PATH", "monkey"])
def test_names_that_say_no_secret(name):
    """Names that only resemble these do not."""
    assert not says_secret(name)


@pytest.mark.parametrize("around", ["", "x" * 50, "x" * 51, "x" * 52])
@pytest.mark.parametrize("is_json", [False, True])
def test_base64_in_lines_is_searched_too(around, is_json, tmp_path):
    """base64(1) and MIME break their lines: a known secret is found across the break, in a JSON text as well."""
    secret = "kanarienvogel-4711-kanarienvogel"
    lines = base64.encodebytes((around + secret * 3).encode()).decode()
    text = json.dumps(lines) if is_json else lines
    (tmp_path / "a").write_text(text)
    assert leaks(tmp_path, secret)
    (tmp_path / "a").write_text(redact(text, [secret]))
    assert leaks(tmp_path, secret) == []


UNIT = """[Service]
Environment=HF_TOKEN=abcdefgh1 PORT=8000 A_KEY=short
Environment="MY_PASSWORD=with a blank" 'OTHER_SECRET=quoted-one'
Environment=SSL_KEY=/etc/key.pem B_TOKEN=env:B
ExecStart=/opt/vllm/bin/vllm serve m --api-key flag-secret-1 --port 8000
"""


def test_a_unit_teaches_its_secrets():
    """What a unit's environment and flags say is secret is known from then on; ports, paths and references are not."""
    assert set(named_secrets(UNIT)) == {"abcdefgh1", "with a blank", "quoted-one", "flag-secret-1"}
    diff = "-Environment=HF_TOKEN=abcdefgh2\n+Environment=PORT=1"
    assert named_secrets(diff) == ("abcdefgh2",)
    assert named_secrets("the environment=HF_TOKEN=abcdefgh3 of nothing") == ()


@pytest.mark.parametrize("dots", ["...", "…"])
def test_a_secret_that_a_table_has_cut_goes_too(dots):
    """Of a long secret that ends in dots (pandas cuts texts after 50 characters) the beginning goes as well."""
    secret = "kanarienvogel-4711-" * 4
    assert redact(f"0  {secret[:47]}{dots} 1", [secret]) == "0  [redacted:known] 1"
    assert redact(f"{secret[:47]} and so on ...", [secret]) == f"{secret[:47]} and so on ..."


def test_lists_of_texts_stay_lists():
    """Only a text in lines is searched as a whole: the children of a widget and the entries of a traceback stay apart."""
    children = ["IPY_MODEL_a", "IPY_MODEL_b", f"x {HUB}"]
    message = {"data": {"state": {"children": children}}, "traceback": ["a", "b"], "application/json": ["a", "b"]}
    redacted = redact_notebook(message)
    assert redacted["data"]["state"]["children"] == ["IPY_MODEL_a", "IPY_MODEL_b", "x [redacted:hub-token]"]
    assert (redacted["traceback"], redacted["application/json"]) == (["a", "b"], ["a", "b"])
