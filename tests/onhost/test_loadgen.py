"""The load generator against servers of known truth and known faults."""

import datetime as dt
import json
import socket
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from opslib.domain.benchmark_samples import LevelRun, summarize
from opslib.onhost import loadgen
from opslib.onhost.loadserver import COUNTERS, counted, read_metrics
from tests.truth import run, truth_of, truth_server


@pytest.fixture(scope="module")
def port():
    with truth_server() as number:
        yield number


def test_times_are_the_servers_truth(port):
    """Time to first token and gaps between chunks are what the server did, to a few ms; tokens are usage's."""
    lines = run(port, levels=[1, 4], n_requests=[2, 8])
    assert [level["concurrency"] for level in lines["level"]] == [1, 4]
    assert len(lines["request"]) == 10
    for request in lines["request"]:
        assert request["error"] is None
        assert request["ttft_ms"] > 39
        assert len(request["itl_ms"]) == 7
        assert request["e2e_latency_ms"] == pytest.approx(request["ttft_ms"] + sum(request["itl_ms"]), abs=0.1)
        assert request["completion_tokens"] == 8
    # The best of ten: a busy machine delays single answers, the server's as well as ours.
    assert min(request["ttft_ms"] for request in lines["request"]) < 200  # how near: benchmarks/bench_client.py
    assert min(request["e2e_latency_ms"] for request in lines["request"]) < 400
    assert lines["level"][0]["server"]["ttft_count"] == 2
    assert lines["progress"]


def test_prompts_have_the_wanted_length_in_the_servers_tokens(port):
    """The words per token are found out first: the server here counts two tokens a word and three more."""
    assert {request["prompt_tokens"] for request in run(port)["request"]} <= {39, 40, 41}


@pytest.mark.parametrize("model", ["role-first", "bytewise", "odd-frames", "comments", "close", "huge"])
def test_odd_but_right_servers_are_read(port, model):
    """A role chunk is not the first token; any cut, comments, 10 MB in a chunk and closed connections are fine."""
    lines = run(port, model)
    assert [request["error"] for request in lines["request"]] == [None] * 4
    assert min(request["ttft_ms"] for request in lines["request"]) > 39


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        ("http-429", "http_429", "too many requests"),
        ("cut", "cut", ""),
        ("malformed", "malformed", "{broken"),
        ("in-stream", "in_stream", "engine died"),
        ("no-tokens", "no_tokens", "the answer holds no token"),
        ("empty-choices", "no_tokens", "the answer holds no token"),
        ("not-http", "malformed", "not HTTP"),
        ("http-500", "http_500", "too many requests"),
        ("http-503", "http_503", "too many requests"),
        ("http-404", "http_404", "too many requests"),
    ],
)
def test_faults_are_counted_by_class(port, model, kind, message):
    """A wrong answer is a class with the server's own words, and never ends the run."""
    lines = run(port, model)
    assert {request["error"] for request in lines["request"]} == {kind}
    assert message in lines["level"][0]["error_messages"][kind]


@pytest.mark.parametrize(("behaviour", "kind"), [("cut", "cut"), ("http-503", "http_503"), ("stall", "timeout")])
def test_what_fails_leaves_the_others_right(behaviour, kind):
    """Every third request fails in its way; the others keep their times and tokens, and the level its throughput."""
    with truth_server(every_third=behaviour) as number:
        lines = run(number, warmup=0, levels=[3], n_requests=12, request_timeout_s=2.0, deadline_s=30)
    level = summarize([LevelRun(lines["level"][0], lines["request"])])
    assert (level.n_requests, dict(level.errors)) == (12, {kind: 4})
    assert (level.total_output_tokens, level.itl_ms.n, level.ttft_ms.n) == (8 * 8, 8 * 7, 8)
    assert 39 < min(request["ttft_ms"] for request in lines["request"] if not request["error"]) < 200
    assert 4 < level.itl_ms.mean < 100
    assert not level.is_valid


def test_without_usage_the_count_is_unknown(port):
    """A server that counts no tokens leaves them unknown; chunks still have their stamps."""
    request = run(port, "no-usage")["request"][0]
    assert (request["completion_tokens"], len(request["itl_ms"])) == (None, 7)


def test_a_stalled_stream_times_out(port):
    """A request that hangs is a time-out after its own bound, and the result is still written."""
    began = time.monotonic()
    lines = run(port, "stall", warmup=0, n_requests=2, request_timeout_s=0.3)
    assert {request["error"] for request in lines["request"]} == {"timeout"}
    assert time.monotonic() - began < 25


def test_the_runs_deadline_ends_it(port):
    """When the whole run's time is up, open requests end as `deadline`, later levels are left out."""
    lines = run(port, "stall", warmup=0, levels=[2, 4], deadline_s=3.0)
    assert {request["error"] for request in lines["request"]} == {"deadline"}
    assert len(lines["level"]) == 1
    assert lines["end"][0]["is_cut_short"]


def test_without_a_model_the_server_is_asked(port):
    """The first served model is used, and told at the end."""
    lines = run(port, "")
    assert [request["error"] for request in lines["request"]] == [None] * 4
    assert lines["end"][0]["model"] == "truth"


