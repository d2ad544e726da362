"""Facts of hosts laid side by side: majorities, outliers, what isn't known, and what would align each."""

import json

import pytest

from opslib.domain.drift import compare_hosts
from opslib.domain.drift_facts import Area, HostFacts, flags_of
from opslib.domain.drift_reading import drift_program, own_places, parse_drift
from opslib.domain.host import HostSettings
from opslib.domain.states import State
from opslib.errors import UnexpectedAnswer
from opslib.views.drift import WIDTH, drift_report

U = "vllm-x"


def host(name, *, problem="", **areas):
    """A host with these areas, "host" about itself and the others about the unit; a text is why one isn't known."""
    given = {
        ("" if area in {"host", "units"} else U, area): Area(problem=facts)
        if isinstance(facts, str)
        else Area(values=facts)
        for area, facts in areas.items()
    }
    return HostFacts(host=name, problem=problem, areas=given, units=(U,))


def fleet(area, *values):
    """Hosts h1, h2, ... that have these values of a fact "x"."""
    return [host(f"h{n}", **{area: {"x": value} if value is not None else {}}) for n, value in enumerate(values, 1)]


def told(report):
    return [
        (drift.name, [(group.value, group.hosts) for group in drift.groups], drift.has_majority)
        for drift in report.drifts
    ]


def test_the_majority_is_more_than_half_and_the_outliers_come_first():
    """Three alike and one not: the one is the outlier, and has a command; the others have none."""
    (drift,) = compare_hosts(fleet("settings", "5", "5", "30", "5")).drifts
    assert [(group.value, group.hosts) for group in drift.groups] == [("30", ("h3",)), ("5", ("h1", "h2", "h4"))]
    assert [group.value for group in drift.outliers] == ["30"]
    assert drift.align == {"h3": f"opslib run 90-deploy -f FILE -p host=h3 -p unit={U}"}


@pytest.mark.parametrize(
    "values", [("1", "2"), ("1", "1", "2", "2"), ("1", "1", "2", "3"), ("1", "1", "1", "2", "2", "3")]
)
def test_without_a_majority_none_is_invented(values):
    """Half is no majority: all groups are named, no host is called wrong, no command is given."""
    report = compare_hosts(fleet("settings", *values))
    (drift,) = report.drifts
    assert (drift.has_majority, drift.align, drift.outliers) == (False, {}, drift.groups)
    assert {name for group in drift.groups for name in group.hosts} == {f"h{n}" for n in range(1, len(values) + 1)}
    assert "no majority, decide which is right" in drift_report(report).text
    assert "align:" not in drift_report(report).text


def test_a_host_that_did_not_answer_is_unknown_not_drift():
    """Alike but for one that said nothing: exit code 3; where something differs as well: 1."""
    silent = host("h9", problem="nothing answered")
    report = compare_hosts([*fleet("settings", "5", "5"), silent])
    assert (report.state, report.state.exit_code, report.drifts) == (State.UNKNOWN, 3, ())
    assert [(each.host, each.name, each.reason) for each in report.unknown] == [
        ("h9", "everything", "nothing answered")
    ]
    differs = compare_hosts([*fleet("settings", "5", "5", "6"), silent])
    assert (differs.state.exit_code, len(differs.drifts), len(differs.unknown)) == (1, 1, 1)
    assert compare_hosts([silent, host("h8", problem="refused")]).state is State.UNKNOWN


def test_a_fact_that_could_not_be_read_is_unknown_and_counts_for_no_majority():
    """The environment of one process may not be read: it is not absent there, and the others are compared."""
    hosts = [
        host("h1", variables={"A": "1"}),
        host("h2", variables={"A": "2"}),
        host("h3", variables="may not be read"),
    ]
    report = compare_hosts(hosts)
    assert told(report) == [("A", [("value A", ("h1",)), ("value B", ("h2",))], False)]
    assert [(each.host, each.name, each.reason) for each in report.unknown] == [("h3", "variables", "may not be read")]
    alike = compare_hosts([host("h1", variables={"A": "1"}), host("h2", variables={"A": "1"}), hosts[2]])
    assert alike.state.exit_code == 3


def test_a_name_that_others_have_is_absent():
    """A variable, a flag, a setting that one host lacks differs there, and how it is put back fits what it is."""
    report = compare_hosts(fleet("unit's flags", "8", "8", None))
    assert told(report)[0][1][0] == ("absent", ("h3",))
    flags = [host(name, **{"unit's flags": {"--port": "8000"} if name != "h3" else {}}) for name in ("h1", "h2", "h3")]
    assert compare_hosts(flags).drifts[0].align["h3"] == f"opslib adopt h3 {U} --set=--port=8000"


