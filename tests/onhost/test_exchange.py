"""The client's side of an exchange: it ends where the response ends, however it is cut, and stamps by the kernel."""

import asyncio
import contextlib
import itertools
import socket
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opslib.onhost.exchange import Connection, Exchange, Receiver
from opslib.onhost.http1 import ProtocolError

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = st.lists(st.sampled_from([b"data: {}\n\n", b"data: x\r\n\r\n", b": c\n", b"0\r\n\r\n", b"\n\n"]), max_size=6)
CUTS = st.lists(st.integers(0, 10_000), max_size=20)


def chunked(events, trailer=b""):
    return HEAD + b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n" + trailer + b"\r\n"


def cut_up(text, cuts):
    places = [0, *sorted({cut % (len(text) + 1) for cut in cuts} - {0, len(text)}), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(places)]


@settings(max_examples=200, deadline=None)
@given(EVENTS, CUTS, st.sampled_from([b"", b"Trailer: x\r\n"]))
def test_a_response_ends_with_its_last_byte(events, cuts, trailer):
    """Cut anywhere, the receiver is done at the last piece and no earlier, and what was kept gives the body."""

    async def receive():
        receiver = Receiver()
        done = receiver.begin()
        *first, last = cut_up(chunked(events, trailer), cuts)
        for number, piece in enumerate(first):
            receiver.take(float(number), piece)
            assert not done.done()
        receiver.take(99.0, last)
        assert done.done()
        assert receiver.is_reusable
        return Exchange(0.0, 0.0, 200, receiver.raw, done.result())

    assert asyncio.run(receive()).body == b"".join(events)


def test_an_end_that_the_chunks_do_not_bear_out_is_seen():
    """What looks like the last chunk in the middle of a longer one is no response when it is read."""

    async def receive():
        receiver = Receiver()
        done = receiver.begin()
        receiver.take(0.0, HEAD + b"ff\r\n")
        receiver.take(0.1, b"text\n\r\n0\r\n\r\n")
        return Exchange(0.0, 0.1, 200, receiver.raw, done.result())

    with pytest.raises(ProtocolError, match="without end"):
        _ = asyncio.run(receive()).pieces


def test_what_waits_too_long_is_read_before_it_is_given_up():
    """A response followed by more than was asked for is whole when its time is up; garbage is malformed."""

    async def expire(tail):
        receiver = Receiver()
        done = receiver.begin()
        receiver.take(0.0, HEAD)
        receiver.take(0.1, b"1\r\na\r\n" + tail)
        receiver.expire(("timeout", ""))
        return done.result()

    assert asyncio.run(expire(b"0\r\n\r\nmore")) is None
    assert asyncio.run(expire(b"no size\r\n"))[0] == "malformed"
    assert asyncio.run(expire(b"5\r\nab"))[0] == "timeout"


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT") or not hasattr(socket.socket, "recvmsg"), reason="not on Linux")
def test_a_late_client_still_knows_when_bytes_came():
    """While the loop is blocked for 0.3 s a piece arrives; its stamp is the kernel's, not that of the late read."""
    arrived = []

    def serve(listener):
        link, _ = listener.accept()
        with link:
            link.recv(65536)
            link.sendall(HEAD + b"1\r\na\r\n")
            time.sleep(0.15)
            arrived.append(time.perf_counter())
            link.sendall(b"1\r\nb\r\n0\r\n\r\n")
            link.recv(1)

    async def ask(port):
        connection = Connection("127.0.0.1", port)
        await connection.open()
        asyncio.get_running_loop().call_later(0.05, time.sleep, 0.4)
        exchange = await connection.ask("GET", "/", timeout_s=10)
        connection.close()
        return exchange

    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        exchange = asyncio.run(ask(listener.getsockname()[1]))
        thread.join()
    assert exchange.ended_at - arrived[0] > 0.1
    assert [piece for _, piece in exchange.pieces] == [b"a", b"b"]
    assert exchange.pieces[1][0] == pytest.approx(arrived[0], abs=0.05)