def test_a_server_that_dies_under_load_ends_the_run_at_once():
    """Answers of before stay good, open requests are cut, later ones find nobody; no crash and no hang."""
    with truth_server(dies_after=12) as number:
        began = time.monotonic()
        errors = {request["error"] for request in run(number, n_requests=60, deadline_s=30)["request"]}
    assert errors >= {None, "connect"}
    assert errors <= {None, "connect", "cut"}
    assert time.monotonic() - began < 25


def test_nobody_listening_is_a_class_too():
    """A refused connection is counted, at once, for each request."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        lines = run(unused.getsockname()[1])
    assert [request["error"] for request in lines["request"]] == ["connect"] * 4


def test_the_client_measures_itself(port):
    """Every level tells the client's CPU share and how late its loop woke."""
    level = run(port)["level"][0]
    assert 0 < level["client_cpu_share"] < 1
    assert level["loop_lag_p99_ms"] >= 0


def test_prompts_are_never_sent_twice():
    """No two prompts, of one run or of two with the same seed, share their beginning."""
    with truth_server(keep_bodies=True) as port:
        run(port)
        run(port)
        bodies = truth_of(port)["bodies"]
    prompts = [body["prompt"] for body in bodies]
    assert len(prompts) == 2 * (1 + 2 + 1 + 4)
    assert len({tuple(prompt.split()[:16]) for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize(("model", "kind"), [("silent", "timeout"), ("slow-headers", "stalled"), ("stall", "stalled")])
def test_a_read_that_brings_nothing_more_has_its_own_bound(port, model, kind):
    """A server that says nothing is a time-out; half a head and a stream that stands still end long before that."""
    bounds = {"request_timeout_s": 1.0 if kind == "timeout" else 30.0, "read_timeout_s": 0.3}
    began = time.monotonic()
    lines = run(port, model, warmup=0, n_requests=2, **bounds)
    assert {request["error"] for request in lines["request"]} == {kind}
    assert time.monotonic() - began < 25


def test_reasoning_and_tool_calls_are_tokens(port):
    """In a chat, reasoning and the pieces of a tool call count as the first token and as the gaps."""
    lines = run(port, "reasoning", endpoint="/v1/chat/completions")
    assert {(len(request["itl_ms"]), request["completion_tokens"]) for request in lines["request"]} == {(7, 8)}


def test_several_tokens_in_a_chunk_are_counted_by_usage(port):
    """Eight tokens in four chunks have three gaps, and are eight tokens."""
    lines = run(port, "paired")
    assert {(len(request["itl_ms"]), request["completion_tokens"]) for request in lines["request"]} == {(3, 8)}


def test_a_field_that_the_server_refuses_is_left_out(port):
    """A server that doesn't know ignore_eos is asked without it, and the end says so."""
    lines = run(port, "refuses-fields")
    assert [request["error"] for request in lines["request"]] == [None] * 4
    assert lines["end"][0]["refused_fields"] == ["ignore_eos"]


def test_a_missing_api_key_is_told_by_the_server(tmp_path):
    """Without its key everything is 401; with a reference to it all is well, and the key is in no line."""
    key = tmp_path / "key"
    key.write_text("geheim-1234\n")
    with truth_server(api_key="geheim-1234") as number:
        without = run(number)
        given = run(number, api_key=f"file:{key}")
    assert {request["error"] for request in without["request"]} == {"http_401"}
    assert [request["error"] for request in given["request"]] == [None] * 4
    assert "geheim" not in json.dumps(given)


@pytest.mark.parametrize(
    "arguments",
    [
        {"api_key": "env:NO_SUCH_VARIABLE_HERE"},
        {"api_key": "file:/no/such/file"},
        {"api_key": "geheim-1234"},
        {"url": "ftp://host/"},
        {"url": "http://host/", "ca_file": "/etc/ssl/certs/ca-certificates.crt"},
        {"url": "http://bü..cher/"},
        {"url": "https://host/", "ca_file": "/no/such/ca.pem"},
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_sent(arguments, capsys):
    """A key that isn't there, a CA file that can't be read or another scheme end the run with one line."""
    assert loadgen.main({"port": 9, **arguments}) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["type"] == "refused"
    assert "geheim" not in line


def test_tls_is_spoken_only_with_a_known_ca(tmp_path, capsys):
    """With an unknown CA nothing is sent, and that is said; with the CA figures come, and the URL may end in /v1."""
    certificate, key = self_signed(tmp_path)
    with truth_server(certificate=certificate, key=key) as number:
        assert loadgen.main({"url": f"https://localhost:{number}"}) == 0
        known = run(0, url=f"https://localhost:{number}/v1/", ca_file=certificate, n_requests=2)
    line = json.loads(capsys.readouterr().out)
    assert line["type"] == "unreachable"
    assert line["message"].replace("self signed", "self-signed") == "self-signed certificate"
    assert [request["error"] for request in known["request"]] == [None] * 2


def self_signed(folder):
    """A certificate for localhost that is its own CA, and its key, as PEM files."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(paths[0]), str(paths[1])


def test_counters_that_went_backwards_are_unknown():
    """A server that restarted in between, or has no such counter, gives None."""
    before = read_metrics(
        b'vllm:prefix_cache_hits_total 5\n# HELP x\nvllm:prefix_cache_queries_total{a="b"} 1', COUNTERS
    )
    moved = counted(before, {"prefix_cache_hits": 2.0, "prefix_cache_queries": 11.0})
    assert (moved["prefix_cache_hits"], moved["prefix_cache_queries"], moved["ttft_count"]) == (None, 10.0, None)
