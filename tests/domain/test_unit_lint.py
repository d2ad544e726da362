"""The rules on units: each finds its bad fixture, passes its good one, and says what to write instead."""

from pathlib import Path

import pytest

from opslib.domain.container import container_of
from opslib.domain.states import State
from opslib.domain.unit_files import UnitFiles, UnitPart
from opslib.domain.unit_lint import lint_unit, list_rules, read_verify
from opslib.domain.unit_rules import FINDERS
from opslib.domain.vllm_unit import GuardSettings, render_vllm_unit, start_timeout_s
from opslib.errors import Refused

CASES = Path(__file__).parents[1] / "cases" / "units"
RULES = list_rules()
IDS = [rule.name for rule in RULES]


def fixture(name: str) -> str:
    """The text of a fixture."""
    return (CASES / f"{name}.service").read_text("utf-8")


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_a_bad_unit_is_caught_by_its_rule_and_a_good_one_by_none(rule) -> None:
    """The bad fixture of each rule is found by it with evidence; nothing is found in the good one."""
    bad, good = lint_unit(fixture(f"{rule.name}.bad")), lint_unit(fixture(f"{rule.name}.good"))
    found = {finding.name: finding for finding in bad}
    assert f"unit/{rule.name}" in found
    assert found[f"unit/{rule.name}"].state is rule.state
    assert found[f"unit/{rule.name}"].evidence
    assert good == ()


def test_each_rule_has_its_finder_and_each_fixture_its_rule() -> None:
    """No fixture is left without a rule, no rule without a function."""
    assert set(FINDERS) == set(IDS)
    assert {path.name.partition(".")[0] for path in CASES.iterdir()} == set(IDS)


def test_a_secret_is_never_quoted() -> None:
    """Findings about secrets name the place and hold no value."""
    for name in ("secret-in-argv", "secret-in-environment"):
        told = " ".join(str(finding) for finding in lint_unit(fixture(f"{name}.bad")))
        assert "fixture0123" not in told.replace("-", "")


def test_what_the_kit_renders_is_clean() -> None:
    """The kit's own unit passes all rules, with GPUs and without."""
    guard = GuardSettings(python="python3", path="/var/lib/opslib/gpu_guard.py", required_free_gib=90.2)
    flags = ["--port", "8000", "--tensor-parallel-size", "4"]
    for gpus in ([0, 1, 2, 3], []):
        text = render_vllm_unit(
            unit="vllm-a",
            vllm="/opt/vllm/bin/vllm",
            model_path="/srv/m",
            flags=flags if gpus else flags[:2],
            gpus=gpus,
            guard=guard,
        )
        assert lint_unit(text) == ()
        assert "OOMPolicy=kill\n" in text
        assert "KillMode=control-group\n" in text


def test_a_start_that_reports_gets_time_by_the_models_size() -> None:
    """With Type=notify the start timeout covers the load; a larger model gets more, the guard's wait comes on top."""
    text = render_vllm_unit(
        unit="a", vllm="/v", model_path="/m", flags=[], notify=["/usr/bin/python3", "/n.py"], model_bytes=215 * 10**9
    )
    assert "Type=notify\nNotifyAccess=main\n" in text
    assert "ExecStart=/usr/bin/python3 /n.py /v serve /m\n" in text
    small, large = (start_timeout_s(0, model_bytes=size, is_notify=True) for size in (10**9, 10**12))
    assert large > small > start_timeout_s(0)
    assert start_timeout_s(300, model_bytes=10**9, is_notify=True) == small + 300


VERIFY = """\
/tmp/x/vllm-a.service:18: Failed to parse sec value, ignoring: 5 # seconds
/lib/systemd/system/other.service:3: Unknown key name 'X' in section 'Service', ignoring.
vllm-a.service: Command /opt/vllm/bin/vllm is not executable: No such file or directory
"""


def test_systemds_words_about_this_unit_are_read() -> None:
    """What verify says about other units is passed over; an ignored line is a warning, a missing program a fault."""
    ignored, missing = read_verify(VERIFY, "vllm-a")
    assert (ignored.state, ignored.evidence) == (State.WARNING, ("line 18",))
    assert missing.state is State.CRITICAL
    assert missing.summary == "Command /opt/vllm/bin/vllm is not executable: No such file or directory"


