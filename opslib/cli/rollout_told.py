"""What `opslib rollout` says: the waves, what a dry run found, how it ended; as lines or as one JSON document."""

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from opslib.app.rollout import RolloutEnd
from opslib.app.rollout_dry import DryHost
from opslib.app.rollout_record import how_to_go_on
from opslib.cli.rollout_screen import RolloutScreen
from opslib.cli.showing import show
from opslib.cli.story import badge_text, plain_table
from opslib.domain.rollout import RolloutPlan, wave_words, waves
from opslib.domain.states import State, worst
from opslib.records.folder import HTML_FILE

_DRY = "dry run, nothing was changed: "
_MOST_NAMED = 3  # records of hosts that did not pass
_NARROWEST = 40  # columns for what a dry run said


def tell_plan(screen: RolloutScreen, plan: RolloutPlan) -> None:
    """The waves, and how carefully."""
    screen.say(f"{plan.runbook} over {len(plan.hosts)} hosts, {plan.unit}", "bold")
    groups = waves(plan)
    for number, group in enumerate(groups):
        if group:
            screen.say(f"  {wave_words(number, len(groups)):<12}  {', '.join(group)}")
    pause = f"a pause of {plan.pause_s} s between waves, " if plan.pause_s else ""
    serving = f"at least {plan.min_serving} units serve, " if plan.min_serving else ""
    screen.say(f"  {pause}{serving}{plan.max_failures} failures allowed, {plan.workers} runs at once", "dim")


def tell_end(screen: RolloutScreen, end: RolloutEnd, *, as_json: bool, can_go_on: bool = True) -> int:
    """The outcome and how to go on, as lines or as one JSON document; returns the exit code."""
    code = end.outcome.state.exit_code
    commands = how_to_go_on(end.folder, end.state) if can_go_on else {}
    if as_json:
        show(json.dumps(_document(end, commands), ensure_ascii=False))
        return code
    page = end.folder / HTML_FILE
    screen.say()
    screen.say(f"{badge_text(end.outcome.state.value)}  {end.outcome.reason}", "bold")
    screen.say(f"record  {end.folder}")
    if page.is_file():
        screen.say(f"read    {page.as_uri()}")
    _tell_why(screen, [progress.record for progress in end.state.failures])
    for what, command in commands.items():
        screen.say(f"{what:<6}  {command}")
    return code


def _tell_why(screen: RolloutScreen, records: list[str]) -> None:
    """How to read what the runs of the hosts that did not pass say; of many, the first."""
    for record in [record for record in records if record][:_MOST_NAMED]:
        screen.say(f"why     opslib runs show {record}")


def _document(end: RolloutEnd, commands: dict[str, str]) -> dict[str, Any]:
    state = end.state
    begun, ended = state.plan.begun_at, state.ended_at or state.plan.begun_at
    fields = {"host", "wave", "step", "state", "text", "record", "records"}
    return {
        "rollout": str(end.folder),
        "runbook": state.plan.runbook,
        "outcome": end.outcome.model_dump(mode="json"),
        "hosts": [progress.model_dump(mode="json", include=fields) for progress in state.hosts],
        "untouched": list(state.untouched),
        "next": commands,
        "begun_at": begun.isoformat(),
        "duration_s": round((ended - begun).total_seconds(), 3),
        "exit_code": end.outcome.state.exit_code,
    }


def tell_dry_run(screen: RolloutScreen, plan: RolloutPlan, found: Sequence[DryHost], *, as_json: bool) -> int:
    """What each host's run would do, as a table or as one JSON document; returns the exit code."""
    state = worst(host.state for host in found)
    if as_json:
        groups = [list(group) for group in waves(plan)]
        document = {"runbook": plan.runbook, "waves": groups, "hosts": [_dry_facts(host) for host in found]}
        show(json.dumps({**document, "is_dry_run": True, "exit_code": state.exit_code}, ensure_ascii=False))
        return state.exit_code
    rows = [[host.host, host.stands, badge_text(host.state.value), host.text] for host in found]
    screen.say()
    for line in _dry_lines(rows, screen.console.width if screen.console.is_terminal else None):
        screen.say(line)
    counts = Counter(host.state for host in found)
    said = ", ".join(f"{counts[each]} {each}" for each in sorted(counts, key=lambda each: each.exit_code, reverse=True))
    screen.say()
    n_hosts = "1 host" if len(found) == 1 else f"{len(found)} hosts"
    screen.say(f"{badge_text(state.value)}  dry run on {n_hosts}: {said}; nothing was changed", "bold")
    _tell_why(screen, [host.record for host in found if host.state is not State.OK])
    return state.exit_code


def _dry_lines(rows: list[list[str]], width: int | None) -> Iterator[str]:
    """The table; on a terminal what a run would do goes on below itself, or below its host where that is too narrow."""
    head = plain_table(("host", "its unit now", "dry run"), [row[:3] for row in rows])
    indent = max(map(len, head)) + 2
    for line, words in zip(head, ["what its run would do", *(row[3].removeprefix(_DRY) for row in rows)], strict=True):
        if width is None:
            yield f"{line:<{indent}}{words}"
        elif width - indent >= _NARROWEST:
            yield from textwrap.wrap(words, width, initial_indent=f"{line:<{indent}}", subsequent_indent=" " * indent)
        else:
            yield line
            yield from textwrap.wrap(words, width, initial_indent="    ", subsequent_indent="    ")


def _dry_facts(host: DryHost) -> dict[str, Any]:
    return {"host": host.host, "stands": host.stands, "state": host.state, "text": host.text, "record": host.record}
