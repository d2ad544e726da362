"""`opslib lint`: what is wrong with a unit before it is started."""

import json
import textwrap
from pathlib import Path

import click

from opslib.app.binding import check_alias, open_bound_host
from opslib.cli.options import json_option
from opslib.cli.showing import show
from opslib.cli.story import badge_text
from opslib.errors import BadParameter, reason_of
from opslib.workflow.lint import LintReport, lint_installed, lint_text

_WIDTH = 100


@click.command("lint")
@click.argument("host")
@click.argument("unit")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Judge this unit file of this machine, not the installed unit.",
)
@json_option
def lint_command(host: str, unit: str, path: Path | None, *, as_json: bool) -> int:
    """Judge UNIT on HOST, drop-ins included, by the kit's rules and by the host's own systemd-analyze.

    Changes nothing. Exit code 0 nothing to say, 1 warnings, 2 faults.
    """
    check_alias(host)
    text = _text_of(path) if path else None
    opened = open_bound_host(host)
    try:
        report = lint_installed(opened, unit) if text is None else lint_text(opened, unit, text)
    finally:
        opened.close()
    if as_json:
        show(json.dumps(_document(report), ensure_ascii=False))
    else:
        show(f"{badge_text(report.state.value)}  {host}: {report.summary}")
        show(finding_lines(report), end="")
    return report.state.exit_code


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadParameter(f"{path}: can't be read: {reason_of(error)}") from error


def finding_lines(report: LintReport) -> str:
    """The findings as text of at most 100 columns; a word that is longer is not cut."""
    wrapper = textwrap.TextWrapper(_WIDTH, break_long_words=False, break_on_hyphens=False)
    wrapper.initial_indent, wrapper.subsequent_indent = "  ", "      "
    return "".join(f"{wrapper.fill(line)}\n" for line in report.lines)


def _document(report: LintReport) -> dict[str, object]:
    return {**report.model_dump(mode="json"), "state": report.state.value, "summary": report.summary}
