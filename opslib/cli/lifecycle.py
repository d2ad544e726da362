"""`opslib start`, `stop`, `restart` and `drain`: a unit's life, each verb proved by asking again."""

import json
from collections.abc import Callable

import click

from opslib.cli.acting import agree, at_work, bound, tell
from opslib.cli.numbers import Number
from opslib.cli.options import json_option, yes_option
from opslib.cli.showing import show
from opslib.cli.story import badge_text
from opslib.domain.host import Host
from opslib.domain.lifecycle import LifecycleReport, Verb
from opslib.workflow import lifecycle

_ready_option = click.option(
    "--ready-timeout", "ready_s", type=Number(1, 86400), default=900.0, show_default=True, metavar="SECONDS"
)
_release_option = click.option(
    "--release-timeout", "release_s", type=Number(0, 3600), default=60.0, show_default=True, metavar="SECONDS"
)


@click.command("start")
@click.argument("host")
@click.argument("unit")
@_ready_option
@yes_option
@json_option
def start_command(host: str, unit: str, ready_s: float, *, is_yes: bool, as_json: bool) -> int:
    """Start UNIT on HOST and wait until it answers; a start limit that was hit is cleared by a step of its own.

    Exit code 0: it answers; 2: it failed, or did not answer in time; 3: could not find out; 4: refused.
    """
    return _act(
        host,
        unit,
        "start",
        is_yes=is_yes,
        as_json=as_json,
        act=lambda at: lifecycle.start(at, unit, ready_s=ready_s, tell=tell),
    )


@click.command("restart")
@click.argument("host")
@click.argument("unit")
@_ready_option
@yes_option
@json_option
def restart_command(host: str, unit: str, ready_s: float, *, is_yes: bool, as_json: bool) -> int:
    """Restart UNIT on HOST; done when the answering process is of the new invocation and has the unit's own flags.

    Exit code 0: it answers; 2: it failed, or did not answer in time; 3: could not find out; 4: refused.
    """
    return _act(
        host,
        unit,
        "restart",
        is_yes=is_yes,
        as_json=as_json,
        act=lambda at: lifecycle.restart(at, unit, ready_s=ready_s, tell=tell),
    )


@click.command("stop")
@click.argument("host")
@click.argument("unit")
@_release_option
@yes_option
@json_option
def stop_command(host: str, unit: str, release_s: float, *, is_yes: bool, as_json: bool) -> int:
    """Stop UNIT on HOST; done when its GPU memory is really released.

    Exit code 0: stopped and released; 2: it still runs, or holds memory; 3: could not find out; 4: refused.
    """
    return _act(
        host,
        unit,
        "stop",
        is_yes=is_yes,
        as_json=as_json,
        act=lambda at: lifecycle.stop(at, unit, release_s=release_s, tell=tell),
    )


@click.command("drain")
@click.argument("host")
@click.argument("unit")
@click.option("--deadline", "drain_s", type=Number(0, 86400), default=300.0, show_default=True, metavar="SECONDS")
@click.option("--force", "is_forced", is_flag=True, help="At the deadline stop it all the same.")
@_release_option
@yes_option
@json_option
def drain_command(
    host: str, unit: str, drain_s: float, release_s: float, *, is_forced: bool, is_yes: bool, as_json: bool
) -> int:
    """Wait until UNIT on HOST works on no request, then stop it.

    vLLM can't be told to accept no more: take it out of your load balancer first. Exit code 1, and nothing stopped,
    where requests still run at the deadline.
    """

    def act(at: Host) -> LifecycleReport:
        return lifecycle.drain(at, unit, drain_s=drain_s, is_forced=is_forced, release_s=release_s, tell=tell)

    return _act(host, unit, "drain", is_yes=is_yes, as_json=as_json, drain_s=drain_s, act=act)


def _act(
    alias: str,
    unit: str,
    verb: Verb,
    *,
    is_yes: bool,
    as_json: bool,
    act: Callable[[Host], LifecycleReport],
    drain_s: float = 0.0,
) -> int:
    with bound(alias) as host:
        agree(host, [lifecycle.plan(host, unit, verb, drain_s=drain_s)], is_yes=is_yes)
        with at_work(host, unit, verb):
            report = act(host)
    return tell_report(report, as_json=as_json)


def tell_report(report: LifecycleReport, *, as_json: bool) -> int:
    """The sentence and the checks, or one JSON document; the exit code is the report's state."""
    if as_json:
        show(json.dumps(report.model_dump(mode="json"), ensure_ascii=False))
    else:
        show(f"{badge_text(report.state.value)}  {report.host}: {report.summary}")
        show("".join(f"  {badge_text(check.state.value)}  {check.summary}\n" for check in report.checks), end="")
    return report.state.exit_code