def test_a_difference_is_told_once():
    """What unit and process show alike is told of the process; what the unit alone shows is told of the unit."""
    both = {"flags": {"--a": "1"}, "unit's flags": {"--a": "1"}}
    other = {"flags": {"--a": "2"}, "unit's flags": {"--a": "2"}}
    report = compare_hosts([host("h1", **both), host("h2", **both), host("h3", **other)])
    assert [(drift.area, drift.name) for drift in report.drifts] == [("flags", "--a")]
    waits = {"flags": {"--a": "1"}, "unit's flags": {"--a": "2"}}
    report = compare_hosts([host("h1", **both), host("h2", **both), host("h3", **waits)])
    assert [(drift.area, drift.name) for drift in report.drifts] == [("unit's flags", "--a")]
    assert "not yet the process's" in drift_report(report).text


def test_no_secret_and_no_digest_is_told():
    """Values of variables, digests of files and secret words are letters or marks in report, text and JSON."""
    digest = "digest:" + "ab" * 32
    hosts = [
        host(f"h{n}", variables={"HF_TOKEN": f"digest:{n:064x}"}, model={"chat template": f"{n:064x}"},
             flags={"--api-key": f"digest:{n:064x}"}, settings={"[Service] ExecStartPre": f"/x --token {digest} -n {n}"})
        for n in (1, 1, 2)
    ]  # fmt: skip
    hosts = [each.model_copy(update={"host": f"h{n}"}) for n, each in enumerate(hosts, 1)]
    report = compare_hosts(hosts)
    assert len(report.drifts) == 4
    whole = report.model_dump_json() + drift_report(report).text + drift_report(report).html
    assert digest not in whole
    assert "0" * 40 not in whole
    assert "[redacted:ababab]" in whole


def test_hosts_that_are_alike_are_said_to_be():
    """Nothing differs, everything is known: exit code 0, and how much was compared."""
    report = compare_hosts(fleet("settings", "5", "5", "5"))
    assert (report.state.exit_code, report.n_facts, report.drifts) == (0, 1, ())
    assert drift_report(report).text == "✓ ok  3 hosts are alike in 1 facts"


def test_content_that_nobody_hashed_is_a_note():
    """Receipts on no host: there is nothing to compare, and that is said; on some: unknown for the others."""
    none = Area(unread={"weights' content": "0 of 3 weight files have a receipt that holds"})
    some = Area(values={"weights' content": "a"})

    def of(name, area):
        return HostFacts(host=name, areas={(U, "model"): area})

    report = compare_hosts([of("h1", none), of("h2", none)])
    assert (report.state.exit_code, len(report.notes)) == (0, 1)
    report = compare_hosts([of("h1", some), of("h2", some), of("h3", none)])
    assert (report.state.exit_code, [each.host for each in report.unknown]) == (3, ["h3"])


def test_a_report_fits_a_hundred_columns():
    """Sentences are wrapped; a command that is to be copied is not."""
    report = compare_hosts(fleet("settings", "x " * 90, "y " * 90, "y " * 90))
    lines = drift_report(report).text.splitlines()
    assert all(len(line) <= WIDTH for line in lines if "align:" not in line)
    assert "…" in " ".join(lines)


COMMANDS = [
    (["/opt/vllm/bin/vllm", "serve", "/m", "-tp", "4"], {"program": "/opt/vllm/bin/vllm serve", "model path": "/m", "--tensor-parallel-size": "4"}),
    (["/usr/bin/python3.11", "-sE", "/opt/vllm/bin/vllm", "serve", "/m"], {"program": "/opt/vllm/bin/vllm serve", "model path": "/m"}),
    (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/m"], {"program": "vllm.entrypoints.openai.api_server", "--model": "/m"}),
    (["/x", "--no-enable-prefix-caching"], {"program": "/x", "--no-enable-prefix-caching": "set"}),
    ([], {}),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "expected"), COMMANDS)
def test_a_command_line_is_read_as_flags(argv, expected):
    """Aliases have their canonical names, an interpreter before the program is none of the engine's."""
    assert flags_of(argv) == expected


def test_only_what_hosts_toml_gives_each_host_is_its_own():
    """Directories that differ between the entries become placeholders; those that are the same stay as they are."""
    first, second = (HostSettings(alias=name, address=name, models_dir=f"/data/{name}") for name in ("gpu-a", "gpu-b"))
    assert own_places(first, [first, second]) == {"/data/gpu-a": "{models_dir}", "gpu-a": "{address}"}
    assert own_places(first, [first]) == {}


def test_only_read_only_commands_are_sent():
    """What the on-host program may run are listings and queries."""
    _, arguments = drift_program(HostSettings(alias="a", address="h"), [U], salt="s", own={})
    assert [argv[:2] for argv in arguments["commands"].values()] == [
        ["systemctl", "list-units"], ["systemctl", "show"], ["nvidia-smi", arguments["commands"]["gpus"][1]],
    ]  # fmt: skip
    json.dumps(arguments)
    with pytest.raises(UnexpectedAnswer):
        parse_drift("Killed")
