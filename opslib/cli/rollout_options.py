"""How carefully a rollout goes about it: the options that `rollout` and `rehearse --hosts` share."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from opslib.app.rollout_planning import Care
from opslib.domain.schedule import parse_span

_CARE = (
    click.option("--canary", type=click.IntRange(0), default=1, show_default=True, help="Hosts that go first, alone."),
    click.option("--wave", default="25%", show_default=True, help="Hosts at a time after that: a number or a share."),
    click.option(
        "--max-failures", type=click.IntRange(0), default=0, show_default=True, help="Failed hosts that don't stop it."
    ),
    click.option("--pause", metavar="SPAN", help="Between two waves [5m; on practice hosts 0]."),
    click.option(
        "--min-serving", type=click.IntRange(0), default=0, show_default=True, help="Units that serve all the while."
    ),
    click.option("--workers", type=click.IntRange(1, 64), default=4, show_default=True, help="Runs at once."),
    click.option(
        "--drain", default="5m", show_default=True, metavar="SPAN", help="Time of a unit to work off its requests."
    ),
    click.option("--force-drain", is_flag=True, help="After that stop it all the same."),
)


def care_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How carefully a rollout goes about it."""
    for option in reversed(_CARE):
        command = option(command)
    return command


def care_of(options: Mapping[str, Any]) -> Care:
    """What was chosen; raises BadParameter for what is no time span."""
    pause = options["pause"]
    return Care(
        canary=options["canary"],
        wave=options["wave"],
        max_failures=options["max_failures"],
        pause_s=None if pause is None else parse_span(pause, "--pause"),
        min_serving=options["min_serving"],
        workers=options["workers"],
        drain_s=parse_span(options["drain"], "--drain"),
        is_drain_forced=options["force_drain"],
    )
