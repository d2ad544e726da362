"""A load as a value: what is refused, what the load generator is told, and files of prompts and times."""

import pytest
from pydantic import ValidationError

from opslib.domain.load import (
    LevelShape,
    LoadSpec,
    SweepBounds,
    Tokens,
    closed_levels,
    long_context_levels,
    parse_prompts,
    parse_trace,
)
from opslib.errors import BadParameter


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"concurrency": 1, "arrival": "constant", "rate": 1},
        {"arrival": "poisson"},
        {"arrival": "ramp", "rate": 1, "to_rate": 5},
        {"arrival": "trace"},
        {"concurrency": 0},
        {"arrival": "often", "rate": 1},
    ],
)
def test_half_a_shape_is_refused(shape):
    """A level is a concurrency or an arrival with all that it needs, never both or neither."""
    with pytest.raises(ValidationError):
        LevelShape.model_validate(shape)


@pytest.mark.parametrize("tokens", [{}, {"low": 3}, {"low": 5, "high": 4}, {"mean": 5, "values": [1]}])
def test_half_a_distribution_is_refused(tokens):
    """Lengths follow one kind of distribution, whole."""
    with pytest.raises(ValidationError):
        Tokens.model_validate(tokens)


def test_without_levels_a_sweep_doubles():
    """1, 2, 4 ... up to the largest; each level has its count of requests, at least four."""
    told = LoadSpec(sweep=SweepBounds(max_concurrency=12), requests_per_stream=2).arguments()
    assert [level["concurrency"] for level in told["levels"]] == [1, 2, 4, 8, 12]
    assert told["n_requests"] == [4, 4, 8, 16, 24]
    assert LoadSpec(sweep=SweepBounds(ttft_ms=500)).slo.ttft_ms == 500
    assert LoadSpec().slo is None


def test_what_is_not_set_is_not_told():
    """The load generator's own defaults stand where the value says nothing."""
    told = LoadSpec(levels=closed_levels([2]), input_tokens=Tokens(low=10, high=20)).arguments()
    assert told["levels"] == [{"concurrency": 2}]
    assert told["input_tokens"] == {"low": 10, "high": 20, "std": 0.0, "min": 1, "max": 1_000_000}
    assert "sweep" not in told
    assert [level.input_tokens for level in long_context_levels([1000, 32000])] == [1000, 32000]


def test_prompt_files_of_all_usual_kinds_are_read():
    """ShareGPT's list, JSON lines, chats and plain strings; what holds no prompt is passed over, an empty file refused."""
    lines = '{"prompt": "a", "output_tokens": 7}\n\n{"messages": [{"role": "user", "content": "b"}]}\n"c"\n{"id": 4}\n'
    read = parse_prompts(lines)
    assert [(each.prompt, each.output_tokens) for each in read] == [("a", 7), ("", None), ("c", None)]
    assert read[1].messages == ({"role": "user", "content": "b"},)
    with pytest.raises(BadParameter, match="no prompt"):
        parse_prompts("[]")
    with pytest.raises(BadParameter, match="line 2 is no JSON"):
        parse_prompts('"a"\nb\n')


def test_a_trace_needs_a_time_in_each_line():
    """Lines of numbers or of objects with a time; anything else names its line."""
    assert parse_trace('{"timestamp": 1.5, "x": 2}\n2\n') == (1.5, 2.0)
    with pytest.raises(BadParameter, match="line 2 of the trace has no time"):
        parse_trace('1\n{"x": 2}\n')
    with pytest.raises(BadParameter, match="empty"):
        parse_trace("\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('\ufeff{"prompt": "a"}\n\n  \n{"prompt": "b"}\r\n', ["a", "b"]),
        ('{"prompt": "a\u2028b\x85c"}\n"d"', ["a\u2028b\x85c", "d"]),
        ('[{"conversations": [{"from": "human", "value": "one turn"}]}]', ["one turn"]),
        ('[{"conversations": [{"from": "gpt", "value": "Hello!"}, {"from": "human", "value": "Hi"}]}]', ["Hi"]),
        ('[{"conversations": [{"role": "system", "content": "Be"}, {"role": "user", "content": "Hi"}]}]', ["Hi"]),
        (
            '[{"conversations": [{"from": "gpt", "value": "alone"}]}, {"conversations": {}}, {"messages": ["x"]}, "a"]',
            ["a"],
        ),
        ('[{"conversations": {"a": 1}, "prompt": "a"}, {"messages": 7, "text": "b"}, null, 3, []]', ["a", "b"]),
    ],
)
def test_prompt_files_of_odd_forms_are_read(text, expected):
    """Byte order marks, blank lines, separators inside a string, turns that ask nothing: what asks is taken."""
    assert [prompt.prompt for prompt in parse_prompts(text)] == expected


@pytest.mark.parametrize(
    "text", ["", "\ufeff", "\n \n", "{}", "[[]]", '[{"conversations": [{"from": "gpt", "value": "a"}]}]']
)
def test_a_file_without_a_prompt_is_refused(text):
    """Nothing that asks is a bad parameter, not an empty load."""
    with pytest.raises(BadParameter, match="no prompt"):
        parse_prompts(text)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "true", '{"timestamp": "now"}', "null"])
def test_a_trace_has_numbers(text):
    """What is no moment in time is refused with its line."""
    with pytest.raises(BadParameter, match="line 2 of the trace"):
        parse_trace(f"1\n{text}\n")
