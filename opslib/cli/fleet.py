"""`opslib fleet`: runbooks over many hosts by Prefect's workers."""

import click

from opslib.app import prefect_site as site


@click.group("fleet", context_settings={"help_option_names": ["-h", "--help"]})
def fleet_command() -> None:
    """Outgrow one controller: Prefect's server and workers run `opslib run` on many hosts.

    Needs the extra opslib[fleet]. A fleet is run from Prefect's screen or by its own command: docs/fleet.md.
    """


@fleet_command.command("server", short_help="Start Prefect's embedded server, with its screen.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address that it listens on.")
@click.option("--port", default=4200, show_default=True, type=click.IntRange(1, 65535), help="Its port.")
def server_subcommand(host: str, port: int) -> None:
    """Start Prefect's embedded server (SQLite), with its screen on the same port; Ctrl-C ends it.

    Exit code 4: Prefect is not installed; else Prefect's own.
    """
    site.prepare()
    site.become(site.server_command(host, port))


@fleet_command.command("worker", short_help="Work for a Prefect server; any number of these.")
@click.option("--name", default="", help="Its name on the screen [made up by Prefect].")
@click.option(
    "--limit",
    default=8,
    show_default=True,
    type=click.IntRange(min=site.MOST_FLEETS + 1),
    help="Flow runs at once: one per host at work, and one per fleet that waits for its hosts.",
)
def worker_subcommand(name: str, limit: int) -> None:
    """Tell the server of the kit's flows, and work for it: that of PREFECT_API_URL, else the one on this machine.

    Exit code 3: no server answers; 4: Prefect is not installed, or the server refuses; else Prefect's own.
    """
    site.prepare()
    site.register()
    site.become(site.worker_command(name, limit))
