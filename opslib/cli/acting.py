"""What every verb that changes a host shares: the change is shown, consented to, and done under the unit's lock."""

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import click

from opslib.app.binding import check_alias, open_bound_host
from opslib.cli.showing import show, silence
from opslib.domain.host import Host
from opslib.domain.lock import LockHolder
from opslib.domain.plans import Plan
from opslib.errors import ConsentMissing, CouldNotFindOut
from opslib.records.operator import login_name
from opslib.workflow.lock import hold_lock


@contextmanager
def bound(alias: str) -> Iterator[Host]:
    """The host behind an alias, closed at the end; raises UnknownName before anything is contacted."""
    check_alias(alias)
    opened = open_bound_host(alias)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def at_work(host: Host, unit: str, verb: str) -> Iterator[None]:
    """The unit's lock on its host while the verb changes it; raises LockHeld, naming who has it."""
    holder = LockHolder(
        user=login_name(),
        controller=socket.gethostname(),
        process_id=os.getpid(),
        runbook=verb,
        since=datetime.now(UTC),
    )
    try:
        with hold_lock(host, unit, holder, on_change=tell):
            yield
    except KeyboardInterrupt as error:
        hint = f"opslib status {host.settings.alias} {unit}"
        raise CouldNotFindOut(
            f"{verb} was ended{_by(error)}; what was begun on the host goes on", host=host.settings.alias, hint=hint
        ) from error


def _by(error: KeyboardInterrupt) -> str:
    return f" by {error}" if str(error) else " by the operator"


def agree(host: Host, plans: Sequence[Plan], *, is_yes: bool) -> None:
    """Show what would be done, and ask; raises ConsentMissing where nobody agrees or nobody is there to ask."""
    for plan in plans:
        tell(f"{host.settings.alias}: {plan.title}")
        for number, step in enumerate(plan.steps, 1):
            command = f"  [{' '.join(step.command)}]" if step.command else ""
            tell(f"  {number}. {step.title}{command}")
        if diff := plan.shown_diff:
            tell(diff.rstrip("\n"))
    if is_yes or host.settings.is_rehearsal or not any(plan.steps for plan in plans):
        return
    if not sys.stdin.isatty():
        raise ConsentMissing("nobody is there to ask", host=host.settings.alias, hint="pass --yes to do what is shown")
    if not click.confirm(f"Do this on {host.settings.alias}?", err=True):
        raise ConsentMissing("the operator did not consent", host=host.settings.alias)


def tell(text: str) -> None:
    """One line of progress, on standard error; a change goes on where nobody reads it."""
    try:
        show(text, file=sys.stderr)
    except (BrokenPipeError, CouldNotFindOut):
        silence(sys.stderr)
