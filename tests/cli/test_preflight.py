"""`opslib preflight`: the checks as text and as one JSON document, its exit code that of the worst check."""

import json

from opslib.cli.main import call


def test_a_taken_port_is_critical_and_named(capsys):
    """Exit code 2, one JSON document, the check with its evidence and remedy; nothing else on standard output."""
    assert call(["preflight", "rehearsal:port-in-use", "vllm-minimax", "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert (report["state"], report["cause"]) == ("critical", "configuration/port-in-use")
    port = next(check for check in report["checks"] if check["name"] == "port")
    assert "held by metrics-proxy" in port["summary"]
    assert port["next_step"]
    assert "duration_s" in report


def test_a_healthy_host_is_fit(capsys):
    """Exit code 0, a line for each check; parameters are those of 30-launch, and a wrong one is refused at once."""
    assert call(["preflight", "rehearsal:healthy", "vllm-minimax", "-p", "max_num_seqs=64"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("✓ ok  rehearsal:healthy: 15 of 16 checks are good; not known: receipt")
    assert "16 checks in" in told.err
    assert call(["preflight", "rehearsal:healthy", "vllm-minimax", "-p", "max_num_sequences=64"]) == 4
