"""The canary's judgement: same, explained, corrupt; and what no sound model says of plain text."""

from datetime import UTC, datetime

import pytest

from opslib.domain.canary import Continuation, Fingerprint, check_sanity, read_answer
from opslib.domain.canary_compare import judge_canary
from opslib.domain.states import State

AT = datetime(2026, 11, 29, 12, tzinfo=UTC)
CONTEXT = {"engine": "0.15.1", "dtype": "bfloat16", "tensor_parallel_size": "4"}


def continuation(tokens="a b c d", logprobs=(-0.1, -0.2, -0.3, -0.4), **changes):
    words = tuple(tokens.split())
    tops = tuple(
        {word: value, "z": value - 3.0, "y": value - 0.05} for word, value in zip(words, logprobs, strict=False)
    )
    given = {"prompt": "p", "text": tokens, "finish_reason": "length", "tokens": words, "logprobs": logprobs}
    return Continuation.model_validate({**given, "tops": tops, **changes})


def fingerprint(plain=(-1.0, -2.0, -0.5, -1.5), told=None, **changes):
    given = {
        "taken_at": AT, "host": "gpu1", "model": "m", "model_digest": "w", "vocab_size": 32000, "dtype": "bfloat16",
        "engine": "0.15.1", "context": CONTEXT, "plain_tokens_digest": "t", "chat_tokens_digest": "c",
    }  # fmt: skip
    answers = {"plain_logprobs": plain, "continuations": (told or continuation(),)}
    return Fingerprint.model_validate({**given, **answers, **changes})


def moved(nats, **changes):
    return fingerprint(plain=tuple(value - nats for value in (-1.0, -2.0, -0.5, -1.5)), **changes)


def test_the_first_fingerprint_rests_on_plain_text_alone():
    """Without one kept, a sound model is `first` and ok, and what it rests on is said."""
    report = judge_canary(fingerprint(), ())
    assert (report.verdict, report.state) == ("first", State.OK)
    assert "-1.25 nats per token" in report.summary


@pytest.mark.parametrize(
    ("plain", "vocab_size", "words"),
    [
        ((-9.0, -8.0, -10.0), 32000, "nearer to chance"),
        ((-13.0, -12.0, -11.0), 32000, "less likely than by chance"),
        ((-10.37, -10.37, -10.37), 32000, "the logits are constant"),
        ((float("nan"), -1.0), 32000, "not numbers"),
        ((-8.2, -8.0, -8.3), 2000, "less likely than by chance"),
    ],
)
def test_garbage_is_caught_on_a_first_deploy(plain, vocab_size, words):
    """Nothing is kept to compare with, and still no model that was trained finds plain English so unlikely."""
    report = judge_canary(fingerprint(plain=plain, vocab_size=vocab_size), ())
    assert (report.verdict, report.state) == ("corrupt", State.CRITICAL)
    assert words in report.summary


def test_nan_that_the_server_could_not_write_is_garbage():
    """VLLM answers 500 where a log-probability is NaN: its words are the evidence."""
    now = fingerprint(plain=(), plain_error="http_500: Out of range float values are not JSON compliant")
    assert check_sanity(now).state is State.CRITICAL


def test_a_toy_vocabulary_is_only_held_against_chance():
    """Of bytes and toys plain text tells little: chance itself passes, worse than chance does not."""
    assert check_sanity(fingerprint(plain=(-7.6, -7.5, -7.7), vocab_size=2000)).state is State.OK


def test_without_log_probabilities_it_is_unknown_and_said():
    """A server that gives none leaves the first deploy unproven, in words, and does not fail it."""
    report = judge_canary(fingerprint(plain=(), plain_error="http_400: not supported"), ())
    assert (report.verdict, report.state) == ("first", State.OK)
    assert "nothing proves that it is sound" in report.summary
    assert report.checks[0].state is State.UNKNOWN


@pytest.mark.parametrize("nats", [0.0, 0.03])
def test_rounding_is_the_same(nats):
    """Within the dtype's tolerance and with nothing changed it is the same."""
    assert judge_canary(moved(nats), [fingerprint()]).verdict == "same"


def test_a_tie_may_fall_either_way():
    """Two tokens nearer than rounding part without harm: the earlier engine itself hardly preferred its own."""
    report = judge_canary(fingerprint(told=continuation("a b y d")), [fingerprint()])
    assert report.verdict == "same"
    assert "at a tie" in report.summary
    assert report.parts_at == "'p', token 3: 'y' instead of 'c', preferred by 0.05 nats"


