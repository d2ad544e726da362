"""The first and the last section of every runbook: who answers, and how it ended."""

from datetime import UTC, datetime

from opslib.app.drill import is_drill
from opslib.app.learning import learn_host_secrets
from opslib.app.run import Run, SectionResult
from opslib.app.section import Answer, section
from opslib.domain.states import Outcome, State
from opslib.domain.survey_checks import clock_between
from opslib.views.panels import answer_panel
from opslib.views.shown import Shown
from opslib.views.theme import note
from opslib.workflow.facts import gather_identity


@section("identify")
def identify(run: Run) -> Answer:
    """Who answers under this alias, before anything else is asked."""
    asked_at = datetime.now(UTC)
    who = gather_identity(run.host)
    learn_host_secrets(run)
    clock = clock_between(asked_at, who.asked_at, datetime.now(UTC))
    run.answers["identity"] = who
    run.record = run.record.model_copy(update={"answered": who.model_dump(mode="json"), "clock": clock})
    rehearsal = " (the rehearsal host)" if run.host.settings.is_rehearsal else ""
    summary = f"{who.user}@{who.hostname}{rehearsal} answers"
    rows = [
        ("hostname", who.hostname),
        ("login", who.user),
        ("boot id", who.boot_id),
        ("kernel", who.kernel),
        ("Python", who.python_version),
    ]
    result = SectionResult(state=State.OK, summary=summary, value=who.model_dump(mode="json"))
    return result, answer_panel(run.alias, State.OK, summary, rows=rows, columns=("asked", "answer"))


def outcome(run: Run) -> Shown:
    """How the run ended: each section's state, the outcome with its reason, and where the record lies."""
    verdict = run.judge()
    run.finish(verdict)
    rows = [(entry.name, entry.state) for entry in run.record.sections]
    shown = answer_panel(run.alias, verdict.state, verdict.reason, rows=rows, columns=("section", "state"))
    for line in what_is_left(run, verdict):
        shown = Shown(shown.html + note(line), f"{shown.text}\n{line}")
        run.tell("line", line, section="outcome")
    record = f"Record: runs/{run.folder.path.name}"
    if is_drill(run.alias):
        record += f". What this drill was: opslib drill --reveal {run.alias.partition(':')[2]}"
    return Shown(shown.html + f"<p>{record}</p>", f"{shown.text}\n{record}")


def what_is_left(run: Run, verdict: Outcome) -> list[str]:
    """What a run that changed the host leaves there, and how an operator stops, keeps and undoes it, line by line."""
    undo: list[str] = run.answers.get("undo", [])
    if not undo:
        return []
    if run.host.settings.is_rehearsal:
        return ["Nothing has to be undone: a practice host is gone, and all that was changed on it, when this ends."]
    stop = f"sudo systemctl stop {run.parameters.unit}"
    left = f"Not started after a reboot: sudo systemctl enable {run.parameters.unit} changes that."
    if verdict.state is not State.OK:
        left = f"{run.parameters.unit} stays installed, and systemd may start it again: {stop}"
    last = dict.fromkeys(reversed(undo))  # each command once, a daemon-reload after all others
    return [left, "Undo everything:", *" &&\n".join([stop, *reversed(last)]).splitlines()]