@pytest.mark.parametrize(
    ("line", "words", "is_detached"),
    [
        (
            "/usr/bin/docker run --rm --gpus all -v /srv:/srv -p 8000:8000 vllm/vllm-openai:v0.15.1 --model m",
            "docker (vllm/vllm-openai:v0.15.1)",
            False,
        ),
        (
            "/usr/bin/podman run -dit --name=x docker.io/vllm/vllm-openai serve",
            "podman (docker.io/vllm/vllm-openai)",
            True,
        ),
        ("/usr/bin/env docker start -a vllm", "docker", False),
    ],
)
def test_an_engine_in_a_container_is_recognised(line: str, words: str, is_detached: bool) -> None:
    """Runtime and image are said, options with values passed over; a detached one is told."""
    container = container_of(line.split())
    assert container is not None
    assert (container.words, container.is_detached) == (words, is_detached)


def test_a_change_goes_into_the_file_that_rules() -> None:
    """A package's file is left alone: a drop-in of the administrator's takes its command, or its setting, over."""
    vendor = UnitPart(path="/usr/lib/systemd/system/v.service", text="[Service]\nExecStart=/v serve m\nMemoryMax=1G\n")
    files = UnitFiles(unit="v.service", parts=(vendor,))
    flag = files.with_engine_flag("--max-num-seqs", "8")
    assert flag.path == "/etc/systemd/system/v.service.d/50-opslib.conf"
    after = UnitFiles(unit="v.service", parts=(vendor, flag))
    assert after.merged.engine_argv == ("/v", "serve", "m", "--max-num-seqs", "8")
    assert after.without_engine_flag("--max-num-seqs").path == flag.path
    lifted = after.changed(lambda text: text.replace("=1G", "=infinity"), key="MemoryMax")
    assert lifted.text == "[Service]\nMemoryMax=infinity\n"


@pytest.mark.parametrize(
    ("unit", "path", "target"),
    [
        ("v.service", "/lib/systemd/system/v.service", "v.service.d/50-opslib.conf"),
        ("v.service", "/usr/lib/systemd/system/v.service.d/90-x.conf", "v.service.d/90-x.opslib.conf"),
        ("v@a.service", "/etc/systemd/system/v@.service", "v@a.service.d/50-opslib.conf"),
        ("v@a.service", "/etc/systemd/system/v@a.service.d/x.conf", "v@a.service.d/x.conf"),
    ],
)
def test_a_command_that_is_taken_over_keeps_its_wording(unit: str, path: str, target: str) -> None:
    """Prefix, variables and specifiers mean the same in the drop-in, which is read after the file that ruled.

    A template's file is all instances': one instance's change goes into its own drop-in.
    """
    command = "ExecStart=-/v/vllm serve %i --max-num-seqs 8 \\\n  --host $ADDRESS --port ${PORT}\n"
    ruling = UnitPart(path=path, text=f"[Service]\nExecStart=\nExecStart=/bin/true\n{command}")
    changed = UnitFiles(unit=unit, parts=(ruling,)).with_engine_flag("--max-num-seqs", "4")
    assert changed.path == f"/etc/systemd/system/{target}"
    assert changed.path == path or changed.path.rpartition("/")[2] > path.rpartition("/")[2] or path.endswith("service")
    assert changed.text == f"[Service]\nExecStart=\nExecStart=/bin/true\n{command.replace('seqs 8', 'seqs 4')}"


def test_a_command_that_was_cleared_is_not_changed() -> None:
    """Where a drop-in takes the command back no change of it would count; the file is named."""
    parts = (
        UnitPart(path="/etc/systemd/system/v.service", text="[Service]\nExecStart=/v/vllm serve m\n"),
        UnitPart(path="/etc/systemd/system/v.service.d/x.conf", text="[Service]\nExecStart=\n"),
    )
    with pytest.raises(Refused, match=r"x\.conf clears"):
        UnitFiles(unit="v.service", parts=parts).with_engine_flag("--port", "1")
    added = UnitPart(path="/etc/systemd/system/v.service.d/y.conf", text="[Service]\nExecStart=/bin/echo done\n")
    assert UnitFiles(unit="v.service", parts=(parts[0], added)).with_engine_flag("--port", "1").path == parts[0].path
