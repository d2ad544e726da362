"""`opslib check`: a monitoring plugin that asks a unit for one real token."""

import click

from opslib.app.binding import check_alias, open_bound_host
from opslib.cli.numbers import Number
from opslib.cli.showing import show
from opslib.domain.states import State
from opslib.errors import OpslibError
from opslib.workflow.survey import UnitCheck, check_unit

_WORDS = {State.OK: "OK", State.WARNING: "WARNING", State.CRITICAL: "CRITICAL", State.UNKNOWN: "UNKNOWN"}


@click.command("check")
@click.argument("host")
@click.argument("unit")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the engine [what its command line says].")
@click.option("--deadline", "deadline_s", type=Number(0.1, 3600), default=10.0, show_default=True)
def check_command(host: str, unit: str, port: int | None, deadline_s: float) -> int:
    """Ask UNIT on HOST for one real token; one line as monitoring plugins print it.

    Exit code 0 OK, 1 WARNING (restarted, starting), 2 CRITICAL (down, or no token in time), 3 UNKNOWN.
    """
    try:
        check_alias(host)
        opened = open_bound_host(host)
        try:
            check = check_unit(opened, unit, port=port, deadline_s=deadline_s)
        finally:
            opened.close()
    except OpslibError as error:
        hint = f"; next: {error.hint}" if error.hint else ""
        show(f"UNKNOWN - {_plain(f'{host}: {error.message}{hint}')}")
        return State.UNKNOWN.exit_code
    show(plugin_line(host, check))
    return check.state.exit_code


def plugin_line(host: str, check: UnitCheck) -> str:
    """The line that a monitoring system reads: state, words, and after "|" the figures.

    Source: Monitoring Plugins Development Guidelines, "Plugin output" and "Performance data".
    """
    words, figures = [check.unit.summary], []
    if check.token:
        words.append(check.token.summary)
        figures += [f"ttft={check.token.ttft_ms / 1000:.3f}s"] if check.token.ttft_ms is not None else []
    figures.append(f"restarts={check.unit.status.n_restarts}")
    said = _plain(f"{host}: {', '.join(words)}")
    return f"{_WORDS[check.state]} - {said} | {' '.join(figures)}"


def _plain(text: str) -> str:
    """On one line, without the sign that begins the figures."""
    return " ".join(text.replace("|", "/").split())
