"""A drill: the same scenario without its name, and the answer only at the end."""

import json
import re

import pytest

from opslib.app import drill as drills
from opslib.app.binding import check_alias, scenario_of
from opslib.app.headless import run_headless
from opslib.cli.main import call
from opslib.errors import Refused, UnknownName


@pytest.fixture(autouse=True)
def runs_dir(tmp_path, monkeypatch):
    """Records and drills of this test alone."""
    monkeypatch.setenv("OPSLIB_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def test_a_drill_names_its_scenario_nowhere(runs_dir):
    """Neither alias, nor notebook, nor the drill's own file gives it away; the kit finds it all the same."""
    drill = drills.begin_drill("host-oom-killed")
    told = drill.alias + drill.notebook.read_text() + (runs_dir / f"drills/{drill.name}.json").read_text()
    assert not re.search(r"\boom\b|host-oom", told)
    assert scenario_of(drill.alias) == "host-oom-killed"
    check_alias(drill.alias)
    with pytest.raises(UnknownName):
        check_alias("rehearsal:drill-0000x")


def test_a_torn_drill_hides_no_other(runs_dir):
    """A file that a kill or a full disk left half-written is no drill, and no fault."""
    drill = drills.begin_drill("host-oom-killed")
    for name, content in (("drill-torn", b'{"name"'), ("drill-empty", b""), ("drill-odd", b"\xff")):
        (runs_dir / f"drills/{name}.json").write_bytes(content)
    assert drills.list_drills() == [drill]


def test_the_notebook_has_what_the_scenario_needs():
    """The copy runs as it stands: the drill's host, and the parameters without which the scenario wouldn't happen."""
    text = drills.begin_drill("gpu-memory-held").notebook.read_text()
    assert "gpu_wait_s = 3" in text
    assert 'host = \\"rehearsal:drill-' in text


def test_a_random_drill_may_be_any_scenario():
    """Of all scenarios one is chosen; the newest drill is the one that is asked for."""
    drill = drills.begin_drill(choose=lambda names: names[3])
    assert drill.scenario in drills.list_scenarios()
    assert drills.find_drill() == drill
    with pytest.raises(UnknownName):
        drills.begin_drill("no-such-thing")


def test_the_answer_comes_when_the_run_is_over(runs_dir, capsys):
    """Before an outcome the answer is refused; afterwards it stands beside what the run came to."""
    drill = drills.begin_drill("bad-flag")
    with pytest.raises(Refused, match="not over"):
        drills.reveal(drill)
    assert call(["drill", "--reveal"]) == 4
    assert "bad-flag" in "".join(drills.reveal(drill, is_given_up=True))
    given = {"host": drill.alias, "extra_args": ["--enable-expert-paralel"]}
    result = run_headless("90-deploy", given, runs_dir=runs_dir)
    record = (result.folder / "record.json").read_text()
    assert result.exit_code == 2
    assert "bad-flag" not in record + (result.folder / "notebook.ipynb").read_text()
    assert f"opslib drill --reveal {drill.name}" in (result.folder / "notebook.ipynb").read_text()
    capsys.readouterr()
    assert call(["drill", "--reveal", drill.name]) == 0
    told = capsys.readouterr().out
    assert f"{drill.name} was bad-flag" in told
    assert "your run: critical (exit 2), cause configuration/bad-argument" in told


def test_it_opens_in_jupyterlab_and_keeps_its_record():
    """JupyterLab serves the directory of the records, opens the drill's copy, and each save is kept as a record."""
    drill = drills.begin_drill("healthy")
    command = drills.lab_command(drill)
    assert command[-1] == str(drill.notebook)
    assert any("opslib.app.keeping" in word for word in command)


def test_the_command_wants_one_scenario_or_any(capsys):
    """Neither nothing nor both; made without JupyterLab it says where the notebook is."""
    assert call(["drill"]) == 4
    assert call(["drill", "healthy", "--random"]) == 4
    assert call(["drill", "--random", "--no-lab"]) == 0
    assert "rehearsal:drill-" in capsys.readouterr().out


def test_scenarios_are_listed_with_their_ends(capsys):
    """`opslib rehearse --list` is the table of all scenarios, for reading and as JSON."""
    assert call(["rehearse", "--list"]) == 0
    assert "gpu-hardware/fell-off-bus" in capsys.readouterr().out
    assert call(["rehearse", "--list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["scenarios"]) >= 18
