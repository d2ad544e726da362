"""A timer of a real systemd runs a runbook with nobody watching: records, exit states, one notification, no overlap."""

import json
import re
import time
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

from opslib.domain.schedule import Schedule, render_service, render_timer
from tests.rig.controller import ALIAS, controller
from tests.rig.skip import or_skip
from tests.sink import sink

MODEL = "/srv/models/minimax-m2-230b-fp8"
PARAMETERS = """\
host: {host}
unit: vllm-minimax
consent: given
max_num_seqs: 256
concurrency_levels: [1]
input_tokens: 16
output_tokens: 4
worse_threshold_percent: 1000
notify: file:/etc/opslib/ops.url
"""
LAUNCH_ONLY = "concurrency_levels|input_tokens|output_tokens|worse_threshold_percent"


WORDS = (
    "a b",
    "50% of %h",
    "$HOME ${HOME} $$",
    'say "no" \\ \\n',
    "it's",
    "",
    "[0, 1]",
    "{A: env:B}",
    ";",
    "ü",
    "two\nlines",
)
DUMP = "import json, os, sys; json.dump([sys.argv[1:], os.environ['MARK'], os.getcwd()], open('/root/told', 'w'))"


@pytest.mark.realhost
def test_systemd_hands_over_every_word_as_it_was_given(debian):
    """Blanks, quotes, specifiers, variables and line breaks reach the run unchanged; the texts are free of warnings."""
    schedule = Schedule(
        name="words",
        runbook="90-deploy",
        host="gpu-a",
        unit="100% vllm",
        on_calendar=("daily",),
        command=("/usr/bin/python3", "-c", DUMP, *WORDS),
        environment={"MARK": 'a "b" 50% $HOME'},
        working_directory="/srv/100% of",
        scope="system",
    )
    files = {f"/etc/systemd/system/{schedule.service}": render_service(schedule)}
    files[f"/etc/systemd/system/{schedule.timer}"] = render_timer(schedule)
    debian.put_files({path: (text.encode(), 0o644) for path, text in files.items()})
    debian.local_path("/srv/100% of").mkdir()
    assert debian.ssh("systemctl", "daemon-reload").returncode == 0
    started = debian.ssh("systemctl", "start", schedule.service)
    assert started.returncode == 0, debian.ssh("journalctl", "-u", schedule.service, "--no-pager").stdout
    assert json.loads(debian.local_path("/root/told").read_text()) == [list(WORDS), 'a "b" 50% $HOME', "/srv/100% of"]
    verified = debian.ssh("systemd-analyze", "verify", *files)
    assert "opslib-words" not in verified.stdout + verified.stderr


def ended_records(machine):
    """The records that have an end, oldest first."""
    found = []
    for path in sorted(machine.runs_dir.glob("*/record.json")):
        record = json.loads(path.read_text())
        if record["status"] != "running" and (path.parent / "record.html").is_file():
            found.append(record)
    return found


def wait_for(machine, n, timeout_s):
    """Come back when that many runs have ended."""
    deadline = time.monotonic() + timeout_s
    while len(found := ended_records(machine)) < n:
        assert time.monotonic() < deadline, machine.sh("journalctl -u 'opslib-*' --no-pager | tail -30")
        time.sleep(0.5)
    return found


# runbook, its calendar, runs, which of them is to fail (from 0)
SHORT = ("30-launch", "*:*:0/5", 1, 0)
LONG = ("90-deploy", "*:*:0/20", 6, 3)


@pytest.mark.realhost
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("runbook", "calendar", "n", "failing"), [SHORT, pytest.param(*LONG, marks=pytest.mark.slow)])
def test_a_timer_runs_a_deploy_by_itself(runbook, calendar, n, failing):
    """As many records as starts, one at a time, each with the exit state that the journal has; the failure is told once."""
    with or_skip(controller("opslib-timer")) as machine, sink(machine.debian.gateway) as ops:
        machine.put("/etc/opslib/ops.url", f"{ops.url}\n", 0o600)
        text = PARAMETERS.format(host=ALIAS)
        machine.put(
            "/etc/opslib/deploy.yaml",
            text if runbook == "90-deploy" else re.sub(rf"(?m)^({LAUNCH_ONLY}).*\n", "", text),
        )
        words = ["schedule", runbook, "--on-calendar", calendar, "-f", "/etc/opslib/deploy.yaml", "--timeout", "10min"]
        shown = machine.opslib(*words)
        assert shown.returncode == 0, shown.stderr
        assert "nothing was written" in shown.stdout
        assert machine.opslib("schedule", "list").stdout == "no schedule on this machine\n"
        done = machine.opslib(*words, "--install")
        assert done.returncode == 0, done.stdout + done.stderr

        shard = machine.debian.local_path(f"{MODEL}/model-00007-of-00125.safetensors")
        for number in range(n):
            if number == failing:
                shard.rename(shard.with_suffix(".away"))
            records = wait_for(machine, number + 1, 600)
            if number == failing:
                shard.with_suffix(".away").rename(shard)
        name = records[0]["runbook"].partition("-")[2] + f"-{ALIAS}-vllm-minimax"
        listed = json.loads(machine.opslib("schedule", "list", "--json").stdout)["schedules"]
        assert [entry["schedule"]["name"] for entry in listed] == [name]
        assert machine.opslib("schedule", "remove", name, "--yes").returncode == 0
        service = f"opslib-{name}.service"
        assert not list(machine.debian.local_path("/etc/systemd/system/x").parent.glob("opslib-*"))
        assert_as_told(machine, ended_records(machine)[:n], service, failing)
        failures = [message for message in ops.messages if message["type"] == "failure"]  # a busy machine may warn
        assert [message["title"] for message in failures] == [f"{ALIAS}: vllm-minimax critical ({runbook})"]
        told = failures[0]["message"]
        machine.sh(f"systemctl stop {service}", 120)  # the next run may have begun
        assert re.search(r"(?m)^host: gpu-a, started on opslib-timer$", told)
        assert re.search(r"(?m)^outcome: critical.*: .*(missing|shard|crashed)", told)
        assert re.search(rf"(?m)^record: /var/lib/runs/{'[0-9TZ]+'}-gpu-a-vllm-minimax-{runbook}$", told)


def assert_as_told(machine, records, service, failing):
    """Outcomes, exit states of the unit's own journal, and that no two runs overlapped."""
    codes = [record["exit_code"] for record in records]
    assert [code > 1 for code in codes] == [number == failing for number in range(len(codes))], codes
    journal = machine.sh(f"journalctl --no-pager -o cat -u {service}")
    exits = re.findall(r"Main process exited, code=exited, status=(\d+)/", journal)
    assert [int(code) for code in exits if int(code) > 1] == [2]
    assert journal.count("Failed with result 'exit-code'") == 1
    assert journal.count(f"Finished {service}") >= len(records) - 1
    spans = [
        (datetime.fromisoformat(record["started_at"]), datetime.fromisoformat(record["ended_at"])) for record in records
    ]
    assert all(after[0] > before[1] for before, after in pairwise(spans)), spans
    assert spans[-1][0] - spans[0][0] >= timedelta(seconds=19) * (len(spans) - 1)
    notes = [note for record in records for note in record["notes"]]
    n_problems = len([code for code in codes if code])
    assert len([note for note in notes if note.startswith("notified file:/etc/opslib/ops.url")]) == n_problems
