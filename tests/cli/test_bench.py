"""`opslib bench`: a URL measured from here, two records compared, and what is refused before anything is asked."""

import json
import socket
import subprocess
import sys
from pathlib import Path

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
