"""Unit files: read, changed by one flag, written back."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslib.domain.unit_file import parse_unit_file, render_exec_start, unified_diff
from opslib.domain.unit_words import quote_word, split_words
from opslib.domain.vllm_unit import GuardSettings, render_vllm_unit
from opslib.errors import Refused, UnexpectedAnswer

FOREIGN = """# hand-written
[Unit]
Description = an engine

[Service]
Environment=A=1 "B=two words"
Environment='C=100%%'
ExecStartPre=-/bin/true
ExecStart=-/opt/v/vllm serve ${MODEL} -tp 4 \\
# a comment in between
   --host %H --max_model_len=1024 --enforce-eager --served-model-name a b
Restart=always
"""
STORY = render_vllm_unit(
    unit="vllm-minimax",
    vllm="/opt/vllm/bin/vllm",
    model_path="/srv/models/minimax-m2-230b-fp8",
    flags=["--port", "8000", "--tensor-parallel-size", "4", "--max-model-len", "131072"],
    gpus=[0, 1, 2, 3],
    guard=GuardSettings(python="python3", path="/var/lib/opslib/gpu_guard.py", required_free_gib=90.2),
    environment={"HF_HUB_OFFLINE": "1"},
)


def changes(old, new):
    diff = unified_diff(old.render(), new.render(), "/x")
    return [line for line in diff.splitlines() if re.match(r"[+-](?![+-]{2})", line)]


@pytest.mark.parametrize("text", [FOREIGN, STORY, "", "\n\n[X]\nA=1", "[A]\nB=1 \\\n"])
def test_what_is_read_is_written_back_byte_for_byte(text):
    """A file that isn't ours keeps its wording, comments and blanks."""
    assert parse_unit_file(text).render() == text


def test_words_arrive_as_the_program_gets_them():
    """Continuations join, comments between them vanish, the executable's prefix goes, variables stay."""
    assert parse_unit_file(FOREIGN).engine_argv == (
        *("/opt/v/vllm", "serve", "${MODEL}", "-tp", "4", "--host", "%H"),
        *("--max_model_len=1024", "--enforce-eager", "--served-model-name", "a", "b"),
    )
    assert parse_unit_file(FOREIGN).serve_arguments[0] == "${MODEL}"


def test_repeated_keys_add_up_and_an_empty_one_forgets():
    """Environment= is a list; `Key=` empties it."""
    assert parse_unit_file(FOREIGN).environment == {"A": "1", "B": "two words", "C": "100%"}
    reset = parse_unit_file("[Service]\nExecStart=/a\nExecStart=\nExecStart=/b c\n")
    assert reset.values("Service", "ExecStart") == ("/b c",)
    assert reset.value("Service", "ExecStartPre") is None


def test_a_new_flag_is_one_added_line():
    """The remedy's diff shows the flag and nothing else."""
    unit = parse_unit_file(STORY)
    assert changes(unit, unit.with_engine_flag("--max-num-seqs", "256")) == ["+    --max-num-seqs 256 \\"]


def test_a_flag_that_is_there_is_replaced_under_whatever_name_it_goes():
    """Aliases, underscores and `=value` are the same flag; a variable elsewhere keeps its wording."""
    unit = (
        parse_unit_file(FOREIGN)
        .with_engine_flag("--tensor-parallel-size", "8")
        .with_engine_flag("--max-model-len", "2048")
    )
    assert "-tp" not in unit.engine_argv
    assert "--max_model_len=1024" not in unit.engine_argv
    assert "--host %H --max-model-len 2048 --enforce-eager --served-model-name a b\n" in unit.render()
    assert "# a comment in between\n" in unit.render()
    assert "ExecStart=-/opt/v/vllm serve ${MODEL} --tensor-parallel-size 8 \\\n" in unit.render()


def test_a_flag_taken_out_leaves_the_model_behind_it():
    """A flag takes only the values that are its own."""
    unit = parse_unit_file("[Service]\nExecStart=vllm serve --enforce-eager --port 8000 /m --served-model-name a b\n")
    assert unit.without_engine_flag("--port").engine_argv[2:] == (
        "--enforce-eager",
        "/m",
        "--served-model-name",
        "a",
        "b",
    )
    assert unit.without_engine_flag("--enforce-eager").engine_argv[2] == "--port"
    assert unit.without_engine_flag("--served-model-name").engine_argv[-1] == "/m"
    assert unit.without_engine_flag("--seed") is unit


