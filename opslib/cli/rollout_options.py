"""How carefully a rollout goes about it: the options that `rollout` and `rehearse --hosts` share."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from opslib.app.rollout_planning import Care
from opslib.domain.schedule import parse_span
from opslib.errors import BadParameter

_ANY, _SOME = click.IntRange(0), click.IntRange(1, 64)
_LONGEST_S = 86400  # what nobody waits for is a slip
_CARE = (
    click.option("--canary", type=_ANY, default=1, metavar="N", help="Hosts that go first, alone [1]."),
    click.option("--wave", default="25%", metavar="N|N%", help="Hosts at a time after that [25%]."),
    click.option("--max-failures", type=_ANY, default=0, metavar="N", help="Failures that don't stop it [0]."),
    click.option("--pause", metavar="SPAN", help="Between two waves [5m; on practice hosts 0]."),
    click.option("--min-serving", type=_ANY, default=0, metavar="N", help="Units that serve all the while [0]."),
    click.option("--workers", type=_SOME, default=4, metavar="N", help="Runs at once [4]."),
    click.option("--drain", default="5m", metavar="SPAN", help="Time of a unit to work off its requests [5m]."),
    click.option("--force-drain", is_flag=True, help="After that stop it all the same."),
)
CARE_NAMES = ("canary", "wave", "max_failures", "pause", "min_serving", "workers", "drain", "force_drain")


def care_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How carefully a rollout goes about it."""
    for option in reversed(_CARE):
        command = option(command)
    return command


def care_of(options: Mapping[str, Any]) -> Care:
    """What was chosen; raises BadParameter for what is no time span, or longer than a day."""
    pause = options["pause"]
    return Care(
        canary=options["canary"],
        wave=options["wave"],
        max_failures=options["max_failures"],
        pause_s=None if pause is None else _span(pause, "--pause"),
        min_serving=options["min_serving"],
        workers=options["workers"],
        drain_s=_span(options["drain"], "--drain"),
        is_drain_forced=options["force_drain"],
    )


def _span(text: str, name: str) -> int:
    seconds = parse_span(text, name)
    if seconds > _LONGEST_S:
        raise BadParameter(f"{name} {text}: expected a day at most")
    return seconds
