"""The response reader: any cut gives the same body; what is no HTTP is refused."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslib.onhost.http1 import ProtocolError, ResponseReader, request_bytes

OK = b"HTTP/1.1 200 OK\r\n"
BODIES = st.lists(st.binary(min_size=1, max_size=60), max_size=8)
CUTS = st.lists(st.integers(0, 10_000), max_size=30)


def chunked(pieces: list[bytes]) -> bytes:
    framed = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return OK + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\nTrailer: x\r\n\r\n"


def read(text: bytes, cuts: list[int]) -> tuple[ResponseReader, bytes]:
    reader = ResponseReader()
    places = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    return reader, b"".join(part for piece in pieces for part in reader.feed(piece))


@given(BODIES, CUTS)
def test_chunked_bodies_are_the_same_wherever_they_are_cut(pieces, cuts):
    """Chunk sizes, extensions, trailers and data cut anywhere give the same body and the same end."""
    reader, body = read(chunked(pieces), cuts)
    assert (reader.status, reader.is_complete, reader.is_reusable, body) == (200, True, True, b"".join(pieces))


@given(st.binary(max_size=200), CUTS)
def test_sized_bodies_are_the_same_wherever_they_are_cut(content, cuts):
    """A body with a Content-Length ends exactly there."""
    reader, body = read(b"HTTP/1.1 429 Too Many\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content), cuts)
    assert (reader.status, reader.is_complete, body) == (429, True, content)


@given(CUTS)
def test_two_responses_on_one_connection_are_told_apart(cuts):
    """What follows the end is kept aside, and the connection is not used again."""
    reader, body = read(chunked([b"a"]) + b"HTTP/1.1 200", cuts)
    assert reader.is_complete
    assert body == b"a"
    assert b"HTTP/1.1 200".startswith(reader.leftover)


def test_a_body_without_length_ends_with_the_connection():
    """Without a length the close is the end, and the connection cannot be used again."""
    reader = ResponseReader()
    assert reader.feed(OK + b"\r\nabc") == [b"abc"]
    assert not reader.is_complete
    reader.feed_eof()
    assert reader.is_complete
    assert not reader.is_reusable


def test_a_chunked_body_cut_by_the_peer_is_not_complete():
    """A close in the middle of a chunked body does not make it whole."""
    reader = ResponseReader()
    reader.feed(chunked([b"abc"])[:-10])
    reader.feed_eof()
    assert not reader.is_complete


def test_interim_responses_are_passed_over():
    """100 Continue comes before the response and is none."""
    reader, body = read(b"HTTP/1.1 100 Continue\r\n\r\n" + chunked([b"x"]), [])
    assert (reader.status, body) == (200, b"x")


@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 hello\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        OK + b"X: " + b"y" * 70_000,
    ],
)
def test_what_is_no_http_is_refused(text):
    """Another protocol, a missing status, a wrong chunk size or endless headers raise ProtocolError."""
    with pytest.raises(ProtocolError):
        ResponseReader().feed(text)


def test_a_request_names_host_length_and_type():
    """A request has an exact length, so that the connection can stay open."""
    assert b"Content-Length: 2\r\nContent-Type: application/json\r\n\r\n{}" in request_bytes("POST", "h:1", "/x", b"{}")
