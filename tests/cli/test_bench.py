"""`opslib bench`: a URL measured from here, two records compared, and what is refused before anything is asked."""

import json
import socket
import socketserver
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from opslib.cli.main import call
from opslib.records.seal import verify_record

PROGRAM = Path(__file__).parents[1] / "truth_server.py"


@pytest.fixture(scope="module")
def url():
    argv = [sys.executable, str(PROGRAM), json.dumps({"ttft_ms": 20, "itl_ms": 2})]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()


def measure(url, runs_dir, capsys):
    capsys.readouterr()
    options = ["--levels", "1,2", "--repeats", "3", "--output-tokens", "8", "--runs-dir", str(runs_dir), "--json"]
    code = call(["bench", "run", url, "--model", "good", *options])
    return code, json.loads(capsys.readouterr().out)


def test_a_url_is_measured_from_here_and_two_records_are_compared(url, tmp_path, capsys):
    """Each measurement leaves a record with the figures in every format; the comparison has an interval per figure."""
    _, first = measure(url, tmp_path, capsys)
    code, second = measure(url, tmp_path, capsys)
    assert code == 0, second["summary"]
    assert [level["concurrency"] for level in second["levels"]] == [1, 2]
    evidence = {path.name for path in (Path(second["record"]) / "evidence").iterdir()}
    assert {"benchmark.json", "benchmark.csv", "vllm-bench-concurrency-2.json"} <= evidence
    assert verify_record(Path(second["record"])).sealed_at is not None
    assert (Path(second["record"]) / "record.html").is_file()
    names = [Path(found["record"]).name for found in (first, second)]
    code = call(["bench", "compare", *names, "--runs-dir", str(tmp_path), "--threshold", "400", "--json"])
    compared = json.loads(capsys.readouterr().out)
    assert (code, compared["baseline"], compared["differences"]) == (0, names[0], [])
    gating = [change for change in compared["changes"] if change["is_gating"]]
    assert len(gating) == 6
    assert all(change["low_percent"] <= change["worse_percent"] <= change["high_percent"] for change in gating)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "rehearsal"], "which unit?"),
        (["run", "http://h", "unit"], "a URL has no unit"),
        (["run", "ftp://h"], "is no URL"),
        (["run", "http://me:geheim@h"], "a URL with a login in it would be kept in the record"),
        (["run", "http://geheim@[h"], "a URL with a login in it would be kept in the record"),
        (["run", "http://h", "--api-key", "geheim"], "--api-key: give env:NAME or file:PATH, never the key itself"),
        (["run", "http://h", "--api-key", "sk:geheim"], "--api-key: give env:NAME or file:PATH"),
        (["run", "http://h/v1?key=geheim"], "a URL with ? or # is no base of an API"),
        (["run", "rehearsal", "u", "--levels", "1,x"], "no list of numbers"),
        (["run", "rehearsal", "u", "--repeats", "0"], "benchmark_repeats"),
        (["compare", "a", "b"], "no record 'a'"),
        (["compere", "a", "b"], "did you mean compare?"),
    ],
)
def test_what_cannot_be_is_refused(words, said, tmp_path, capsys):
    """Exit code 4 and one line, before any host is contacted."""
    more = ["--runs-dir", str(tmp_path)] if words[0] in ("run", "compare") else []
    assert call(["bench", *words, *more]) == 4
    told = capsys.readouterr().err
    assert said in told
    assert "geheim" not in told


def test_a_url_that_leads_nowhere_is_not_measured(tmp_path, capsys):
    """Exit code 3 at once, before any request is sent, and no record of figures that there are not."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        assert call(["bench", "run", url, "--runs-dir", str(tmp_path)]) == 3
    told = capsys.readouterr().err
    assert f"no connection to {url}: Connection refused. Next: is it running" in told
    assert list(tmp_path.iterdir()) == []


class Refusing(socketserver.BaseRequestHandler):
    """What uvicorn and nginx answer to bytes that are no HTTP."""

    def handle(self):
        self.request.recv(4096)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nInvalid HTTP request received.")


def test_a_url_of_the_other_scheme_is_named(tmp_path, capsys):
    """TLS to a port of plain HTTP, and the reverse: what is spoken there, and the URL to try; no record is left."""
    runs = tmp_path / "runs"
    runs.mkdir()
    with socketserver.TCPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.handle_request, daemon=True).start()
        url = f"127.0.0.1:{server.server_address[1]}/v1"
        assert call(["bench", "run", f"https://{url}", "--runs-dir", str(runs)]) == 3
    told = capsys.readouterr().err
    assert "the server speaks no TLS" in told
    assert f"most likely it speaks plain HTTP: try http://{url}" in told
    with tls_url(tmp_path) as secure:
        plain = secure.replace("https://", "http://")
        assert call(["bench", "run", plain, "--runs-dir", str(runs)]) == 3
    told = capsys.readouterr().err
    assert f"the server speaks TLS there, and no plain HTTP. Next: try {secure}" in told
    assert list(runs.iterdir()) == []


@contextmanager
def tls_url(folder):
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(argv, check=True, capture_output=True)
    options = {"certificate": str(certificate), "key": str(key)}
    argv = [sys.executable, str(PROGRAM), json.dumps(options)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield f"https://localhost:{int(process.stdout.readline())}"
        process.stdin.close()
