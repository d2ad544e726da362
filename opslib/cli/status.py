"""`opslib status`: how one unit is doing, honestly."""

import json

import click

from opslib.cli.acting import bound
from opslib.cli.options import json_option
from opslib.cli.showing import show
from opslib.cli.story import badge_text, plain_table
from opslib.workflow.unit_look import UnitLook, look_at_unit


@click.command("status")
@click.argument("host")
@click.argument("unit")
@json_option
def status_command(host: str, unit: str, *, as_json: bool) -> int:
    """How UNIT on HOST is doing: systemd's word and what it comes to, health, arguments, GPU memory, files.

    Changes nothing. Exit code 0 it serves, 1 worth a look (starting, restarted lately), 2 it doesn't serve.
    """
    with bound(host) as opened:
        look = look_at_unit(opened, unit)
    if as_json:
        show(json.dumps({"host": host, **look.model_dump(mode="json"), "state": look.state.value}, ensure_ascii=False))
    else:
        _tell(host, look)
    return look.state.exit_code


def _tell(host: str, look: UnitLook) -> None:
    seen = look.seen
    show(f"{badge_text(look.state.value)}  {host}: {look.summary}")
    rows = [
        ("systemd", f"{seen.status.active_state} ({seen.status.sub_state}), {seen.status.n_restarts} restarts"),
        ("invocation", f"{seen.status.invocation_id or '-'}, since {seen.status.exec_main_start_at or '-'}"),
        ("last exit", seen.status.exit_words or "-"),
        ("engine", f"{seen.engine or '-'} {seen.engine_version} {seen.model}".strip()),
        ("/health", f"{seen.health_status_code or 'closed'} (port {seen.port or '-'})"),
        ("arguments", look.arguments),
        ("GPU memory", look.gpu_memory),
        ("files", ", ".join(look.files)),
        *([("container", look.container)] if look.container else []),
    ]
    show("\n".join(f"  {line}" for line in plain_table((), [[name, value] for name, value in rows])))
    if seen.next_step:
        show(f"next    {seen.next_step}")