@pytest.mark.parametrize("value", ["/a ; /b", '/a "open', ""])
def test_a_command_line_that_cannot_be_changed_safely_is_refused(value):
    """Several commands, an open quote or no command: no flag is set by guess."""
    with pytest.raises((UnexpectedAnswer, Refused)):
        parse_unit_file(f"[Service]\nExecStart={value}\n").with_engine_flag("--port", "1")


@pytest.mark.parametrize(
    ("words", "name", "value", "wanted"),
    [
        # what is asked for is what is written: negation, one member of an object, a level, a flag that is newer
        ("serve /m --enable-prefix-caching", "--no-enable-prefix-caching", None, "serve /m --no-enable-prefix-caching"),
        ("serve /m --no-enable-prefix-caching", "--enable-prefix-caching", None, "serve /m --enable-prefix-caching"),
        ("serve /m", "--compilation-config.mode", "0", "serve /m --compilation-config.mode 0"),
        ("serve /m -cc.mode 3 -cc.level=1", "-cc.mode", "0", "serve /m --compilation-config.mode 0 -cc.level=1"),
        ("serve /m -cc.mode 3 -cc.level=1", "--compilation-config", "{}", "serve /m --compilation-config {}"),
        ("serve /m -O3 --port 1", "-O2", None, "serve /m -O2 --port 1"),
        ("serve /m --port 1 --newer 1", "--newer", "2", "serve /m --port 1 --newer 2"),
        ("serve /m --port 1", "--served-model-name", "--x", "serve /m --served-model-name=--x --port 1"),
        # behind a variable that may bring the flag: the last mention rules
        ("serve /m --port 1 $ARGS", "--seed", "2", "serve /m --port 1 $ARGS --seed 2"),
        ("serve /m --seed 1 --port 1 '$ARGS'", "--seed", "2", "serve /m --port 1 '$ARGS' --seed 2"),
        ("serve /m --enforce-eager ${EXTRA}", "--seed", "2", "serve /m --enforce-eager ${EXTRA} --seed 2"),
        ("serve /m --seed $N --port $P", "--seed", "2", "serve /m --seed 2 --port $P"),
        ("serve ${MODEL} --port 1", "--seed", "2", "serve ${MODEL} --seed 2 --port 1"),
    ],
)
def test_what_was_asked_is_what_the_engine_gets(words, name, value, wanted):
    """A flag keeps its sense, and stands where no other mention overrules it."""
    unit = parse_unit_file(f"[Service]\nExecStart=/v/vllm {words}\n").with_engine_flag(name, value)
    assert unit.render() == f"[Service]\nExecStart=/v/vllm {wanted}\n"


@pytest.mark.parametrize(
    "program",
    [
        "/usr/bin/nice -n 5 /v/vllm serve /m",
        "/usr/bin/numactl --cpunodebind 0 -- /v/vllm serve /m",
        "/v/python -m vllm.entrypoints.openai.api_server",
        "/v/python -u -m sglang.launch_server",
        "/v/vllm serve $MODEL",
    ],
)
def test_flags_of_what_runs_the_engine_are_none_of_its_own(program):
    """A new flag goes behind the engine's first words."""
    unit = parse_unit_file(f"[Service]\nExecStart={program}\n").with_engine_flag("--seed", "1")
    assert unit.render() == f"[Service]\nExecStart={program} --seed 1\n"


@pytest.mark.parametrize(
    "command", ["/bin/bash -c 'vllm serve /m'", '/usr/bin/env A=1 /bin/sh -c "exec vllm serve /m"', "/opt/start.sh /m"]
)
def test_a_shells_command_is_not_changed(command):
    """What a shell or a script makes of its arguments isn't known: nothing is set by guess."""
    unit = parse_unit_file(f"[Service]\nExecStart={command}\n")
    with pytest.raises(Refused, match="starts the engine"):
        unit.with_engine_flag("--seed", "1")


