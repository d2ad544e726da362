"""`opslib sudoers`: the narrow sudoers file for a host."""

import json
import sys

import click

from opslib.app.binding import check_alias, open_bound_host
from opslib.cli.options import json_option
from opslib.cli.showing import show
from opslib.domain.host import Host
from opslib.domain.states import State
from opslib.domain.sudoers import PROGRAMS, sudoers_text
from opslib.errors import BadParameter, UnexpectedAnswer
from opslib.workflow.facts import gather_identity

# `command -v` is the shell's own; the last directory is where visudo lies and few logins look
_FIND = 'PATH=$PATH:/usr/sbin:/sbin; for program; do command -v -- "$program" || echo; done'


@click.command("sudoers")
@click.argument("host")
@click.option("--user", "login", metavar="NAME", help="The login that gets the rights [the one that hosts.toml uses].")
@click.option(
    "-u", "--unit", "units", multiple=True, default=["vllm-minimax"], show_default=True, help="May be repeated."
)
@click.option("--port", "ports", multiple=True, type=click.IntRange(1, 65535), default=[8000], show_default=True)
@json_option
def sudoers_command(
    host: str, login: str | None, units: tuple[str, ...], ports: tuple[int, ...], *, as_json: bool
) -> int:
    """Print the smallest sudoers file with which the kit can work on HOST: exact commands, no programs of its own.

    Changes nothing. The file is checked by the host's own visudo where it has one; exit code 2 where that complains.
    """
    check_alias(host)
    opened = open_bound_host(host)
    try:
        text, said, state = _made(opened, login, units, ports)
    finally:
        opened.close()
    if as_json:
        show(json.dumps({"host": host, "sudoers": text, "check": said, "state": state.value}, ensure_ascii=False))
    else:
        show(text, end="")
        show(f"{host}: {said}", file=sys.stderr)
    return state.exit_code


def _made(host: Host, login: str | None, units: tuple[str, ...], ports: tuple[int, ...]) -> tuple[str, str, State]:
    """The file, and what visudo says about it."""
    settings = host.settings
    if settings.scope == "user":
        raise BadParameter('scope = "user" needs no sudo', host=settings.alias)
    name = login or gather_identity(host).user
    if name == "root":
        raise BadParameter("root needs no sudoers file", host=settings.alias, hint="name another login: --user NAME")
    found = host.run(("sh", "-c", _FIND, "opslib", *PROGRAMS, "visudo")).text.split("\n")
    paths = {program: path for program, path in zip((*PROGRAMS, "visudo"), found, strict=False) if path}
    if missing := [program for program in PROGRAMS if not paths.get(program, "").startswith("/")]:
        raise UnexpectedAnswer(f"these programs were not found: {', '.join(missing)}", host=settings.alias)
    visudo = paths.pop("visudo", None)
    text = sudoers_text(settings, name, units, ports, paths)
    if visudo is None:
        return text, "not checked, there is no visudo", State.OK
    checked = host.run((visudo, "--check", "--strict", "--file=-"), input=text.encode())
    said = " ".join((checked.text + checked.error_text).split())
    return text, f"visudo: {said}", State.OK if checked.is_success else State.CRITICAL
