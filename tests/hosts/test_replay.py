"""What was recorded once is answered again, without a machine."""

import json
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from time import monotonic

import pytest

from opslib.domain.host import Host, HostSettings
from opslib.errors import (
    BadParameter,
    CouldNotFindOut,
    HostUnreachable,
    OpslibError,
    PrivilegeRefused,
    Refused,
    UnexpectedAnswer,
)
from opslib.hosts import open_host
from opslib.hosts.recording import RecordingHost
from opslib.hosts.replay import ReplayHost
from opslib.workflow.install import apply_plan, plan_install
from opslib.workflow.investigate import investigate, wait_until_ended
from opslib.workflow.survey import survey_host
from tests.conftest import opened
from tests.fakes import FakeHost, answered
from tests.hosts.test_scope import started_id

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
CRASHES = (
    "[Unit]\nDescription=A port taken\n[Service]\nType=exec\nExecStart=/bin/sh -c 'echo \"(APIServer pid=7) ERROR 11-29 "
    "12:00:00 [x.py:1] OSError: [Errno 98] error while attempting to bind on address (0.0.0.0, 8000): address already "
    "in use\"; sleep 0.3; exit 1'\n"
)


def recording(host: Host, path: Path) -> RecordingHost:
    """The host, recorded with its answers."""
    return RecordingHost(host, path, has_results=True)


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    return tmp_path / "recording.jsonl"


@pytest.fixture
def local() -> Host:
    return open_host(HostSettings(alias="here", address="local"))


def test_answers_come_again_byte_for_byte(local: Host, transcript: Path) -> None:
    """Exit status, both outputs (any bytes) and the seconds taken are those that were recorded."""
    argv = ["printf", "\\377\\000 %s", "naïve"]
    first = recording(local, transcript).run(argv)
    again = ReplayHost(transcript).run(argv, sudo=True)
    assert again.stdout == first.stdout == b"\xff\x00 na\xc3\xafve"
    assert again.model_copy(update={"duration_s": 0}) == first.model_copy(update={"duration_s": 0})


def test_answers_come_in_their_order(transcript: Path) -> None:
    """The same question gets its answers one after the other, and the last one from then on."""
    states = iter("abc")
    host = FakeHost({("state",): lambda argv: answered(argv, next(states))})
    recorder = recording(host, transcript)
    assert [recorder.run(["state"]).text for _ in "abc"] == list("abc")
    replay = ReplayHost(transcript)
    assert [replay.run(["state"]).text for _ in "abcde"] == list("abccc")


def test_a_question_that_was_not_asked_names_the_nearest(local: Host, transcript: Path) -> None:
    """Nothing is made up: an unknown command, program or file could not be found out, and the nearest one is named."""
    recorder = recording(local, transcript)
    recorder.run(["echo", "one"])
    recorder.run_program("identity", {})
    replay = ReplayHost(transcript)
    with pytest.raises(UnexpectedAnswer, match="nearest that was: `echo one`"):
        replay.run(["echo", "once"])
    with pytest.raises(UnexpectedAnswer, match="nearest that was: `identity"):
        replay.run_program("identity", {"more": True})
    with pytest.raises(UnexpectedAnswer, match="not asked"):
        replay.read_file("/etc/hostname")
    with pytest.raises(CouldNotFindOut, match="no port 8000"):
        replay.forward_port(8000)


def test_another_moment_is_the_same_question(transcript: Path) -> None:
    """The clock of a replay is not that of the recording: `--since=@SECONDS` may differ, nothing else."""
    argv = ["journalctl", "--since=@1795893251.684621", "--unit=x.service"]
    recording(FakeHost({("journalctl",): "{}"}), transcript).run(argv)
    replay = ReplayHost(transcript)
    assert replay.run([argv[0], "--since=@1800000000.0", argv[2]]).text == "{}"
    with pytest.raises(UnexpectedAnswer):
        replay.run([argv[0], "--since=@1800000000.0", "--unit=y.service"])


def test_a_long_question_is_cut_in_the_message(transcript: Path) -> None:
    """The arguments of a program would fill the screen: the message stays short."""
    recording(FakeHost(), transcript).run_program("identity", {"x": "y" * 5000})
    with pytest.raises(UnexpectedAnswer) as caught:
        ReplayHost(transcript).run_program("identity", {"x": "z" * 5000})
    assert len(str(caught.value)) < 600


def test_input_is_part_of_the_question(local: Host, transcript: Path) -> None:
    """A command that read input answers the same input only."""
    recording(local, transcript).run(["cat"], input=b"one")
    replay = ReplayHost(transcript)
    assert replay.run(["cat"], input=b"one").stdout == b"one"
    with pytest.raises(UnexpectedAnswer):
        replay.run(["cat"], input=b"two")


@pytest.mark.parametrize("is_paced", [False, True])
def test_streams_come_again_with_their_times(local: Host, transcript: Path, is_paced: bool) -> None:
    """A stream's lines come at once, or at the pace at which they were recorded."""
    argv = ["sh", "-c", "echo a; sleep 0.4; echo b"]
    with recording(local, transcript).stream(argv) as lines:
        assert list(lines) == [b"a", b"b"]
    times = []
    with ReplayHost(transcript, is_paced=is_paced).stream(argv) as lines:
        for line in lines:
            times.append(monotonic())
            assert line in (b"a", b"b")
    [gap] = [after - before for before, after in pairwise(times)]
    assert (gap > 0.3) is is_paced


