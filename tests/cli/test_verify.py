"""`opslib verify`: its document, its exit codes, its words."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from opslib.cli.main import call
from opslib.cli.verify_progress import told
from tests.checkpoint_damage import damage
from tests.onhost.test_digests import aged
from tests.onhost.test_verify_faults import home
from tests.real_checkpoint import COMMIT, etag_of, git_blob, model_files, values, write_local_dir, write_model_in
from tests.real_checkpoint import safetensors_bytes as made

__all__ = ["home"]
SECOND = "model-00002-of-00003.safetensors"
FIELDS = ["state", "layout", "level", "n_files", "total_bytes", "checked_bytes", "duration_s", "hasher", "findings",
          "unverifiable", "parameters_by_dtype"]  # fmt: skip
FINDING = ["file", "level", "kind", "state", "expected", "found", "effect", "repair"]


def run(capsys, *arguments):
    """Exit code, the one document on standard output, and standard error."""
    code = call(["verify", "local", *map(str, arguments), "--json"])
    out = capsys.readouterr()
    assert len(out.out.splitlines()) == 1
    return code, json.loads(out.out), out.err


def test_the_document_has_exactly_these_fields(home, capsys):
    """What programs rely on; the default level is `sample`."""
    model = write_model_in("local-dir", home / "m")
    damage(model, ["truncate", SECOND, 1])
    code, document, _ = run(capsys, model)
    assert list(document) == FIELDS
    assert [list(finding) for finding in document["findings"]] == [FINDING] * 2
    assert (code, document["state"], document["level"], document["layout"]) == (2, "critical", "sample", "hf-local-dir")
    assert document["findings"][0]["file"] == SECOND
    assert document["findings"][0]["repair"].startswith('hf download "${REPOSITORY:?')


@pytest.mark.parametrize(
    ("step", "level", "code"),
    [
        (None, "extents", 0),
        (None, "digest", 0),
        (["index-total", 5], "extents", 1),
        (["remove", SECOND], "extents", 2),
        (["flip", SECOND, 70000], "full-scan", 0),
        (["flip", SECOND, 70000], "digest", 2),
    ],
)
def test_exit_codes(home, capsys, step, level, code):
    """0 ok, 1 warning, 2 critical."""
    model = write_model_in("hub-cache", home / "m")
    if step:
        damage(model, step)
    assert run(capsys, model, "--level", level)[0] == code


def test_what_can_not_be_found_out_is_3_and_what_is_refused_is_4(home, capsys):
    """An unreadable file leaves the answer open; a wrong level, listing, user or host is refused."""
    model = write_model_in("plain", home / "m")
    damage(model, ["mode", SECOND, "600"])
    assert run(capsys, model, "--user", "nobody")[0] == 3
    for arguments in (
        ["--level", "magic"],
        ["--expect", home / "none"],
        ["--user", "nobody-there"],
        ["--save-manifest", "x"],
    ):
        code, document, _ = run(capsys, model, *arguments)
        assert (code, document["exit_code"]) == (4, 4)
    assert call(["verify", "loccal", str(model), "--json"]) == 4


def test_a_directory_that_is_not_there_is_critical(home, capsys):
    """A wrong path is a judgement, not a crash."""
    code, document, _ = run(capsys, home / "none")
    assert (code, document["findings"][0]["kind"]) == (2, "no-directory")


def test_the_words_name_file_effect_and_repair(home, capsys):
    """What an operator reads, control characters made visible."""
    model = write_model_in("local-dir", home / "m\n\x1b[31m")
    damage(model, ["remove", SECOND])
    assert call(["verify", "local", str(model)]) == 2
    out = capsys.readouterr().out
    assert f"✗ critical  missing-shard  {SECOND}: {SECOND} is missing" in out
    assert "effect  vLLM: ValueError: Following weights were not initialized" in out
    assert f'repair  hf download "${{REPOSITORY:?set it to ORG/NAME}}" {SECOND} --revision {COMMIT}' in out
    assert "\x1b[31m" not in out


def test_a_manifest_made_here_proves_a_copy_there(home, capsys):
    """`--save-manifest` keeps the digests, `--expect` compares with them."""
    model, copy = write_model_in("local-dir", home / "a"), write_model_in("plain", home / "b")
    assert run(capsys, model, "--level", "digest", "--save-manifest", home / "list.json")[0] == 0
    assert run(capsys, copy, "--level", "digest", "--expect", home / "list.json")[0] == 0
    damage(copy, ["flip", SECOND, 70000])
    code, document, _ = run(capsys, copy, "--level", "digest", "--expect", home / "list.json")
    assert (code, [f["kind"] for f in document["findings"]]) == (2, ["digest-mismatch"])


@pytest.fixture
def hub(monkeypatch):
    """A hub on a loopback port that lists the small model in two pages; what was asked of it."""
    asked = []
    rows = [
        {"type": "file", "path": name, "size": len(content), "oid": git_blob(content)}
        | ({"lfs": {"oid": etag_of(name, content), "size": len(content)}} if name.endswith(".safetensors") else {})
        for name, content in model_files().items()
    ]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            is_first = "cursor" not in self.path
            if COMMIT not in self.path:
                return self.send_error(404)
            self.send_response(200)
            if is_first:
                self.send_header("Link", f'<{endpoint}{self.path}&cursor=x>; rel="next"')
            self.end_headers()
            self.wfile.write(json.dumps(rows[:5] if is_first else rows[5:]).encode())
            return None

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    yield asked
    server.shutdown()


def test_the_hub_is_asked_at_the_pinned_commit(home, capsys, hub):
    """The commit of the download, never today's main; all pages of it."""
    model = write_model_in("local-dir", home / "m")
    (model / ".cache/huggingface/download" / f"{SECOND}.metadata").write_text(f"{COMMIT}\n\n1764403200.0\n")
    code, document, _ = run(capsys, model, "--level", "digest", "--expect", "hub:acme/tiny")
    assert (code, document["unverifiable"]) == (0, [])
    assert [COMMIT in path and "main" not in path for path in hub] == [True, True]
    assert run(capsys, model, "--expect", f"hub:acme/tiny@{'0' * 40}")[0] == 3


