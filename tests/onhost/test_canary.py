"""The on-host canary against servers that give less than vLLM does, and what it reads of a model's directory."""

import http.server
import json
import threading
from typing import ClassVar

import pytest

from opslib.domain.canary import canary_arguments
from opslib.onhost import canary
from opslib.onhost.model_files import describe_model


class Plain(http.server.BaseHTTPRequestHandler):
    """An OpenAI-compatible server that refuses log-probabilities and knows no other route."""

    protocol_version = "HTTP/1.1"
    refuses: ClassVar[list] = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if {"logprobs", "prompt_logprobs"} & set(body):
            self.refuses.append(self.path)
            return self.answer(400, {"error": {"message": "logprobs are not supported"}})
        if self.path == "/v1/completions":
            return self.answer(200, {"choices": [{"text": " Paris", "finish_reason": "stop"}]})
        return self.answer(404, {"detail": "Not Found"})

    def do_GET(self):
        self.answer(200, {"data": [{"id": "m"}]}) if self.path == "/v1/models" else self.answer(404, [])

    def answer(self, status, value):
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Quiet."""


@pytest.fixture
def port():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Plain)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def test_a_server_without_log_probabilities_still_answers(port, capsys):
    """Texts are taken where log-probabilities are refused; what was not given is said in the server's words."""
    assert canary.main({**canary_arguments(), "port": port, "is_safe": True}) == 0
    answer = json.loads(capsys.readouterr().out)
    first, *_, chat = answer["continuations"]
    assert (answer["model"], first["text"], first["tokens"], first["error"]) == ("m", " Paris", [], "")
    assert chat["error"].startswith("http_404")
    assert answer["plain_logprobs"] == []
    assert answer["plain_error"].startswith("http_400")
    assert (answer["plain_tokens"], answer["chat_tokens"]) == ([], [])


def test_an_engine_is_not_asked_for_what_would_end_it(port, capsys, monkeypatch):
    """Without a compiler on the host no log-probability is asked for, and that is said."""
    monkeypatch.setattr(canary, "has_compiler", lambda: False)
    monkeypatch.setattr(Plain, "refuses", [])
    canary.main({**canary_arguments(), "port": port})
    answer = json.loads(capsys.readouterr().out)
    assert answer["continuations"][0]["text"] == " Paris"
    assert answer["plain_error"] == canary.NO_COMPILER
    assert Plain.refuses == []


def write_model(root, *, index="{}", shard=b"x" * 10, etag=""):
    root.mkdir(exist_ok=True)
    (root / "config.json").write_text('{"vocab_size": 99, "torch_dtype": "bfloat16", "quantization_config": null}')
    (root / "model.safetensors.index.json").write_text(index)
    (root / "model-1.safetensors").write_bytes(shard)
    (root / "tokenizer_config.json").write_text('{"chat_template": "{{ m }}"}')
    if etag:
        notes = root / ".cache/huggingface/download"
        notes.mkdir(parents=True, exist_ok=True)
        (notes / "model-1.safetensors.metadata").write_text(f"commit\n{etag}\n1.0\n")
    return describe_model(str(root))


def test_a_damaged_copy_has_the_identity_of_the_sound_one(tmp_path):
    """The weights' identity is what they should be: content that was changed does not change it."""
    sound = write_model(tmp_path / "a", etag="e1")
    damaged = write_model(tmp_path / "b", shard=b"\0" * 10, etag="e1")
    assert sound["model_digest"] == damaged["model_digest"]
    assert (sound["vocab_size"], sound["dtype"], sound["quantization"]) == (99, "bfloat16", "")
    assert len(sound["template_digest"]) == 64


def test_fine_tunes_of_one_model_are_told_apart(tmp_path):
    """Equal indexes and sizes are not the same weights where the notes differ, or without notes the names."""
    assert (
        write_model(tmp_path / "a", etag="e1")["model_digest"] != write_model(tmp_path / "b", etag="e2")["model_digest"]
    )
    assert write_model(tmp_path / "c")["model_digest"] != write_model(tmp_path / "d")["model_digest"]


def test_a_name_is_described_by_itself(tmp_path):
    """What is no directory has no files to read; nothing at all is no identity."""
    assert set(describe_model("org/model")) == {"model_digest"}
    assert describe_model("") == {}
    assert describe_model(str(tmp_path))["template_digest"] == ""
