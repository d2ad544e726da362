"""Reading streamed answers: what is a token, when it came, and what is no answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslib.onhost.completions import body_of, read_completion, read_whole
from opslib.onhost.errorwords import error_message

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "usage", "delta", "text", "error", "completion_tokens"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4}}


def streamed(*chunks):
    return [(float(n), b"data: %s\n\n" % json.dumps(chunk).encode()) for n, chunk in enumerate(chunks)]


def delta(**fields):
    return {"choices": [{"index": 0, "delta": fields}]}


@pytest.mark.parametrize(
    "first",
    [
        {"content": "a"},
        {"reasoning": "a"},
        {"reasoning_content": "a"},
        {"tool_calls": [{"function": {"name": "f"}}]},
    ],
)
def test_the_first_token_is_the_first_with_content(first):
    """Content, reasoning under both names and tool calls are tokens; the role chunk is none."""
    completion = read_completion(
        streamed(delta(role="assistant", content=""), delta(**first), delta(content="b"), USAGE)
    )
    assert (completion.first_at, completion.stamps, completion.completion_tokens) == (1.0, (1.0, 2.0), 4)


def test_text_that_decodes_to_nothing_still_counts():
    """A model whose tokens show no text has the stamps of its chunks, as usage says that there were tokens."""
    empty = {"choices": [{"index": 0, "text": ""}]}
    assert read_completion(streamed(empty, empty, USAGE)).stamps == (0.0, 1.0)


def test_empty_choices_are_no_tokens():
    """An answer without any token is an error of its own class, whatever usage claims."""
    assert read_completion(streamed({"choices": []})).error[0] == "no_tokens"
    assert read_completion(streamed({"choices": []}, USAGE)).error[0] == "no_tokens"


def test_a_chunk_of_ten_megabytes_is_read():
    """A very long event in many pieces is one event."""
    data = streamed({"choices": [{"text": "x" * 10_000_000}]}, USAGE)
    pieces = [(at, text[n : n + 65536]) for at, text in data for n in range(0, len(text), 65536)]
    assert read_completion(pieces).error is None


@given(st.lists(JSON, max_size=3))
def test_json_of_any_shape_is_an_answer_or_a_class(chunks):
    """Whatever JSON a server streams, reading it never raises."""
    completion = read_completion(streamed(*chunks))
    assert completion.error is None or completion.error[0] in {"malformed", "in_stream", "no_tokens"}
    read_whole(json.dumps(chunks).encode())


@given(st.binary(max_size=50))
def test_bytes_of_any_kind_are_a_class(data):
    """Whatever bytes a server sends, reading them never raises."""
    assert read_completion([(0.0, data)]).error is not None
    assert isinstance(error_message(data), str)


def test_a_body_asks_for_true_counts_and_fixed_length():
    """Streaming asks for usage and ignores end-of-sequence; chat gets messages."""
    body = json.loads(body_of("/v1/chat/completions", "m", "hi", 8, stream=True))
    assert body["stream_options"] == {"include_usage": True}
    assert body["ignore_eos"]
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert json.loads(body_of("/v1/completions", "m", "hi", 8, stream=False))["prompt"] == "hi"


def test_a_body_has_messages_as_given_and_leaves_out_what_is_refused():
    """A chat of a file is sent as it is; to /v1/completions its texts go, and refused fields stay away."""
    messages = [{"role": "system", "content": "short"}, {"role": "user", "content": "hi"}]
    chat = json.loads(body_of("/v1/chat/completions", "m", messages, 8, stream=True, without=["ignore_eos"]))
    assert chat["messages"] == messages
    assert "ignore_eos" not in chat
    assert json.loads(body_of("/v1/completions", "m", messages, 8, stream=True))["prompt"] == "short\nhi"
