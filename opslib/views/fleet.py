"""A rollout as a matrix: one row per host, one column per section of its run; the same live and in the file."""

from collections.abc import Callable, Mapping
from html import escape

from opslib.domain.rollout import HostStep, RolloutPlan, wave_words, waves
from opslib.domain.rollout_state import HostProgress, RolloutState
from opslib.domain.states import State
from opslib.views.shown import Shown
from opslib.views.tables import Html, table, text_table
from opslib.views.theme import MUTED, STATE_SYMBOLS, TEXT_COLOURS, badge, headline, note, pending_badge, state_text

# section -> its state; None: it has begun
Reached = Mapping[str, State | None]
Link = Callable[[str], str]

STEP_STATES = {
    HostStep.PASSED: State.OK,
    HostStep.UNDONE: State.OK,
    HostStep.FAILED: State.CRITICAL,
    HostStep.UNKNOWN: State.UNKNOWN,
}
_HOST, _TURN, _STANDS, _SAYS = "host", "turn", "stands", "what it says"
_BEGUN, _NOT_REACHED = "…", "·"
_NARROW = "margin:0 -7px"  # a column of marks: a cell has 10 pixels at each side
_UPRIGHT = f"{_NARROW};writing-mode:vertical-rl;transform:rotate(180deg);font-weight:normal;white-space:nowrap"
_WORDS = "min-width:12rem;white-space:normal;overflow-wrap:anywhere"  # what a host says stays readable


def fleet_panel(state: RolloutState, reached: Mapping[str, Reached], link: Link) -> Shown:
    """Where each host stands, how far its run has come, what it says; `link` leads to a host's record by its name."""
    names = list(dict.fromkeys(name for sections in reached.values() for name in sections))
    first, text_first = _headline(state)
    upright = [Html(f'<span style="{_UPRIGHT}">{escape(name)}</span>') for name in names]
    rows, text_rows = [], []
    for progress in state.hosts:
        turn, says, sections = _turn(state, progress), progress.text or None, reached.get(progress.host, {})
        said = Html(f'<div style="{_WORDS}">{escape(says)}</div>') if says else None
        marks = [_mark(name, sections[name]) if name in sections else _none() for name in names]
        signs = "".join(_sign(sections[name]) if name in sections else _NOT_REACHED for name in names)
        rows.append((_name(progress, link), turn, _stands(progress), *marks, said))
        text_rows.append((progress.host, turn, _stands_text(progress), signs or None, says))
    text = [text_first, "", text_table(text_rows, (_HOST, _TURN, _STANDS, "sections", _SAYS))]
    text += [f"sections: {', '.join(names)}"] if names else []
    return Shown(first + table(rows, (_HOST, _TURN, _STANDS, *upright, _SAYS)), "\n".join(text))


def fleet_plan_panel(state: RolloutState) -> Shown:
    """Who has its turn when, before anything is done, and how carefully."""
    plan, groups = state.plan, waves(state.plan)
    named = [(wave_words(number, len(groups)), group) for number, group in enumerate(groups) if group]
    rows = [(turn, str(len(group)), ", ".join(group)) for turn, group in named]
    columns = ("turn", "hosts", "who")
    sentence = f"{plan.runbook} on {len(state.hosts)} hosts"
    care = care_words(plan)
    html = headline(State.OK, sentence) + table(rows, columns) + note(care)
    return Shown(html, "\n".join([f"{state_text(State.OK)}  {sentence}", "", text_table(rows, columns), care]))


def care_words(plan: RolloutPlan) -> str:
    """How carefully, in one sentence."""
    parts = [f"{plan.max_failures} failures allowed, none on a canary"]
    parts += [f"a pause of {plan.pause_s} s between two waves"] if plan.pause_s else []
    parts += [f"at least {plan.min_serving} units serve at any time"] if plan.min_serving else []
    parts += ["a unit is drained before it is replaced"] if plan.is_write else ["nothing is changed there"]
    return f"{'; '.join(parts)}; {plan.workers} runs at once."


