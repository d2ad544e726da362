"""A post-mortem's draft holds what the records say, and nothing else."""

from datetime import timedelta

from opslib.domain.run_facts import KeptRun
from opslib.domain.run_incident import incident
from opslib.domain.states import Outcome, State
from opslib.views.incident import incident_markdown, incident_panel
from tests.domain.run_records import CAUSE, at, cured_run, diagnosis, failed_run, record, section, snapshot


def came_up(*flags: str) -> KeptRun:
    """A later deploy that came up without a remedy by the kit."""
    value = {"state": "ready", "timeline": [{"at_s": 1}], "snapshot": snapshot(*flags)}
    return KeptRun(name="20261129T122000Z-gpu-a", record=record(1200, section("launch", State.OK, 1201, value=value)))


def test_the_whole_story():
    """Impact from the first death (the host's clock corrected) to the answer, the gap, the cause, the cure."""
    told = incident("INC-7", [cured_run(), failed_run()])
    (impact,) = told.impacts
    assert (impact.began.at, impact.ended.at) == (at(5.5), at(685))
    assert (impact.ended.file, impact.ended.line) == ("events.jsonl", 2)
    assert impact.lasted == timedelta(seconds=679.5)
    assert told.detection_gap_s == 2.0
    assert [found.text.partition(" ")[0] for found in told.causes] == [CAUSE]
    assert [found.text for found in told.cures] == [f"--max-num-seqs 256 cured {CAUSE}"]
    assert [found.text.partition(" ")[0] for found in told.tried] == [
        "launch",
        "remedy",
        "launch",
        "remedy",
        "relaunch",
    ]
    assert told.runs == (failed_run().name, cured_run().name)


def test_what_is_not_over_stays_open():
    """A unit that no record shows answering after its death is not said to serve, and the question is asked."""
    told = incident("INC-7", [failed_run()])
    assert told.impacts[0].ended is None
    assert told.cures == ()
    assert "Does vllm on gpu-a serve again?" in told.open_questions[0]
    assert any(question.startswith("Could not be had: kernel: no right") for question in told.open_questions)
    assert "until unknown" in incident_markdown(told)


def test_nothing_known_is_unknown():
    """Records that tell neither death nor cause make a draft of which every part says unknown."""
    told = incident("INC-7", [KeptRun(name="r", record=record(0))])
    assert (told.impacts, told.detected, told.detection_gap_s, told.causes, told.cures) == ((), None, None, (), ())
    draft = incident_markdown(told)
    assert draft.count("- unknown") == 5
    assert "Why did it happen? No record names a cause." in draft


def test_a_cure_outside_the_kit_is_a_difference_of_flags():
    """Where the unit came up in a later run without a remedy, only what differs is said."""
    (cure,) = incident("INC-7", [failed_run(), came_up("--max-num-seqs", "256")]).cures
    assert cure.text == "came up without a remedy by this kit; flags that differ: --max-num-seqs absent -> 256"
    (cure,) = incident("INC-7", [failed_run(), came_up()]).cures
    assert cure.text.endswith("no flag differs that both records know")


def test_a_death_found_by_systemd():
    """An investigation that came later knows the death from systemd; the gap lasts until it was begun."""
    properties = '{"exec_main_exit_at": "2026-11-29T12:02:59Z", "result": "exit-code", "n_restarts": 3}'  # host's clock
    verdict = section("investigate", State.CRITICAL, 61, value={"diagnosis": diagnosis("low")})
    said = record(60, verdict, runbook="40-investigate-crash", state=State.CRITICAL)
    run = KeptRun(name="r", record=said, files={"evidence/x/unit-properties.json": properties})
    told = incident("INC-7", [run])
    assert told.impacts[0].began.at == at(0)
    assert "systemd started it again 3 times by itself" in incident_markdown(told)
    assert (told.detection_gap_s, told.detected.text) == (60.0, "40-investigate-crash was begun")
    assert any("The verdict's confidence is low" in question for question in told.open_questions)


def test_runs_without_an_end_are_questions():
    """A run that was interrupted, one that could not find out, and one that goes on, are asked about."""
    broken = record(0, status="interrupted", outcome=Outcome(state=State.UNKNOWN, reason="by SIGKILL"))
    unknown = record(30, state=State.UNKNOWN)
    going = record(60, status="running", outcome=None, ended_at=None)
    runs = [KeptRun(name=name, record=said) for name, said in (("a", broken), ("b", unknown), ("c", going))]
    told = incident("INC-7", runs)
    assert "a came to no end of its own (interrupted): what did it leave?" in told.open_questions
    assert "b could not find out: it ended so" in told.open_questions
    assert "c has not ended yet" in told.open_questions


def test_what_a_log_says_is_no_markup():
    """Text from a host can't make headings, links or tags in the draft."""
    run = failed_run()
    evil = run.record.sections[0].model_copy(update={"summary": "# <b>x</b> [a](http://b) |\n# y"})
    sections = (evil, *run.record.sections[1:])
    told = incident("INC-7", [run.model_copy(update={"record": run.record.model_copy(update={"sections": sections})})])
    line = next(line for line in incident_markdown(told).splitlines() if "launch" in line)
    assert r"\# \<b\>x\</b\> \[a\](http://b) \| \# y" in line
    shown = incident_panel(told, lambda record, file: f"{record}/{file}").html
    assert "# &lt;b&gt;x&lt;/b&gt; [a](http://b) | # y" in shown
    assert f'<a href="{run.name}/record.json">record 1</a>' in shown