def test_without_a_known_commit_the_hub_is_not_asked(home, capsys, hub):
    """What main is today proves nothing about a download of last month."""
    assert run(capsys, write_model_in("plain", home / "m"), "--expect", "hub:acme/tiny")[0] == 3
    assert hub == []


def test_progress_is_a_bar_in_a_terminal_and_lines_elsewhere(capsys, monkeypatch):
    """Files, bytes, speed and the time left; nothing of it on standard output."""
    event = {"stage": "digest", "files": 3, "n_files": 125, "bytes": 5e9, "total_bytes": 215e9, "bytes_per_s": 1.5e9,
             "eta_s": 140.0}  # fmt: skip
    monkeypatch.setattr("opslib.cli.verify_progress.EVERY_S", 0)
    with told() as tell:
        tell(event)
    out = capsys.readouterr()
    assert (out.out, out.err) == ("", "hashing: 3 of 125 files, 5.0 of 215.0 GB, 1.50 GB/s, 2:20 left\n")


def large_model(directory):
    """64 shards of 4 MiB."""
    raw = values("bfloat16", (2048, 1024))
    files = {"config.json": b"{}", "tokenizer.json": b"{}"}
    for number in range(1, 65):
        tensors = {f"layers.{number}.weight": ("bfloat16", (2048, 1024), raw)}
        files[f"model-{number:05}-of-00064.safetensors"] = made(tensors)
    return write_local_dir(directory, files)


def test_an_interrupted_run_goes_on_where_it_was(home, capsys):
    """What was hashed before the interrupt is known by its receipts; in a terminal a bar tells how far it is."""
    model = aged(large_model(home / "m"))
    argv = [sys.executable, "-m", "opslib.cli", "verify", "local", str(model), "--level", "digest"]
    state = home / "state/opslib/verified"
    env = {**os.environ, "HOME": str(home), "OPSLIB_HOSTS": str(home / "hosts.toml")}
    (home / "hosts.toml").write_text(f'[hosts.local]\naddress = "local"\nstate_dir = "{home}/state/opslib"\n')
    parent, child = pty.openpty()
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=child, env=env, start_new_session=True)
    os.close(child)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if sum(path.read_text().count("\n") for path in state.glob("*.jsonl")) >= 20:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    process.wait(30)
    os.close(parent)
    finished = sum(path.read_text().count("\n") for path in state.glob("*.jsonl"))
    assert finished >= 20
    again = subprocess.run([*argv, "--json"], capture_output=True, env=env, check=False)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["hasher"]["n_receipts"] >= finished - 1
