"""`opslib rollout`: refused in one line before anything, drawn within 100 columns, told as lines elsewhere."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from opslib.app.rollout_record import record_of_rollout
from opslib.cli.main import call
from opslib.cli.rollout_screen import RolloutScreen, headline, host_table
from opslib.domain.rollout import HostStep, RolloutEvent, RolloutPlan, UnitFound
from opslib.domain.rollout_state import after, new_state
from opslib.domain.states import State
from opslib.errors import CouldNotFindOut
from opslib.records.folder import RunFolder
from opslib.records.rollout import RolloutFolder

BEGAN = datetime(2026, 11, 30, 10, tzinfo=UTC)
INVENTORY = """
[hosts.gpu-a]
address = "10.0.0.1"
labels = ["prod", "h100"]
[hosts.gpu-b]
address = "10.0.0.2"
labels = ["prod"]
[hosts.gpu-c]
address = "10.0.0.2"
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An inventory whose hosts are never asked, and records of this test alone."""
    (tmp_path / "hosts.toml").write_text(INVENTORY)
    monkeypatch.setenv("OPSLIB_HOSTS", str(tmp_path / "hosts.toml"))
    monkeypatch.setenv("OPSLIB_RUNS", str(tmp_path / "runs"))
    return tmp_path


REFUSED = [
    ("", "which runbook?"),
    ("lunch --hosts prod", "unknown runbook 'lunch'"),
    ("deploy", "give aliases or labels"),
    ("deploy --hosts gpu-x", "neither a host nor a label 'gpu-x'"),
    ("deploy --hosts prd", "neither a host nor a label 'prd'; did you mean prod?"),
    ("deploy --hosts gpu-a gpu-a", "gpu-a is given twice"),
    ("deploy --hosts gpu-a,gpu-a", "gpu-a is given twice"),
    ("deploy --hosts all", "gpu-b and gpu-c are the same machine (10.0.0.2)"),
    ("deploy --hosts prod --wave 0", "--wave 0: expected at least one host"),
    ("deploy --hosts prod --wave 120%", "--wave 120%: expected a share from 1% to 100%"),
    ("deploy --hosts prod --wave half", "--wave half: expected a number of hosts"),
    ("deploy --hosts prod --canary 3", "--canary 3: there are only 2 hosts"),
    ("deploy --hosts prod --min-serving 2", "--min-serving 2: of 2 hosts none could ever be taken down"),
    ("deploy --hosts prod --max-failures 2", "--max-failures 2: there are only 2 hosts"),
    ("deploy --hosts prod --pause soon", "--pause: expected a time span"),
    ("deploy --hosts prod --pause 9999d", "--pause 9999d: expected a day at most"),
    ("deploy --hosts prod --drain 2d", "--drain 2d: expected a day at most"),
    ("deploy --hosts prod --drain soon", "--drain: expected a time span"),
    ("deploy --hosts prod --max-failures -1", "-1 is not in the range"),
    ("deploy --hosts prod -p host=gpu-a", "host: the hosts are chosen by --hosts"),
    ("deploy --hosts prod -p prot=1", "prot: unknown parameter of 90-deploy; did you mean port?"),
    ("deploy --hosts prod -f missing.yaml", "missing.yaml: can't be read"),
    ("survey-hosts --hosts prod", "00-survey-hosts is not about one host"),
    ("deploy --hosts rehearsal", "rehearsal is a practice host of one run alone"),
    ("deploy --hosts prod", "nobody is there to ask. Next: pass --yes"),
    ("--resume last", "there is no rollout in"),
    ("--undo nothing", "no record 'nothing' in"),
    ("--resume a --undo b", "--resume and --undo are two things"),
    ("--resume=", "--resume: which rollout? Its folder, its name or last"),
    ("--undo= --yes", "--undo: which rollout?"),
    ("--resume a --undo=", "--resume and --undo are two things"),
    ("--resume last --dry-run", "--resume has no --dry-run: it asks each host first, and acts"),
    ("--undo last --dry-run", "--undo has no --dry-run"),
    ("--ask stop last --dry-run", "--ask has no --dry-run"),
    ("--undo last --wave 1", "--undo: hosts and parameters of a rollout are those of its beginning"),
    ("--ask stop --resume last", "--ask: hosts and parameters of a rollout are those of its beginning"),
    ("deploy --hosts prod --wave ٣", "--wave ٣: expected a number of hosts"),
    ("deploy --resume last", "are those of its beginning: give its folder alone"),
    ("--undo last --hosts prod", "are those of its beginning: give its folder alone"),
    ("--ask later last", "'later' is not one of 'pause', 'resume', 'stop'"),
]


@pytest.mark.parametrize(("line", "words"), REFUSED)
def test_what_is_wrong_is_one_line_and_exit_code_4(line, words, place, capsys):
    """An operator's mistake is refused with one clear line, before a folder exists."""
    assert call(["rollout", *line.split()]) == 4
    told = capsys.readouterr()
    assert words in told.err
    assert sum(1 for said in told.err.splitlines() if said.startswith("opslib:")) == 1
    assert "Traceback" not in told.err
    assert not (place / "runs").exists()


