"""`opslib runs`: bare it lists, with a command it looks at some of the records."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from opslib.cli.main import call
from opslib.cli.runs import SUBCOMMANDS
from opslib.domain.parameters import validate_parameters
from opslib.domain.record import new_record
from opslib.domain.states import Outcome, State
from opslib.records.folder import RunFolder
from tests.domain.run_records import lay_down

START = datetime(2026, 11, 29, 12, tzinfo=UTC)


@pytest.fixture
def runs_dir(tmp_path):
    for minutes, (host, state) in enumerate([("gpu-a", State.CRITICAL), ("gpu-b", State.OK)]):
        started_at = START + timedelta(minutes=minutes)
        parameters = validate_parameters("30-launch", {"host": host, "ticket": "INC-7"})
        folder = RunFolder.create(tmp_path, host, "vllm-minimax", "30-launch", started_at)
        record = new_record("30-launch", parameters, started_at=started_at)
        folder.write_record(record.finished(Outcome(state=state, reason="it is so"), started_at))
    return tmp_path


@pytest.mark.parametrize("command", SUBCOMMANDS)
def test_each_command_has_help(command, capsys):
    """Each command in the table is there and says what it does."""
    assert call(["runs", command, "--help"]) == 0
    assert f"opslib runs {command}" in capsys.readouterr().out


def test_bare_it_lists(runs_dir, capsys):
    """Without a command all records are listed."""
    assert call(["runs", "--runs-dir", str(runs_dir), "--json"]) == 0
    assert [entry["host"] for entry in json.loads(capsys.readouterr().out)["records"]] == ["gpu-b", "gpu-a"]


@pytest.mark.parametrize("where", ["before", "after"])
def test_options_stand_before_or_after_the_command(runs_dir, where, capsys):
    """Where the records are may be said before the command's name or after it."""
    place = ["--runs-dir", str(runs_dir), "--json"]
    arguments = [*place, "show", "last~1"] if where == "before" else ["show", "last~1", *place]
    assert call(["runs", *arguments]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["host"], shown["ticket"]) == ("gpu-a", "INC-7")


def test_inside_a_record_names_mean_records(runs_dir, capsys, monkeypatch):
    """Also where the shell stands in a record folder, `last` is the newest and a file's path means its record."""
    older = min(path for path in runs_dir.iterdir() if path.is_dir())
    monkeypatch.chdir(older)
    shown = []
    for name in ("last", "record.json", "."):
        assert call(["runs", "show", name, "--runs-dir", str(runs_dir), "--json"]) == 0
        shown.append(json.loads(capsys.readouterr().out)["host"])
    assert shown == ["gpu-b", "gpu-a", "gpu-a"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("last~2", "last~2: there are 2 records"),
        ("30-launch", "'30-launch' is a part of 2 records' names"),
        ("30-launch", "Next: say more of the name"),
        ("nothing", "no record 'nothing'"),
    ],
)
def test_a_record_that_is_not_there_is_refused(runs_dir, name, sentence, capsys):
    """A name that means no record, or several, is exit code 4 and one line."""
    assert call(["runs", "show", name, "--runs-dir", str(runs_dir)]) == 4
    assert sentence in capsys.readouterr().err


def test_a_misspelt_command_offers_the_nearest(capsys):
    """A misspelt command is refused with the nearest name."""
    assert call(["runs", "shwo"]) == 4
    assert "no command 'shwo'; did you mean show?" in capsys.readouterr().err


@pytest.fixture
def story(tmp_path):
    """The records of an incident: a deploy that crashed, and one that was cured."""
    return lay_down(tmp_path)


LOOKS = {
    "list": ["--ticket", "INC-7"],
    "show": ["show", "last"],
    "brief": ["show", "last", "--brief"],
    "diff": ["diff", "last~1", "last"],
    "timeline": ["timeline", "--ticket", "INC-7"],
}


@pytest.mark.parametrize("look", LOOKS)
def test_it_fits_a_terminal(story, look, capsys):
    """Nothing that is shown is wider than a hundred columns."""
    assert call(["runs", "--runs-dir", str(story), *LOOKS[look]]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if str(story) not in line]
    assert lines
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("look", [*LOOKS, "incident"])
def test_json_is_one_document(story, look, capsys):
    """With --json standard output is one JSON document, whatever is asked."""
    arguments = LOOKS.get(look, ["incident", "--ticket", "INC-7"])
    assert call(["runs", *arguments, "--runs-dir", str(story), "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)


def test_the_list_is_short_unless_all_is_asked(story, capsys):
    """The newest are listed, and how many more there are is told beside them."""
    assert call(["runs", "--runs-dir", str(story), "-n", "1"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert "1 of 2 records" in said.err
    assert call(["runs", "--runs-dir", str(story), "-n", "1", "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_a_timeline_of_everything_is_not_asked_by_chance(story, capsys):
    """Without a ticket, names or any filter nothing is put together."""
    assert call(["runs", "timeline", "--runs-dir", str(story)]) == 4
    assert "say which records" in capsys.readouterr().err


def test_a_draft_is_markdown(story, capsys):
    """`runs incident` prints the draft, headings and all."""
    assert call(["runs", "incident", "--ticket", "INC-7", "--runs-dir", str(story)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("# INC-7: vllm on gpu-a")
    assert "--max-num-seqs 256 cured gpu-memory/sampler-warmup" in told
