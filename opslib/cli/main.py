"""The command `opslib`: finds the verb, and turns what went wrong into one line and an exit code."""

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from opslib import __version__
from opslib.cli.failures import report_failure
from opslib.cli.lazy import LazyGroup
from opslib.cli.showing import PLAINLY

# verb -> (where its command is, what --help says); nothing is imported before a verb is called
VERBS = {
    "run": ("opslib.cli.run:run_command", "Run a runbook headless and keep its record."),
    "rollout": ("opslib.cli.rollout:rollout_command", "Run a runbook on many hosts, a canary first."),
    "schedule": ("opslib.cli.schedule:schedule_command", "Let a runbook run by itself: a systemd timer."),
    "rehearse": ("opslib.cli.rehearse:rehearse_command", "Rehearse a whole deploy on a practice host."),
    "drill": ("opslib.cli.drill:drill_command", "Practise in JupyterLab on a host that doesn't say what is wrong."),
    "runs": ("opslib.cli.runs:runs_command", "List, show and compare the records of earlier runs."),
    "plan": ("opslib.cli.plan:plan_command", "Predict what an engine will do with GPU memory."),
    "diagnose": ("opslib.cli.diagnose:diagnose_command", "Name the cause of a crash from a journal or a log."),
    "verify": ("opslib.cli.verify:verify_command", "Verify a downloaded checkpoint where it lies."),
    "investigate": ("opslib.cli.investigate:investigate_command", "Say why a unit failed; keep the evidence."),
    "watch": ("opslib.cli.watch:watch_command", "Watch a unit: phases, progress, health, journal; or play it again."),
    "fleet": ("opslib.cli.fleet:fleet_command", "More hosts than one controller: Prefect's server and workers."),
    "survey": ("opslib.cli.survey:survey_command", "Look over many hosts at once: units, GPUs, disks, clock."),
    "drift": ("opslib.cli.drift:drift_command", "Say what differs between hosts that should be alike."),
    "preflight": ("opslib.cli.preflight:preflight_command", "Is a host fit for a launch? Changes nothing."),
    "check": ("opslib.cli.check:check_command", "Ask a unit for one real token, as a monitoring plugin does."),
    "bench": ("opslib.cli.bench:bench_command", "Measure a unit or an endpoint; compare two results."),
    "start": ("opslib.cli.lifecycle:start_command", "Start a unit and wait until it answers."),
    "stop": ("opslib.cli.lifecycle:stop_command", "Stop a unit and wait until its GPU memory is released."),
    "restart": ("opslib.cli.lifecycle:restart_command", "Restart a unit; proved by the new process's own answers."),
    "drain": ("opslib.cli.lifecycle:drain_command", "Wait until a unit works on no request, then stop it."),
    "status": ("opslib.cli.status:status_command", "Say how one unit is doing."),
    "logs": ("opslib.cli.logs:logs_command", "Show a unit's journal."),
    "rollback": ("opslib.cli.rollback:rollback_command", "Service back first: the last deploy that served."),
    "adopt": ("opslib.cli.adopt:adopt_command", "Read a unit that somebody else wrote; change one flag of it."),
    "lint": ("opslib.cli.lint:lint_command", "Judge a unit before it is started."),
    "sudoers": ("opslib.cli.sudoers:sudoers_command", "Print the narrow sudoers file for a host."),
    "hosts": ("opslib.cli.hosts:hosts_command", "List the hosts of the inventory."),
}


@click.group(cls=LazyGroup, table=VERBS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="opslib")
def opslib() -> None:
    """Operate large language models on your own GPU hosts.

    Exit codes: 0 ok, 1 warning, 2 critical, 3 could not find out, 4 refused (nothing was changed).
    """


def call(arguments: Sequence[str]) -> int:
    """Run one command line and say its exit code; what goes wrong is reported, never raised."""
    try:
        answer: Any = opslib.main(list(arguments), prog_name="opslib", standalone_mode=False)
    except BaseException as error:  # noqa: BLE001 - each kind has its line and its code
        return report_failure(error, arguments)
    return answer if isinstance(answer, int) else 0


def _interrupt(number: int, _frame: object) -> None:
    """An end that is asked for is told like Ctrl-C, and what is to be put away is put away."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def _open_what_is_closed() -> None:
    """/dev/null for a closed standard input, output or error: nobody is there, and no other file gets its number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)  # for what is started from here, as standard streams are
        mode, name = ("r", "stdin") if number == 0 else ("w", "stdout" if number == 1 else "stderr")
        setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - a number
    os.close(number)


def main() -> None:
    """The entry point of the command line."""
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, errors=PLAINLY)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup(1) stays in force
            signal.signal(number, _interrupt)
    sys.exit(call(sys.argv[1:]))