@pytest.mark.parametrize("words", ["/m --port 1 $ARGS", "--newer /m"])
def test_a_flag_that_cannot_be_found_is_not_taken_out(words):
    """One that a variable may bring stands elsewhere; the model isn't mistaken for a value."""
    unit = parse_unit_file(f"[Service]\nExecStart=/v/vllm serve {words}\n")
    with pytest.raises(Refused, match=r"\$ARGS may bring it|can't be told"):
        unit.without_engine_flag("--newer")


@pytest.mark.parametrize(
    "commands",
    [["/v/vllm serve /m", "/bin/echo done"], ["/bin/true", "/v/vllm serve /m"], ["/bin/a ; /v/vllm serve /m"]],
)
def test_of_several_commands_the_engines_is_read(commands):
    """A oneshot unit has several, in any order, or in one line."""
    unit = parse_unit_file("[Service]\n" + "".join(f"ExecStart={command}\n" for command in commands))
    assert unit.engine_argv == ("/v/vllm", "serve", "/m")


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), max_size=6))
def test_arguments_arrive_byte_equal(arguments):
    """JSON, blanks, quotes, %, $, ;, #, newlines and non-ASCII survive quoting and joining."""
    text = render_exec_start(["/opt/vllm/bin/vllm", *arguments])
    assert parse_unit_file("[Service]\n" + text).engine_argv == ("/opt/vllm/bin/vllm", *arguments)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ('{"a": 1}', r'"{\"a\": 1}"'),
        ("a b", '"a b"'),
        ("$X", "$$X"),
        ("50%", "50%%"),
        (";", '";"'),
        ("#x", '"#x"'),
        ("", '""'),
        ("a\nb", r'"a\nb"'),
        ("a\\b", r'"a\\b"'),
        ("\x01", r'"\x01"'),
        ("größe", "größe"),
    ],
)
def test_quoting_follows_systemd(text, quoted):
    """systemd.service(5): $$ and %%, C escapes in double quotes, a lone semicolon quoted."""
    assert quote_word(text) == quoted


def test_escapes_of_others_are_read():
    """systemd.syntax(7) lists the C escapes, octal, hexadecimal and Unicode."""
    assert [word.text for word in split_words(r"a\sb 'c d' \x41\101\u00e4 \;")] == ["a b", "c d", "AAä", ";"]


def test_the_installed_unit_guards_its_own_gpus():
    """The guard runs before the engine, knows only the unit's GPUs, and systemd waits longer than it does."""
    unit = parse_unit_file(STORY)
    guard = "/usr/bin/env python3 /var/lib/opslib/gpu_guard.py --gpus 0,1,2,3 --required-free-gib 90.2 --wait-s 300"
    assert unit.value("Service", "ExecStartPre") == guard
    assert unit.environment["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert unit.value("Service", "TimeoutStartSec") == "360"


def test_a_cpu_engine_has_no_guard():
    """Without GPUs there's nothing to wait for."""
    guard = GuardSettings(python="/usr/bin/python3", path="/g.py", required_free_gib=1)
    unit = parse_unit_file(render_vllm_unit(unit="u", vllm="/v", model_path="/m", flags=[], guard=guard))
    assert unit.value("Service", "ExecStartPre") is None
    assert "CUDA_VISIBLE_DEVICES" not in unit.environment


def test_a_new_file_is_all_additions():
    """No file yet is /dev/null; no change is no diff."""
    assert unified_diff(None, "a\n", "/x").splitlines()[:2] == ["--- /dev/null", "+++ /x"]
    assert unified_diff("a\n", "a\n", "/x") == ""


def n_common(first: str, second: str) -> int:
    """How many characters both begin with."""
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))))


@pytest.mark.parametrize("name", ["--max-num-seqs", "--port", "--tensor-parallel-size", "--served-model-name"])
def test_nothing_but_the_flag_is_touched(name):
    """A flag taken out is one cut, a flag set is one other piece in the same place; all around it stays."""
    unit = parse_unit_file(FOREIGN)
    bare = unit.without_engine_flag(name)
    assert bare.with_engine_flag(name, "7").without_engine_flag(name).render() == bare.render()
    for changed, n_new in ((bare, 0), (unit.with_engine_flag(name, "7"), len(f" {name} 7"))):
        before, after = unit.render(), changed.render()
        head = n_common(before, after)
        tail = n_common(before[:head:-1], after[:head:-1])
        assert head + tail >= len(after) - n_new - 1
