"""`opslib drill`: a scenario in JupyterLab, without the answer."""

from contextlib import suppress

import click

from opslib.app.drill import RUNBOOK, begin_drill, find_drill, open_in_lab, reveal
from opslib.cli.showing import show
from opslib.errors import Refused


@click.command("drill")
@click.argument("name", metavar="[SCENARIO|DRILL]", required=False)
@click.option("--random", "is_random", is_flag=True, help="Any scenario; you are not told which.")
@click.option("--runbook", default=RUNBOOK, show_default=True, help="The runbook that you are handed.")
@click.option("--no-lab", is_flag=True, help="Only make the notebook, and say where it is.")
@click.option("--reveal", "is_reveal", is_flag=True, help="Say what DRILL (or the newest) was, when its run is over.")
@click.option("--give-up", is_flag=True, help="With --reveal: also when it isn't over.")
def drill_command(name: str | None, runbook: str, **flags: bool) -> int:
    """Hand a SCENARIO to a person: a runbook in JupyterLab on a practice host that doesn't say what is wrong with it.

    The scenarios: opslib rehearse --list. What it was is told when JupyterLab ends, or by --reveal.
    Exit code 0, whatever was found; 3: JupyterLab did not end well; 4: refused.
    """
    if flags["is_reveal"]:
        show("\n".join(reveal(find_drill(name), is_given_up=flags["give_up"])))
        return 0
    if bool(name) == flags["is_random"]:
        raise click.UsageError("name one scenario (opslib rehearse --list), or say --random")
    drill = begin_drill(name, runbook=runbook)
    show(f"host      {drill.alias}\nnotebook  {drill.notebook}\nanswer    opslib drill --reveal {drill.name}")
    if flags["no_lab"]:
        return 0
    status = open_in_lab(drill)
    with suppress(Refused):  # not over: it can be gone on with
        show("\n".join(reveal(drill)))
    return 3 if status else 0
