"""The event splitter: any cut gives the same events."""

import itertools
import json

from hypothesis import example, given
from hypothesis import strategies as st

from opslib.onhost.sse import EventSplitter

ENDINGS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def split_at(text: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(places)]


def events_of(pieces: list[bytes]) -> list[bytes]:
    splitter = EventSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)]


@given(
    st.lists(st.dictionaries(st.just("text"), st.text(), min_size=1), max_size=6),
    ENDINGS,
    st.lists(st.integers(0, 10_000), max_size=30),
)
@example([{"text": "naïve ☃"}], b"\r\n", [7, 8, 9, 10, 20, 21, 22, 23, 24, 25])
def test_any_cut_gives_the_same_events(values, ending, cuts):
    """Wherever the bytes are cut, inside a character or a line ending too, the same events come out."""
    lines = [
        b": comment" + ending + b"data: " + json.dumps(value, ensure_ascii=False).encode() + ending * 2
        for value in values
    ]
    events = events_of(split_at(b"".join(lines), cuts))
    assert [json.loads(event) for event in events] == values


def test_comments_and_other_fields_are_no_events():
    """Keep-alive comments, event names, ids and empty events give nothing."""
    assert events_of([b": ping\n\nevent: x\nid: 3\nretry: 10\n\n\n\n"]) == []


def test_data_lines_of_one_event_are_joined():
    """Several data lines before one empty line are one event; a space after the colon is optional."""
    assert events_of([b"data:a\ndata: b\ndata\n\n"]) == [b"a\nb\n"]


def test_an_event_that_was_cut_off_is_not_given():
    """A stream that ends inside an event leaves a rest, never half an event."""
    splitter = EventSplitter()
    assert splitter.feed(b'data: {"text": "half') == []
    assert splitter.rest() == b'{"text": "half'
