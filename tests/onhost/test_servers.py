"""Servers of other makers: what they send is read for what it is, and what they refuse is asked otherwise."""

import asyncio
import contextlib
import json
import socket
import tomllib
from pathlib import Path

import pytest

from opslib.onhost.completions import body_of
from opslib.onhost.exchange import Connection
from opslib.onhost.loadlearn import learn
from opslib.onhost.loadlevel import Load, read

CASES = Path(__file__).parents[1] / "cases" / "servers"


def cases(name, key):
    found = tomllib.loads((CASES / f"{name}.toml").read_text())[key]
    return [pytest.param(case, id=case["name"]) for case in found]


async def request(reader):
    """One request's path and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(head.lower().partition("content-length: ")[2].partition("\r")[0])
    return head.split(" ")[1], await reader.readexactly(length)


@contextlib.asynccontextmanager
async def serving(answer):
    """A server that gives each connection to `answer(reader, writer)`; gives its port."""

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            await answer(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def send(case, reader, writer):
    """Sends a case's bytes, a piece at a time, and ends as it says."""
    await request(reader)
    head = [case.get("head", "HTTP/1.1 200 OK"), *case.get("headers", ())]
    head += ["Transfer-Encoding: chunked"] if case.get("chunked") else []
    writer.write("\r\n".join([*head, "", ""]).encode())
    for piece in case["pieces"]:
        data = piece.encode()
        writer.write(b"%X ;ext=1\r\n%s\r\n" % (len(data), data) if case.get("chunked") else data)
        await asyncio.sleep(0.005)
    if case.get("chunked"):
        writer.write(b"0\r\nX-Trailer: 1\r\n\r\n")
    if case.get("end") == "reset":
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()
    elif case.get("end") != "close":
        await reader.read()


@pytest.mark.parametrize("case", cases("answers", "answer"))
def test_an_answer_is_what_it_is(case):
    """Chunks, counts, class and words of each answer are those of its case, and the connection is kept or not."""

    async def ask():
        async with serving(lambda reader, writer: send(case, reader, writer)) as port:
            connection = Connection("127.0.0.1", port)
            exchange = await connection.ask("POST", "/v1/completions", b"{}", timeout_s=2.0)
            is_open = connection.is_open
            connection.close()
            return read(exchange), is_open

    completion, is_open = asyncio.run(ask())
    expected = (case["error"], case["message"]) if "error" in case else None
    assert completion.error == expected
    assert len(completion.stamps) == case.get("n_chunks", 0)
    assert completion.completion_tokens == case.get("completion_tokens")
    assert is_open == case.get("is_open", is_open)


STREAM = b'data: {"choices":[{"text":"a","finish_reason":"length"}]}\n\n'


async def refuse(case, reader, writer):
    """Refuses what the case says, one field at a time, and answers the rest."""
    while True:
        path, body = await request(reader)
        asked = json.loads(body)
        field = next((name for name in case.get("refuses", ()) if name in asked), None)
        if path not in case.get("has", ("/v1/completions",)):
            status, text = case.get("status", 404), case.get("says", '{"detail": "Not Found"}').encode()
        elif field is not None:
            status, text = case.get("status", 400), case["says"].replace("{field}", field).encode()
        else:
            status, text = 200, STREAM
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text))


@pytest.mark.parametrize("case", cases("refusals", "server"))
def test_what_is_refused_is_asked_otherwise(case):
    """The fields that are left out and the endpoint are those that the server answers; else all is as before."""

    async def learned():
        async with serving(lambda reader, writer: refuse(case, reader, writer)) as port:
            load = Load({"port": port, "model": "m"})
            await learn(load, lambda: 2.0)
            return load

    load = asyncio.run(learned())
    assert load.inputs.dropped == case.get("dropped", [])
    assert load.options["endpoint"] == case.get("endpoint", "/v1/completions")


def test_a_length_is_asked_for_by_its_other_name():
    """Without max_tokens the same length goes as max_completion_tokens."""
    body = json.loads(body_of("/v1/completions", "m", "Hi", 7, stream=True, without=["max_tokens"]))
    assert (body.get("max_tokens"), body["max_completion_tokens"]) == (None, 7)


def test_a_connection_that_the_server_has_left_is_no_error():
    """A kept connection that ends as the next request reaches it is opened again; a new one that does is cut."""
    n_asked = []

    async def once(reader, writer):
        n_asked.append(await request(reader))
        if len(n_asked) != 4:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(STREAM), STREAM))
            await request(reader)  # and goes without a word

    async def ask():
        async with serving(once) as port:
            connection = Connection("127.0.0.1", port)
            return [await connection.ask("POST", "/", b"{}", timeout_s=2.0) for _ in range(4)]

    assert [exchange.error and exchange.error[0] for exchange in asyncio.run(ask())] == [None, None, None, "cut"]


@pytest.mark.parametrize(
    ("path", "metrics", "completions"),
    [
        ("", "/metrics", "/v1/completions"),
        ("/v1/", "/metrics", "/v1/completions"),
        ("/proxy/llm/v1", "/proxy/llm/metrics", "/proxy/llm/v1/completions"),
        ("/proxy/llm", "/proxy/llm/metrics", "/proxy/llm/v1/completions"),
        ("/api/v3", "/api/metrics", "/api/v3/completions"),
        ("/v1beta/openai", "/metrics", "/v1beta/openai/completions"),
        ("/v1/chat/completions", "/metrics", "/v1/chat/completions"),
        ("/llm/completions", "/llm/metrics", "/llm/completions"),
        ("/ü b/v1", "/%C3%BC%20b/metrics", "/%C3%BC%20b/v1/completions"),
    ],
)
def test_a_url_may_be_a_servers_or_an_apis_or_an_endpoints(path, metrics, completions):
    """What vLLM has beside its API lies beside it; an endpoint that the URL names is the one that is asked."""
    load = Load({"url": f"http://h:1{path}"})
    assert (load.path("/metrics"), load.path(load.options["endpoint"])) == (metrics, completions)