def test_a_record_that_is_no_rollout(place, capsys):
    """A folder of another kind is named as what it is not."""
    folder = place / "runs/20261130T100000Z-gpu-a-vllm-90-deploy"
    folder.mkdir(parents=True)
    (folder / "record.json").write_text("{}")
    assert call(["rollout", "--resume", str(folder)]) == 4
    assert "is no rollout: it holds no rollout.json" in capsys.readouterr().err
    (folder / "rollout.json").write_text("{}")
    assert call(["rollout", "--undo", str(folder), "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert "rollout.json is no plan" in told["error"]["problems"][0]


def plan():
    """Eight hosts."""
    hosts = tuple(f"gpu-{number}" for number in range(1, 9))
    return RolloutPlan(runbook="90-deploy", unit="vllm", hosts=hosts, begun_at=BEGAN)


def events():
    """A rollout in its second wave, after a failure with a long sentence."""
    told = [
        ("gpu-1", HostStep.WAITING, "its turn", {"found": UnitFound(is_up=True, is_serving=True)}),
        ("gpu-1", HostStep.PASSED, "vllm is ready: /health answers 200 after 75 s", {"state": State.OK}),
        (
            "gpu-2",
            HostStep.FAILED,
            "stopped at launch: \x1b[31m" + "CUDA out of memory " * 9,
            {"state": State.CRITICAL},
        ),
        ("gpu-3", HostStep.DRAINING, "3 requests running, 0 waiting", {}),
    ]
    yield RolloutEvent(at=BEGAN, kind="begun", process_id=7)
    for number, (host, step, text, facts) in enumerate(told, 1):
        at = BEGAN + timedelta(seconds=number)
        yield RolloutEvent(at=at, kind="host", host=host, step=step, text=text, **facts)


def drawn(*parts, width=100):
    """What a terminal of that width shows."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False, highlight=False)
    for part in parts:
        console.print(part)
    return out.getvalue()


def test_the_table_fits_100_columns():
    """Every host is one line within the width; a long sentence is cut, and nothing in it is obeyed."""
    state = new_state(plan())
    for event in events():
        state = after(state, event)
    lines = drawn(headline(state), host_table(state)).splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) == 2 + 8
    assert lines[0] == "90-deploy over 8 hosts  5 untouched, 1 draining, 1 passed, 1 failed"
    assert "✗ failed" in lines[3]
    assert "…" in lines[3]
    assert "\x1b" not in "".join(lines)
    assert "3 requests running, 0 waiting" in lines[4]


def test_lines_where_there_is_no_terminal(capsys):
    """Elsewhere each change of a host is a line of its own, said once."""
    screen, state = RolloutScreen(is_quiet_stdout=True), new_state(plan())
    with screen.running():
        for event in [*events(), *list(events())[-1:]]:
            state = after(state, event)
            screen.take(event, state)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["gpu-1", "gpu-1", "gpu-2", "gpu-3"]
    assert lines[-1] == "10:00:04  gpu-3  … draining   3 requests running, 0 waiting"


def test_who_runs_elsewhere_is_asked(place, capsys):
    """`--ask` leaves the wish in the rollout's folder; one that has ended can't be asked."""
    folder = RolloutFolder.create(place / "runs", plan())
    assert call(["rollout", "--ask", "pause", "last"]) == 0
    assert [wish.ask for wish in folder.wishes()] == ["pause"]
    folder.append(RolloutEvent(at=BEGAN, kind="ended", state=State.OK, text="all"))
    assert call(["rollout", "--ask", "stop", str(folder.path)]) == 4
    assert "has ended: nobody is there to ask" in capsys.readouterr().err


def test_nobody_is_asked_where_its_process_is_gone(place, capsys):
    """A wish that nobody would hear isn't left: the rollout was killed, and can be gone on with."""
    folder = RolloutFolder.create(place / "runs", plan().model_copy(update={"controller": socket.gethostname()}))
    folder.append(RolloutEvent(at=BEGAN, kind="begun", process_id=4_000_000))
    assert call(["rollout", "--ask", "pause", "last"]) == 4
    assert (
        "its process 4000000 is gone: nobody is there to ask. Next: opslib rollout --resume" in capsys.readouterr().err
    )
    assert folder.wishes() == []


def emptied(lines):
    return b""


def spoilt(lines):
    return b"".join([*lines[:-1], b"garbage\n"])


def foreign(lines):
    return b"".join([*lines[:-1], b'{"at": "2026-11-30T10:00:00Z", "kind": "lunch"}\n'])


DAMAGE = [
    (emptied, "is damaged: it knows nothing of gpu-1, which was touched"),
    (spoilt, "is damaged: 1 lines are no events; it knows nothing of gpu-1, which was touched"),
    (foreign, "is damaged: 1 lines are no events; it knows"),
]


@pytest.mark.parametrize("option", ["--resume", "--undo"])
@pytest.mark.parametrize(("damage", "words"), DAMAGE)
def test_a_state_that_lost_events_is_not_gone_by(damage, words, option, place, capsys):
    """What was found on a host is known from the events alone: where some are lost, none is said to be as it was."""
    folder = touched(place)
    state = folder.path / "state.jsonl"
    state.write_bytes(damage(state.read_bytes().splitlines(keepends=True)))
    before = {path: path.read_bytes() for path in folder.path.iterdir()}
    assert call(["rollout", option, "last", "--yes"]) == 3
    assert words in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.path.iterdir()} == before


def test_a_state_that_cannot_be_read(place, capsys):
    """It is named with the system's reason, exit code 3."""
    folder = touched(place)
    (folder.path / "state.jsonl").unlink()
    (folder.path / "state.jsonl").mkdir()
    assert call(["rollout", "--undo", "last", "--yes"]) == 3
    assert "state.jsonl can't be read: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("torn", [b"{", b'{"at": "2026-1', b'{"at": "2026-11-30T10:00:00Z", "kind": "ho\n', b"\0\0\0"])
def test_a_torn_line_loses_nothing(torn, place):
    """What a killed process or a power cut leaves of a line announced nothing that was begun."""
    folder = touched(place)
    with (folder.path / "state.jsonl").open("ab") as file:
        file.write(torn)
    folder.check_whole()
    assert folder.state().host("gpu-1").found == UnitFound()


def touched(place):
    """A rollout that has touched its first host."""
    folder = RolloutFolder.create(place / "runs", plan())
    events = [
        RolloutEvent(at=BEGAN, kind="begun", process_id=4_000_000),
        RolloutEvent(at=BEGAN, kind="host", host="gpu-1", step=HostStep.WAITING, found=UnitFound()),
    ]
    for event in events:
        folder.append(event)
    folder.write_record(record_of_rollout(folder.state()))
    return folder


@pytest.mark.parametrize("name", ["rollout.json", "parameters.yaml"])
def test_a_folder_that_cannot_be_filled_is_taken_away(name, place, monkeypatch):
    """A full disk leaves no half of a rollout, which --resume last would take for one."""

    def full(self, path, content, write=RunFolder._write):
        if path == name:
            raise CouldNotFindOut("No space left on device")
        return write(self, path, content)

    monkeypatch.setattr(RunFolder, "_write", full)
    with pytest.raises(CouldNotFindOut):
        RolloutFolder.create(place / "runs", plan(), "{}")
    assert list((place / "runs").iterdir()) == []


def test_a_reader_that_leaves_ends_no_rollout(monkeypatch):
    """`opslib rollout ... | head -1`: what is told to nobody is passed over, the hosts' runs come to their end."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        screen = RolloutScreen(is_quiet_stdout=False)
        screen.say("one")
        screen.take(RolloutEvent(at=BEGAN, kind="wave", wave=0, text="canary"), new_state(plan()))


REHEARSE = [
    ("--hosts 3 --scenario-on x", "expected N=SCENARIO"),
    ("--hosts 3 --scenario-on 4=healthy", "there is no host 4 among 3"),
    ("--hosts 3 --scenario-on 2=helthy", "no scenario 'helthy'"),
    ("--hosts 3 --scenario-on 1=healthy --scenario-on 1=sampler-oom", "host 1 has a scenario already"),
    ("--hosts 0", "0 is not in the range"),
    ("--serve --force-drain", "--force-drain: with --serve nothing is rolled out"),
    ("--scenario-on 3=healthy", "--scenario-on: about many hosts: it needs --hosts"),
    ("--canary 2", "--canary: about many hosts: it needs --hosts"),
    ("--hosts 3 --serve --min-serving 2", "--min-serving: with --serve nothing is rolled out"),
    ("--hosts 3 --serve --force-drain", "--force-drain: with --serve nothing is rolled out"),
    ("--hosts 3 --serve -p max_num_seqs=8", "--parameter: with --serve nothing is rolled out"),
]


@pytest.mark.parametrize(("line", "words"), REHEARSE)
def test_a_fleet_that_cannot_be(line, words, capsys):
    """A wrong number, place or scenario of practice hosts is refused in one line, exit code 4."""
    assert call(["rehearse", *line.split()]) == 4
    assert words in capsys.readouterr().err


def test_one_practice_host_is_kept_without_a_number():
    """`opslib rehearse --serve` keeps one host, says how to use it, and ends it with the command."""
    command = [sys.executable, "-m", "opslib.cli", "rehearse", "--serve", "--scenario", "port-in-use"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        told = [process.stdout.readline() for _ in range(6)]
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)
    assert (process.returncode, *rest) == (0, "", "")
    assert told[0] == "a practice host, practice-1, label practice\n"
    assert told[1] == "  practice-1: port-in-use\n"
    inventory = Path(told[3].partition("OPSLIB_HOSTS=")[2].strip())
    assert told[5] == "  opslib run deploy -p host=practice-1 -p consent=given\n"
    assert not inventory.exists()