def test_another_word_without_a_reason_is_corrupt():
    """Nothing was changed and a token differs that was clearly preferred: corrupt, with the token where it parts."""
    report = judge_canary(fingerprint(told=continuation("a b z d")), [fingerprint()])
    assert (report.verdict, report.state) == ("corrupt", State.CRITICAL)
    assert "'p', token 3: 'z' instead of 'c', preferred by 3.00 nats" in report.summary


def test_other_numbers_without_a_reason_are_corrupt():
    """The same words with other log-probabilities than rounding makes: corrupt."""
    assert judge_canary(moved(0.2), [fingerprint()]).verdict == "corrupt"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dtype": "float32", "context": {**CONTEXT, "dtype": "float32"}}, "dtype bfloat16 -> float32"),
        ({"engine": "0.16.0", "context": {**CONTEXT, "engine": "0.16.0"}}, "engine 0.15.1 -> 0.16.0"),
        ({"context": {**CONTEXT, "tensor_parallel_size": "8"}}, "tensor_parallel_size 4 -> 8"),
    ],
)
@pytest.mark.parametrize(("nats", "state"), [(0.01, State.OK), (0.2, State.WARNING)])
def test_a_named_change_explains_a_difference(changes, named, nats, state):
    """Engine, dtype or number of GPUs explain a difference; beyond rounding it is a warning to look at."""
    report = judge_canary(moved(nats, **changes), [fingerprint()])
    assert (report.verdict, report.state) == ("explained difference", state)
    assert named in report.summary


def test_no_change_explains_nonsense():
    """A difference larger than any change of precision makes is corrupt, whatever was changed."""
    changed = {"dtype": "float32", "context": {**CONTEXT, "dtype": "float32"}}
    report = judge_canary(moved(0.9, **changed), [fingerprint()])
    assert report.verdict == "corrupt"
    assert "more than dtype bfloat16 -> float32 explains" in report.summary


def test_the_one_of_the_same_dtype_and_engine_is_compared():
    """Of several kept fingerprints the own one counts, not the newest."""
    other = moved(0.3, dtype="float32", context={**CONTEXT, "dtype": "float32"})
    assert judge_canary(moved(0.01), [fingerprint(), other]).verdict == "same"


def test_another_tokenizer_is_named():
    """Where plain text is put into other tokens nothing else can be compared, and that is said."""
    report = judge_canary(fingerprint(plain_tokens_digest="u"), [fingerprint()])
    assert (report.verdict, report.state) == ("explained difference", State.WARNING)
    assert "tokenizer" in report.summary


def test_another_chat_template_is_a_change():
    """A chat template that was changed is named as what explains other answers."""
    report = judge_canary(fingerprint(chat_tokens_digest="d", told=continuation("a b z d")), [fingerprint()])
    assert report.verdict == "explained difference"
    assert "chat template" in report.summary


def test_another_end_is_a_difference():
    """The same tokens with another reason to stop are not the same."""
    report = judge_canary(fingerprint(told=continuation(finish_reason="stop")), [fingerprint()])
    assert report.verdict == "corrupt"
    assert report.evidence == ("'p' ended with length, now with stop",)


def test_no_answer_is_unknown():
    """A server that answers nothing is no verdict about the model."""
    silent = fingerprint(told=Continuation(prompt="p", error="http_503: overloaded"))
    report = judge_canary(silent, [fingerprint()])
    assert (report.verdict, report.state) == ("unknown", State.UNKNOWN)
    assert "overloaded" in report.summary


def test_other_weights_are_never_compared():
    """A fingerprint of other weights says nothing."""
    assert judge_canary(fingerprint(), [fingerprint().model_copy(update={"model_digest": "v"})]).verdict == "first"


def test_the_dtype_is_the_flag_else_the_configs():
    """`auto` is what the model's config says, `half` its long name; a quantization is what it is kept under."""
    answer = {
        "model": "m", "engine": "0.15.1", "files": {"dtype": "torch.bfloat16", "model_digest": "w"}, "plain_tokens": [1],
        "chat_tokens": [], "plain_logprobs": [-1.0], "plain_error": "", "continuations": [],
    }  # fmt: skip

    def read(files=(), **flags):
        given = {**answer, "files": {**answer["files"], **dict(files)}}
        return read_answer(given, flags=flags, gpus=["H100", "H100"], host="h", taken_at=AT)

    assert read().dtype == "bfloat16"
    assert read(**{"--dtype": "half"}).dtype == "float16"
    assert read(files={"quantization": "fp8"}).dtype == "fp8"
    assert read(files={"quantization": "fp8"}).context["GPUs"] == "H100"