class Failing(FakeHost):
    """A host whose streams break after one line."""

    def stream(self, argv, *, sudo=False):
        class Broken:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def __iter__(self):
                yield b"one"
                raise HostUnreachable("the connection was lost", host="fake", hint="ask again")

            def close(self):
                pass

        return Broken()


def test_errors_come_again(transcript: Path) -> None:
    """What could not be found out then is not found out again: same error, same words, after the same lines."""
    host = Failing({("id",): PrivilegeRefused("sudo refused: no", host="fake", hint="allow it")})
    recorder = recording(host, transcript)
    with pytest.raises(PrivilegeRefused):
        recorder.run(["id"], sudo=True)
    with pytest.raises(HostUnreachable), recorder.stream(["tail"]) as lines:
        list(lines)
    replay, got = ReplayHost(transcript), []
    with pytest.raises(PrivilegeRefused, match=r"fake: sudo refused: no\. Next: allow it"):
        replay.run(["id"])
    with pytest.raises(HostUnreachable, match="lost"), replay.stream(["tail"]) as lines:
        got += lines
    assert got == [b"one"]


def test_writes_are_checked_not_done(local: Host, transcript: Path, tmp_path: Path) -> None:
    """A write that was recorded gives its receipt and changes nothing; any other one is refused."""
    path = str(tmp_path / "unit")
    receipt = recording(local, transcript).write_file(path, b"one")
    Path(path).unlink()
    replay = ReplayHost(transcript)
    assert replay.write_file(path, b"one") == receipt
    with pytest.raises(Refused, match="with other content"):
        replay.write_file(path, b"two")
    with pytest.raises(Refused, match="never written"):
        replay.write_file(f"{path}.other", b"one")
    assert not Path(path).exists()


def test_a_recording_keeps_no_secret(local: Host, transcript: Path) -> None:
    """What looks like a secret, and each known one, is redacted in questions and answers; the question still matches."""
    token = "hf_" + "A1b2C3d4E5f6G7h8I9j0" * 2
    argv = ["echo", f"HF_TOKEN={token}", "canary-42"]
    RecordingHost(local, transcript, has_results=True, secrets=["canary-42"]).run(argv)
    written = transcript.read_text()
    assert token not in written
    assert "canary-42" not in written
    assert "[redacted" in ReplayHost(transcript).run([*argv[:2], "[redacted:known]"]).text


def test_only_whole_recordings_are_replayed(local: Host, transcript: Path, tmp_path: Path) -> None:
    """A transcript of vectors, a missing file and other text are refused with what to do."""
    RecordingHost(local, transcript).run(["true"])
    with pytest.raises(BadParameter, match="OPSLIB_RECORDING"):
        ReplayHost(transcript)
    with pytest.raises(BadParameter, match="cannot read"):
        ReplayHost(tmp_path / "absent")
    (tmp_path / "text").write_text("no JSON")
    with pytest.raises(BadParameter, match="is no recording"):
        ReplayHost(tmp_path / "text")


def test_the_inventory_names_recordings(transcript: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$OPSLIB_RECORDING records any host; the address `replay:PATH` answers from it under the inventory's alias."""
    monkeypatch.delenv("OPSLIB_TRANSCRIPT", raising=False)
    monkeypatch.setenv("OPSLIB_RECORDING", str(transcript))
    open_host(HostSettings(alias="here", address="local", models_dir="/data")).run(["uname"])
    monkeypatch.delenv("OPSLIB_RECORDING")
    replay = open_host(HostSettings(alias="then", address=f"replay:{transcript}"))
    assert replay.run(["uname"]).is_success
    assert (replay.settings.alias, replay.settings.models_dir) == ("then", "/data")


@pytest.mark.parametrize("kind", ["rehearsal", pytest.param("realhost-ops", marks=pytest.mark.realhost)])
def test_a_replayed_host_gets_the_same_verdict(kind: str, transcript: Path, request: pytest.FixtureRequest) -> None:
    """An investigation and a survey come to the same result from the recording as from the machine itself."""
    if kind == "rehearsal":
        settings = request.getfixturevalue("rehearsal").settings
    else:
        settings = request.getfixturevalue("debian").ops_settings
    unit = "replayed-crash"
    with opened(settings) as host:
        apply_plan(host, plan_install(host, unit=unit, unit_text=CRASHES))
        invocation_id = started_id(host, unit)
        wait_until_ended(host, unit, invocation_id)
        recorder = recording(host, transcript)
        seen = [ask(recorder, unit, invocation_id) for ask in (examine, look)]
        host.run(["rm", "--force", "--", f"{settings.unit_dir}/{unit}.service"], sudo=True)
    replay = ReplayHost(transcript)
    assert [ask(replay, unit, invocation_id) for ask in (examine, look)] == seen
    assert seen[0].diagnosis.cause == "configuration/port-in-use"
    assert len(json.dumps(transcript.read_text())) < 1_000_000


def examine(host: Host, unit: str, invocation_id: str) -> object:
    return investigate(host, unit, invocation_id, port=8000, clock=lambda: NOW)


def look(host: Host, unit: str, _: str) -> object:
    return survey_host(host, [unit], clock=lambda: NOW).model_copy(update={"duration_s": 0})


def test_every_error_can_be_recorded() -> None:
    """Each error of the kit is made of a message, a host and a hint, so that a recording can raise it again."""
    for kind in OpslibError.__subclasses__():
        assert str(kind("a", host="b", hint="c")) == "b: a. Next: c"