def fleet_hosts_panel(state: RolloutState, link: Link, joined: str) -> Shown:
    """How each host came out, each with the way to its record; `joined` leads to the rollout's own page."""
    rows, text_rows = [], []
    for progress in state.hosts:
        record = progress.record
        way = Html(f'<a href="{escape(link(record))}">{escape(record)}</a>') if record else None
        rows.append((progress.host, _stands(progress), progress.text or None, way))
        text_rows.append((progress.host, _stands_text(progress), progress.text or None, record or None))
    columns = (_HOST, _STANDS, _SAYS, "record")
    first, text_first = _headline(state)
    html = first + table(rows, columns) + f'<p>All of it on one page: <a href="{escape(joined)}">the rollout</a></p>'
    return Shown(html, "\n".join([text_first, "", text_table(text_rows, columns)]))


def _headline(state: RolloutState) -> tuple[str, str]:
    """The outcome's sentence, or how far it has come."""
    if state.outcome is not None:
        return headline(state.outcome.state, state.outcome.reason), (
            f"{state_text(state.outcome.state)}  {state.outcome.reason}"
        )
    said = progress_words(state)
    return f'<p style="margin:4px 0">{pending_badge(state.phase)} {escape(said)}</p>', f"… {state.phase}  {said}"


def progress_words(state: RolloutState) -> str:
    """How many hosts have passed, which wave it is, and what was asked of it."""
    n_waves = len(waves(state.plan))
    parts = [f"{state.plan.runbook}: {len(state.at(HostStep.PASSED))} of {len(state.hosts)} hosts passed"]
    parts += [wave_words(state.wave, n_waves)] if state.wave is not None else []
    parts += [f"{len(state.failures)} failed"] if state.failures else []
    parts += [f"asked: {state.asked}"] if state.asked else []
    return ", ".join(parts)


def _turn(state: RolloutState, progress: HostProgress) -> str:
    return wave_words(progress.wave, len(waves(state.plan))).partition(" of ")[0]


def _name(progress: HostProgress, link: Link) -> object:
    """The host, as a link to the record of its newest run."""
    if not progress.record:
        return progress.host
    return Html(f'<a href="{escape(link(progress.record))}">{escape(progress.host)}</a>')


def _stands(progress: HostProgress) -> Html:
    state, word = _state_of(progress), progress.step.value
    return Html(pending_badge(word, sign=_sign_of(progress)) if state is None else badge(state, word))


def _stands_text(progress: HostProgress) -> str:
    state, word = _state_of(progress), progress.step.value
    return f"{_sign_of(progress)}{word}" if state is None else f"{STATE_SYMBOLS[state]} {word}"


def _sign_of(progress: HostProgress) -> str:
    """What stands before a step that has no state: nothing is going on where nothing was done."""
    return "" if progress.step is HostStep.UNTOUCHED else f"{_BEGUN} "


def _state_of(progress: HostProgress) -> State | None:
    """The state that a step is coloured by; a host that passed with a warning shows it."""
    found = STEP_STATES.get(progress.step)
    return progress.state if progress.step is HostStep.PASSED and progress.state is not None else found


def _mark(name: str, state: State | None) -> Html:
    """One section of one host: a shape in its state's colour, and the word for who hovers or hears."""
    colour, sign, word = (
        (MUTED, _BEGUN, "has begun") if state is None else (TEXT_COLOURS[state], STATE_SYMBOLS[state], state.value)
    )
    said = escape(f"{name}: {word}")
    return Html(f'<span style="{_NARROW};color:{colour};font-weight:700" title="{said}">{sign}</span>')


def _none() -> Html:
    return Html(f'<span style="{_NARROW};color:{MUTED}">{_NOT_REACHED}</span>')


def _sign(state: State | None) -> str:
    return _BEGUN if state is None else STATE_SYMBOLS[state]
